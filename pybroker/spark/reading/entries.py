"""A task's entries: a client of its own, whose event loop runs only while the task waits for them.

So what has arrived is bounded by what was asked for, and a query that is slow to take its rows
holds the broker back by TCP alone.
"""

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, Final, Self, TypeVar

from pybroker.client.consuming.entry_reader import EntryReader, StoredEntry
from pybroker.errors import PulsarError
from pybroker.spark.endpoint import Endpoint
from pybroker.spark.offsets import Position
from pybroker.spark.schemas.values import TopicSchema
from pybroker.spark.session import message_id_at, position_of

# Entries are taken together up to so many bytes, as they are stored.
TAKEN_BYTES: Final = 2 * 1024 * 1024
QUIET_S: Final = 1.0

Result = TypeVar("Result")


class Entries:
    """Those of one partition behind a position. Raises what the client raises."""

    def __init__(self, endpoint: Endpoint, topic: str, after: Position) -> None:
        self._runner = asyncio.Runner()
        self._topic = topic
        self._reader: EntryReader | None = None
        try:
            self._client = endpoint.connect_on_loop()
            self._reader = self._run(
                self._client.create_entry_reader(topic, message_id_at(topic, after))
            )
        except BaseException:
            self._runner.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(PulsarError):
            self._run(self._client.close())
        self._runner.close()

    def take(self, until: Position) -> list[StoredEntry]:
        """Empty if nothing came for QUIET_S."""
        return self._run(self._of_reader.take(TAKEN_BYTES, until, QUIET_S))

    def unpacked(self, messages: int) -> None:
        self._of_reader.unpacked(messages)

    def schema(self, version: bytes) -> TopicSchema | None:
        """That which the topic had in a version."""
        found = self._run(self._client.get_schema(self._topic, version))
        return None if found is None else TopicSchema.of(found)

    def last_position(self) -> Position:
        """Entry -1 if there is none."""
        return position_of(self._run(self._of_reader.last_message_id()))

    @property
    def _of_reader(self) -> EntryReader:
        assert self._reader is not None
        return self._reader

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Not `Runner.run`: around each call that sets a signal handler, for which Python makes a
        text of the task and its result, of megabytes of entries here."""
        return self._runner.get_loop().run_until_complete(work)
