"""Reads many small partitions in a task without a reader on any of them.

A broker that answers questions about many topics also returns short spans, a few hundred per
answer, which become columns together. Spans that the broker does not return, and messages that are
not simple (chunked, encrypted, damaged, not matching their schema), are left to a reader for each
partition (`spans`), which also reports any errors.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from pybroker.base.errors import PulsarError
from pybroker.base.names import TopicName
from pybroker.client.consuming.entry_reader import StoredEntry
from pybroker.client.topic_questions import TopicQuestion, TopicState
from pybroker.spark.columns.arrays import binaries
from pybroker.spark.columns.fields import Ints
from pybroker.spark.columns.shape import Origin, Shape
from pybroker.spark.columns.slab import Heads, read_heads, slab_of
from pybroker.spark.reading.entries import TaskClient
from pybroker.spark.reading.work import Work
from pybroker.spark.schemas.values import TopicSchema, Versions
from pybroker.spark.session import BROKER_AWAY

# How many spans are requested together, at first and at most; how many bytes an answer has at most,
# and how many uncompressed bytes become columns together.
_FIRST: Final = 100
_MOST: Final = 500
_ANSWER_BYTES: Final = 1024 * 1024
_UNPACKED_BYTES: Final = 32 * 1024 * 1024


class Part(NamedTuple):
    """A task's result: the columns made, and what is left to readers."""

    batches: Sequence[pa.RecordBatch]
    left: Sequence[Work]


class _Given(NamedTuple):
    work: Work
    entries: Sequence[StoredEntry]


class _NotSimple(PulsarError):
    """This needs a reader."""


def read_short(client: TaskClient, shape: Shape, works: Sequence[Work]) -> Iterator[Part]:
    """Reads all works: those that the broker returns, in order, then leaves the rest."""
    plain = [work for work in works if work.is_plain]
    columns = _Columns(client, shape)
    at, count = 0, _FIRST
    while at < len(plain):
        some = plain[at : at + count]
        answered = _answered(client, some)
        if not answered:
            break
        pairs = list(zip(some, answered, strict=False))
        given = [_Given(work, state.entries) for work, state in pairs if state.is_read]
        batches, unread = columns.of(given) if given else ([], [])
        yield Part(batches, [work for work, state in pairs if not state.is_read] + unread)
        at += len(answered)
        count = min(_MOST, 2 * len(answered))
    yield Part((), [work for work in works if not work.is_plain] + plain[at:])


def _answered(client: TaskClient, works: Sequence[Work]) -> Sequence[TopicState]:
    """The answers about the first of `works`; none if the broker returns no entries."""
    questions = [
        TopicQuestion(work.topic, after=work.span.after, read_to=work.span.to) for work in works
    ]
    try:
        states = client.ask(questions, _ANSWER_BYTES)
    except PulsarError:
        return ()  # A reader finds out why, and retries.
    for at, state in enumerate(states):
        if state.is_read is None and state.error is None:
            return states[:at]
    return states


class _Columns:
    def __init__(self, client: TaskClient, shape: Shape) -> None:
        self._client = client
        self._shape = shape
        self._schemas: dict[tuple[str, bytes], TopicSchema | None] = {}

    def of(self, given: Sequence[_Given]) -> tuple[list[pa.RecordBatch], list[Work]]:
        """Batches of the simple works, made together, and the other works."""
        try:
            return [self._batch(given)], []
        except BROKER_AWAY:
            return [], [each.work for each in given]
        except PulsarError:
            if len(given) == 1:
                return [], [given[0].work]
        half = len(given) // 2
        first, second = self.of(given[:half]), self.of(given[half:])
        return first[0] + second[0], first[1] + second[1]

    def _batch(self, given: Sequence[_Given]) -> pa.RecordBatch:
        heads = read_heads([entry for each in given for entry in each.entries])
        if heads.is_chunk.any() or heads.is_encrypted.any():
            raise _NotSimple("There are chunked or encrypted messages")
        if np.maximum(heads.number("uncompressed_size"), 0).sum() > _UNPACKED_BYTES:
            raise _NotSimple("There are too many bytes")
        counts = [len(each.entries) for each in given]
        of_entry = np.repeat(np.arange(len(given)), counts)
        slab = slab_of(heads, [None] * len(heads.entries))
        topics = [TopicName.parse(each.work.topic) for each in given]
        versions = self._versions(given, heads, of_entry)
        return self._shape.batch(slab, Origin(topics, of_entry[slab.of_entry]), versions)

    def _versions(self, given: Sequence[_Given], heads: Heads, of_entry: Ints) -> Versions:
        """Raises _NotSimple if a version means different schemas in different topics."""
        if self._shape.topic_schema is None:
            return lambda version: None
        names = binaries(heads.data, heads.slices("schema_version")).to_pylist()
        topics = [given[at].work.topic for at in of_entry.tolist()]
        pairs = dict.fromkeys((t, name) for t, name in zip(topics, names, strict=True) if name)
        unknown = [pair for pair in pairs if pair not in self._schemas]
        self._schemas |= dict(zip(unknown, self._client.schemas(unknown), strict=True))
        found: dict[bytes, TopicSchema | None] = {}
        for topic, name in pairs:
            schema = self._schemas[topic, name]
            if found.setdefault(name, schema) != schema:
                raise _NotSimple(f"Version {name.hex()} is a different schema in {topic}")
        return found.get
