"""A task's entries, from its own client, whose event loop runs only while the task waits for them.

So no more arrives than was requested, and a query that is slow to take its rows throttles the
broker through TCP alone. A task that reads many partitions has one client for all of them, and
opens the readers of the next partitions while it waits for the entries of one.
"""

import asyncio
import contextlib
import uuid
from collections.abc import Coroutine, Sequence
from typing import Any, Final, Self, TypeVar

from pybroker.base.errors import PulsarError
from pybroker.client.consuming.entry_reader import EntryReader, StoredEntry
from pybroker.client.topic_questions import TopicQuestion, TopicState
from pybroker.spark.endpoint import Endpoint
from pybroker.spark.offsets import Position
from pybroker.spark.schemas.values import TopicSchema
from pybroker.spark.session import message_id_at, position_of
from pybroker.wire import pulsar_api_pb2 as pb

# How many stored bytes of entries are taken together.
TAKEN_BYTES: Final = 2 * 1024 * 1024
QUIET_S: Final = 1.0
# How many messages the broker sends ahead if a task reads one partition, or many.
_PERMITS: Final = 100_000
_PERMITS_OF_MANY: Final = 1000

Result = TypeVar("Result")


class TaskClient:
    def __init__(self, endpoint: Endpoint, permits: int = _PERMITS_OF_MANY) -> None:
        self._runner = asyncio.Runner()
        self._permits = permits
        self._opening: dict[tuple[str, Position], asyncio.Task[EntryReader]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        try:
            self.client = endpoint.connect_on_loop()
        except BaseException:
            self._runner.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(PulsarError):
            self.run(self._close())
        self._runner.close()

    async def _close(self) -> None:
        for opening in self._opening.values():
            opening.cancel()
        await asyncio.gather(*self._opening.values(), *self._closing, return_exceptions=True)
        await self.client.close()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Does not use `Runner.run`, which sets a signal handler around each call: for that, Python
        formats the task and its result as text, here megabytes of entries."""
        return self._runner.get_loop().run_until_complete(work)

    def open_ahead(self, topic: str, after: Position) -> None:
        """Opens a reader that will be needed soon."""
        opening = self._runner.get_loop().create_task(self._open(topic, after))
        self._opening[topic, after] = opening

    def reader(self, topic: str, after: Position) -> EntryReader:
        opening = self._opening.pop((topic, after), None)
        return self.run(self._open(topic, after) if opening is None else _ended(opening))

    def close_reader(self, reader: EntryReader) -> None:
        """Does not wait for the broker's answer until the client is closed."""
        closing = self._runner.get_loop().create_task(reader.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closed)

    def _closed(self, closing: "asyncio.Task[None]") -> None:
        self._closing.discard(closing)
        if not closing.cancelled():
            closing.exception()  # The connection, and so the reader, may be lost: no error.

    def ask(self, questions: Sequence[TopicQuestion], read_bytes: int) -> list[TopicState]:
        """Asks with a reader's permissions. Raises the client's errors."""
        name = f"reader-{uuid.uuid4().hex[:10]}"
        return self.run(self.client.ask_topics(questions, name, read_bytes=read_bytes))

    def schemas(self, versions: Sequence[tuple[str, bytes]]) -> list[TopicSchema | None]:
        """The schemas of given versions of topics."""

        async def all_of_them() -> list[pb.Schema | None]:
            return await asyncio.gather(*(self.client.get_schema(*each) for each in versions))

        found = self.run(all_of_them())
        return [None if each is None else TopicSchema.of(each) for each in found]

    async def _open(self, topic: str, after: Position) -> EntryReader:
        start = message_id_at(topic, after)
        return await self.client.create_entry_reader(topic, start, self._permits)


async def _ended(opening: "asyncio.Task[Result]") -> Result:
    return await opening


class Entries:
    """The entries of one partition after a position. Raises the client's errors."""

    def __init__(
        self, endpoint: Endpoint, topic: str, after: Position, client: TaskClient | None = None
    ) -> None:
        """Without `client` it creates its own."""
        self._topic = topic
        self._is_alone = client is None
        self._task = client or TaskClient(endpoint, _PERMITS)
        try:
            self._reader = self._task.reader(topic, after)
        except BaseException:
            if self._is_alone:
                self._task.__exit__()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_alone:
            self._task.__exit__()
        else:
            self._task.close_reader(self._reader)

    def take(self, until: Position) -> list[StoredEntry]:
        """Returns the entries that have arrived; none if nothing came for QUIET_S."""
        return self._task.run(self._reader.take(TAKEN_BYTES, until, QUIET_S))

    def unpacked(self, messages: int) -> None:
        self._reader.unpacked(messages)

    def schema(self, version: bytes) -> TopicSchema | None:
        """The topic's schema of a given version."""
        found = self._task.run(self._task.client.get_schema(self._topic, version))
        return None if found is None else TopicSchema.of(found)

    def last_position(self) -> Position:
        """The last deliverable entry; entry -1 if there is none."""
        return position_of(self._task.run(self._reader.last_message_id()))
