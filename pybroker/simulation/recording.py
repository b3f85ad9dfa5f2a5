"""Records how the user's processes use `pybroker.client.aio`, by wrapping its methods.

It records only while a simulation runs, and only on loops that have a `recorder`. A wrapper adds no
await of its own, so the code runs as it does without it.
"""

import contextlib
import math
from asyncio import events
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import wraps
from typing import Any
from unittest.mock import patch

from pybroker.client.aio import Consumer, Message, Producer, Transaction
from pybroker.client.producing.partitions_producer import PartitionsProducer
from pybroker.client.scalable.producer import ScalableProducer
from pybroker.client.transactions.coordinator import Coordinators
from pybroker.simulation.coverage import Strikes
from pybroker.simulation.declaring import full_name
from pybroker.simulation.events import Events
from pybroker.simulation.judging import SeenTransaction, shown
from pybroker.simulation.recording_kafka import recorded_kafka_clients
from pybroker.simulation.story import Event


class Recorder:
    """The events of one seed, and when processes took their first and last relevant actions."""

    def __init__(self, world: Events) -> None:
        self._world = world
        self.events: list[Event] = []
        self.transactions: dict[Any, SeenTransaction] = {}
        self.errors = 0  # commands that failed
        self.kafka_readers: dict[tuple[str, str], None] = {}  # groups, and topics they have read
        self.strikes = Strikes()
        self.first_action_s = math.inf
        self.last_action_s = 0.0

    def tell(self, who: str, text: str, *about: str, always: bool = False) -> None:
        self.events.append(Event(self._world.now, who, text, about, always))

    def acted(self) -> None:
        self.last_action_s = self._world.now
        self.first_action_s = min(self.first_action_s, self.last_action_s)

    def transaction(self, txn: Transaction) -> SeenTransaction:
        name = _txn_name(txn)
        return self.transactions.setdefault(txn.txn_id, SeenTransaction(name))


def _recording() -> Any:
    loop = events._get_running_loop()
    alive = not getattr(loop, "dead", True)  # the cleanup of a dead process has no effect
    return loop if alive and getattr(loop, "recorder", None) is not None else None


def _txn_name(txn: Transaction) -> str:
    return f"({txn.txn_id[0]},{txn.txn_id[1]})"


def _plain(topic: str) -> str:
    return topic.removeprefix("persistent://public/default/")


def _in(txn: Transaction | None) -> str:
    return "" if txn is None else f" in transaction {_txn_name(txn)}"


def _about(txn: Transaction | None, *names: str) -> tuple[str, ...]:
    return names if txn is None else (*names, _txn_name(txn))


def _names(messages: Any) -> tuple[str, ...]:
    if isinstance(messages, Message):
        return (shown(messages.data()),)
    if isinstance(messages, Iterable) and not isinstance(messages, str | bytes):
        return tuple(name for each in messages for name in _names(each))
    return (str(messages),)


