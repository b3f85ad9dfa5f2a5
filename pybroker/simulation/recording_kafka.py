"""Records how the user's processes use aiokafka, as `recording` does for `pybroker.client.aio`."""

import contextlib
import sys
from asyncio import Future
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial, wraps
from typing import Any, Final
from unittest.mock import patch

from pybroker.simulation.judging import shown

_MODULE: Final = "aiokafka"
Method = Callable[..., Awaitable[Any]]
Recording = Callable[[], Any]


def _name(value: object) -> str:
    return shown(bytes(value)) if isinstance(value, bytes | bytearray | memoryview) else "a record"


def _send(recording: Recording, real: Method) -> Method:
    @wraps(real)
    async def send(self: Any, topic: str, value: Any = None, *args: Any, **more: Any) -> Any:
        node = recording()
        if node is None:
            return await real(self, topic, value, *args, **more)
        name = _name(value)
        node.step()
        node.tell(f"sends {name} to {topic}", name)
        try:
            stored: Future[Any] = await real(self, topic, value, *args, **more)
        except Exception as error:
            _failed(node, f"{name} to {topic}", error, name)
            raise
        stored.add_done_callback(partial(_answered, node, name, topic))
        return stored

    return send


def _answered(node: Any, name: str, topic: str, stored: "Future[Any]") -> None:
    if node.dead or stored.cancelled():
        return
    if (error := stored.exception()) is not None:
        _failed(node, f"{name} to {topic}", error, name)
    else:
        node.recorder.acted()
        node.tell(f"{name} is stored in {topic}", name)


def _failed(node: Any, what: str, error: BaseException, *about: str) -> None:
    node.recorder.errors += 1
    node.tell(f"{what}: {error!r}", *about)


def _received(recording: Recording, real: Method) -> Method:
    @wraps(real)
    async def receive(self: Any, *args: Any, **more: Any) -> Any:
        found = await real(self, *args, **more)
        if (node := recording()) is not None:
            records = list(_records(found))
            if records:
                node.step()
            for each in records:
                name = _name(each.value)
                if self._group_id is not None:
                    node.recorder.kafka_readers[self._group_id, each.topic] = None
                node.tell(f"receives {name} from {each.topic}, offset {each.offset}", name)
        return found

    return receive


def _records(found: Any) -> Iterable[Any]:
    """Of getone and of getmany."""
    if isinstance(found, dict):
        return [each for records in found.values() for each in records]
    return [found]


def _command(recording: Recording, real: Method, what: str, ends: bool) -> Method:
    @wraps(real)
    async def command(self: Any, *args: Any, **more: Any) -> Any:
        node = recording()
        if node is None:
            return await real(self, *args, **more)
        node.step(ends=ends)
        node.tell(what)
        try:
            found = await real(self, *args, **more)
        except Exception as error:
            _failed(node, what, error)
            raise
        node.recorder.acted()
        node.tell(f"{what}: done")
        return found

    return command


@contextlib.contextmanager
def recorded_kafka_clients(recording: Recording) -> Iterator[None]:
    """`recording` returns the process whose code runs, if it is recorded. Without aiokafka, or if
    it is imported later, nothing is recorded.
    """
    found: Any = sys.modules.get(_MODULE)
    if found is None:
        yield
        return
    producer, consumer = found.AIOKafkaProducer, found.AIOKafkaConsumer
    with contextlib.ExitStack() as stack:
        for owner, name, wrapper in (
            (producer, "send", _send),
            (producer, "send_offsets_to_transaction", _of("sends offsets to its transaction")),
            (producer, "commit_transaction", _of("commits its transaction", ends=True)),
            (producer, "abort_transaction", _of("aborts its transaction", ends=True)),
            (consumer, "getone", _received),
            (consumer, "getmany", _received),
            (consumer, "commit", _of("commits offsets")),
        ):
            wrapped = wrapper(recording, getattr(owner, name))
            stack.enter_context(patch.object(owner, name, wrapped))
        yield


def _of(what: str, ends: bool = False) -> Callable[[Recording, Method], Method]:
    return partial(_command, what=what, ends=ends)


def is_of_kafka(error: BaseException) -> bool:
    """Whether aiokafka raised it on purpose."""
    return any(
        each.__name__ == "KafkaError" and each.__module__.startswith(_MODULE)
        for each in type(error).__mro__
    )
