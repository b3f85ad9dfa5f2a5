"""A chunked message whose beginning lies before what a task reads; no Spark."""

import pytest

from pybroker.client import Client, ConnectError, InitialPosition, Outgoing, encode_batch
from pybroker.client.consuming.entry_reader import StoredEntry
from pybroker.spark.columns.shape import Shape, default_schema
from pybroker.spark.endpoint import Endpoint
from pybroker.spark.offsets import Position, Span
from pybroker.spark.reading import chunked, spans
from pybroker.spark.reading.entries import Entries
from pybroker.spark.reading.spans import Reading, Work, read_span
from pybroker.spark.session import position_of

TOPIC = "persistent://public/default/in"
LARGE = bytes(range(256)) * 50_000


@pytest.fixture
def read_last_chunk(pulsar_broker, monkeypatch):
    """What a task reads that has the last of three chunks only, behind another message."""
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
    """Entries as a slow broker sends them."""

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
            if len(taken) == 2:  # the first chunk among them
                taken.append(None)
                raise ConnectError("lost")
            taken.append(until)
            return super().take(until)

    monkeypatch.setattr(chunked, "Entries", Lost)
    assert read_last_chunk() == [LARGE]
    assert None in taken


@pytest.mark.parametrize("fail_on_data_loss", [True, False])
def test_a_damaged_entry_before_them_is_nobodys_loss(
    read_last_chunk, monkeypatch, fail_on_data_loss
):
    class Damaged(Entries):
        def take(self, until):
            return [
                each._replace(data=each.data[:-1]) if each.data.endswith(b"before") else each
                for each in super().take(until)
            ]

    monkeypatch.setattr(chunked, "Entries", Damaged)
    assert read_last_chunk(fail_on_data_loss) == [LARGE]