def _send_message(real: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @wraps(real)
    async def send_message(self: Producer, message: Any, txn: Transaction | None = None) -> Any:
        node = _recording()
        if node is None:
            return await real(self, message, txn)
        name, topic = shown(message[0]), _plain(self.topic())
        node.step()
        node.tell(f"sends {name} to {topic}{_in(txn)}", *_about(txn, name))
        try:
            message_id = await real(self, message, txn)
        except Exception as error:
            node.recorder.errors += 1
            node.tell(f"{name} to {topic}: {error!r}", *_about(txn, name))
            raise
        node.recorder.acted()
        node.tell(f"{name} is stored in {topic}{_in(txn)}", *_about(txn, name))
        if txn is not None:
            place = (message_id.ledger_id(), message_id.entry_id(), message_id.batch_index())
            stored = message_id.topic_name() or full_name(self.topic()), place, name
            node.recorder.transaction(txn).stored.append(stored)
        return message_id

    return send_message


def _submit(real: Callable[..., None]) -> Callable[..., None]:
    @wraps(real)
    def submit(self: Producer, message: Any, txn: Transaction | None, done: Any) -> None:
        if (node := _recording()) is not None:
            name = shown(message[0])
            node.step()
            text = f"sends {name} to {_plain(self.topic())}{_in(txn)}, without waiting"
            node.tell(text, *_about(txn, name))
        real(self, message, txn, done)

    return submit


def _receive(real: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @wraps(real)
    async def receive(self: Consumer, timeout_millis: int | None = None) -> Message:
        message: Message = await real(self, timeout_millis)
        _received([message])
        return message

    return receive


def _batch_receive(real: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @wraps(real)
    async def batch_receive(self: Consumer) -> list[Message]:
        messages: list[Message] = await real(self)
        _received(messages)
        return messages

    return batch_receive


def _received(messages: list[Message]) -> None:
    if (node := _recording()) is not None:
        node.step()
        for message in messages:
            name = shown(message.data())
            again = f", time {message.redelivery_count() + 1}" if message.redelivery_count() else ""
            node.tell(f"receives {name} from {_plain(message.topic_name())}{again}", name)


def _acknowledge(real: Callable[..., Awaitable[Any]], how: str) -> Callable[..., Awaitable[Any]]:
    @wraps(real)
    async def acknowledge(self: Consumer, message: Any, txn: Transaction | None = None) -> None:
        node = _recording()
        if node is not None:
            names = _names(message)
            node.step()
            text = f"acknowledges {how}{', '.join(names)}{_in(txn)}"
            node.tell(text, *_about(txn, *names))
        try:
            await real(self, message, txn)
        except Exception as error:
            if node is not None:
                node.recorder.errors += 1
                node.tell(f"acknowledgement: {error!r}", *_about(txn, *names))
            raise

    return acknowledge


def _negative(real: Callable[..., None]) -> Callable[..., None]:
    @wraps(real)
    def negative_acknowledge(self: Consumer, message: Any) -> None:
        if (node := _recording()) is not None:
            names = _names(message)
            node.tell(f"gives {', '.join(names)} back", *names)
        real(self, message)

    return negative_acknowledge


def _new_transaction(real: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @wraps(real)
    async def new_transaction(self: Coordinators, *args: Any, **kwargs: Any) -> Transaction:
        txn: Transaction = await real(self, *args, **kwargs)
        if (node := _recording()) is not None:
            node.recorder.transaction(txn)
            node.tell(f"begins transaction {_txn_name(txn)}", _txn_name(txn))
        return txn

    return new_transaction


def _ending(
    real: Callable[..., Awaitable[Any]], verb: str, committed: bool
) -> Callable[..., Awaitable[Any]]:
    @wraps(real)
    async def end(self: Transaction, *args: Any, **kwargs: Any) -> None:
        node = _recording()
        if node is None:
            await real(self, *args, **kwargs)
            return
        name = _txn_name(self)
        node.step(ends=True)
        node.tell(f"{verb}s transaction {name}", name)
        try:
            await real(self, *args, **kwargs)
        except Exception as error:
            node.recorder.errors += 1
            node.tell(f"{verb} of {name}: {error!r}", name)
            raise
        node.recorder.acted()
        node.recorder.transaction(self).committed = committed
        node.tell(f"transaction {name} is {verb}{'t' * committed}ed", name)

    return end


@contextlib.contextmanager
def recorded_clients() -> Iterator[None]:
    """Within the block, clients on loops with a recorder are recorded."""
    with contextlib.ExitStack() as stack:
        for owner, name, wrapper in (
            (PartitionsProducer, "send_message", _send_message),
            (PartitionsProducer, "submit", _submit),
            (ScalableProducer, "send_message", _send_message),
            (ScalableProducer, "submit", _submit),
            (Consumer, "receive", _receive),
            (Consumer, "batch_receive", _batch_receive),
            (Consumer, "acknowledge", lambda real: _acknowledge(real, "")),
            (Consumer, "acknowledge_cumulative", lambda real: _acknowledge(real, "all up to ")),
            (Consumer, "negative_acknowledge", _negative),
            (Coordinators, "new_transaction", _new_transaction),
            (Transaction, "commit", lambda real: _ending(real, "commit", True)),
            (Transaction, "abort", lambda real: _ending(real, "abort", False)),
        ):
            wrapped = wrapper(getattr(owner, name))
            stack.enter_context(patch.object(owner, name, wrapped))
        stack.enter_context(recorded_kafka_clients(_recording))
        yield
