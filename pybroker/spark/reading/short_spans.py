"""What a task reads of many partitions with little in each, without a reader on any of them.

A broker that answers questions about many topics hands short spans over as well, some hundred in
an answer, and they become columns together. What it does not hand over, and what is not as simple
as most messages are (in chunks, encrypted, damaged, not to be read by its schema), is left to a
reader for each partition (`spans`), which also says whatever is to be said of it.
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

# How many are asked for together, at first and at most; how many bytes come in an answer, and
# become columns together.
_FIRST: Final = 100
_MOST: Final = 500
_ANSWER_BYTES: Final = 1024 * 1024
_UNPACKED_BYTES: Final = 32 * 1024 * 1024


class Part(NamedTuple):
    """Of a task: what was made columns of, and what readers have to read."""

    batches: Sequence[pa.RecordBatch]
    left: Sequence[Work]


class _Given(NamedTuple):
    work: Work
    entries: Sequence[StoredEntry]


class _NotSimple(PulsarError):
    """A reader has to read it."""


def read_short(client: TaskClient, shape: Shape, works: Sequence[Work]) -> Iterator[Part]:
    """All works: what is handed over in their order, what is left behind it."""
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
    """Of the first of these; of none, if the broker hands nothing over."""
    questions = [
        TopicQuestion(work.topic, after=work.span.after, read_to=work.span.to) for work in works
    ]
    try:
        states = client.ask(questions, _ANSWER_BYTES)
    except PulsarError:
        return ()  # A reader finds out why, and is patient.
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
        """Of what is simple together; and the rest."""
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
            raise _NotSimple("There are messages in chunks, or encrypted ones")
        if np.maximum(heads.number("uncompressed_size"), 0).sum() > _UNPACKED_BYTES:
            raise _NotSimple("There are many bytes")
        counts = [len(each.entries) for each in given]
        of_entry = np.repeat(np.arange(len(given)), counts)
        slab = slab_of(heads, [None] * len(heads.entries))
        topics = [TopicName.parse(each.work.topic) for each in given]
        versions = self._versions(given, heads, of_entry)
        return self._shape.batch(slab, Origin(topics, of_entry[slab.of_entry]), versions)

    def _versions(self, given: Sequence[_Given], heads: Heads, of_entry: Ints) -> Versions:
        """Raises _NotSimple where a version has one meaning here and another one there."""
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
                raise _NotSimple(f"Version {name.hex()} is another one in {topic}")
        return found.get
