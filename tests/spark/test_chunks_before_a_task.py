"""A chunked message that begins before the span of a task; no Spark."""

import pytest

from pybroker.client import Client, ConnectError, InitialPosition, Outgoing, encode_batch
from pybroker.client.consuming.entry_reader import StoredEntry
from pybroker.spark.columns.shape import Shape, default_schema
from pybroker.spark.columns.slab import read_heads
from pybroker.spark.endpoint import Endpoint
from pybroker.spark.offsets import Position, Span
from pybroker.spark.reading import chunked, spans
from pybroker.spark.reading.chunked import Chunks
from pybroker.spark.reading.entries import Entries
from pybroker.spark.reading.spans import Reading, read_span
from pybroker.spark.reading.work import Work
from pybroker.spark.session import position_of
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.message_metadata import build_entry

TOPIC = "persistent://public/default/in"
LARGE = bytes(range(256)) * 50_000


@pytest.fixture
def read_last_chunk(pulsar_broker, monkeypatch):
    """The reads of a task with only the last of three chunks, which follow another message."""
    monkeypatch.setattr(spans, "PAUSE_S", 0)
    with Client(pulsar_broker.service_url) as client:
        client.subscribe(TOPIC, "keep", initial_position=InitialPosition.Earliest).close()
        client.create_producer(TOPIC).send_batch(encode_batch([Outgoing(b"before")]))
        to = position_of(client.create_producer(TOPIC, chunking_enabled=True).send(LARGE))

    def read(fail_on_data_loss=True):
        reading = Reading(
            Endpoint(pulsar_broker.service_url), Shape.of(default_schema()), fail_on_data_loss
        )
        work = Work(TOPIC, Span(Position(to.ledger_id, to.entry_id - 1), to))
        return [row["value"] for batch in read_span(reading, work) for row in batch.to_pylist()]

    return read


class OneByOne(Entries):
    """Entries one by one, as from a slow broker."""

    def __init__(self, *given):
        super().__init__(*given)
        self.waiting: list[StoredEntry] = []

    def take(self, until):
        self.waiting = self.waiting or super().take(until)
        taken, self.waiting = self.waiting[:1], self.waiting[1:]
        return taken


def test_chunks_that_are_slow_to_come_are_waited_for(read_last_chunk, monkeypatch):
    class Slow(OneByOne):
        quiet = True

        def take(self, until):
            self.quiet = not self.quiet
            return [] if self.quiet else super().take(until)

    monkeypatch.setattr(chunked, "Entries", Slow)
    assert read_last_chunk() == [LARGE]


def test_a_connection_that_is_lost_between_chunks_loses_no_message(read_last_chunk, monkeypatch):
    taken = []

    class Lost(OneByOne):
        def take(self, until):
            if len(taken) == 2:  # including the first chunk
                taken.append(None)
                raise ConnectError("lost")
            taken.append(until)
            return super().take(until)

    monkeypatch.setattr(chunked, "Entries", Lost)
    assert read_last_chunk() == [LARGE]
    assert None in taken


@pytest.mark.parametrize("fail_on_data_loss", [True, False])
def test_a_damaged_entry_before_them_loses_nothing(read_last_chunk, monkeypatch, fail_on_data_loss):
    class Damaged(Entries):
        def take(self, until):
            return [
                each._replace(data=each.data[:-1]) if each.data.endswith(b"before") else each
                for each in super().take(until)
            ]

    monkeypatch.setattr(chunked, "Entries", Damaged)
    assert read_last_chunk(fail_on_data_loss) == [LARGE]


def chunks_of(*contents: tuple[int, bytes]) -> list[StoredEntry]:
    """The chunks of messages with the same name, three chunks each."""
    described = {"producer_name": "p", "sequence_id": 0, "publish_time": 1, "uuid": "p-0"}
    return [
        StoredEntry(
            1,
            entry_id,
            build_entry(
                pb.MessageMetadata(
                    **described, chunk_id=number, num_chunks_from_msg=3, total_chunk_msg_size=3
                ),
                content,
            ),
        )
        for entry_id, (number, content) in enumerate(contents)
    ]


@pytest.mark.parametrize("first_read", [0, 3, 4])
def test_of_two_messages_of_one_name_no_part_is_put_to_the_other(monkeypatch, first_read):
    """A producer that dies between two chunks may reuse the name for its next message."""
    entries = chunks_of((0, b"X"), (1, b"Y"), (0, b"0"), (1, b"1"), (2, b"2"))

    class Earlier:
        def __init__(self, endpoint, topic, after):
            self.left = entries[:]

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def take(self, until):
            taken, self.left = self.left, []
            return taken

        def unpacked(self, messages):
            pass

        def last_position(self):
            return Position(1, -1)

    monkeypatch.setattr(chunked, "Entries", Earlier)
    heads = read_heads(entries[first_read:])
    chunks = Chunks(Endpoint("pulsar://nowhere"), TOPIC)
    found = [chunks.add(heads, index) for index in range(len(heads.entries))]
    assert found[-1] == b"012"
    assert not any(found[:-1])
