"""A task's reads of a span, with a broker in this process; no Spark."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from pybroker.client import (
    Client,
    CryptoError,
    CryptoKeyReader,
    InitialPosition,
    Outgoing,
    encode_batch,
)
from pybroker.client.consuming.entry_reader import StoredEntry
from pybroker.spark.columns.shape import Shape, default_schema
from pybroker.spark.endpoint import Endpoint
from pybroker.spark.offsets import Position, Span
from pybroker.spark.reading.spans import Reading, read_span
from pybroker.spark.reading.work import Work
from pybroker.spark.replay import InputLost
from pybroker.spark.session import position_of

TOPIC = "persistent://public/default/in"


@pytest.fixture
def client(pulsar_broker):
    with Client(pulsar_broker.service_url) as client:
        client.subscribe(TOPIC, "keep", initial_position=InitialPosition.Earliest).close()
        yield client


@pytest.fixture
def read(pulsar_broker):
    def read(after, to):
        reading = Reading(Endpoint(pulsar_broker.service_url), Shape.of(default_schema()))
        batches = read_span(reading, Work(TOPIC, Span(after, to)))
        return [row for batch in batches for row in batch.to_pylist()]

    return read


def before(position):
    return Position(position.ledger_id, position.entry_id - 1)


def sent(client, *messages):
    """Publish messages, each in its own entry; returns the positions."""
    producer = client.create_producer(TOPIC)
    return [position_of(producer.send_batch(encode_batch([each]))) for each in messages]


def test_a_span_ends_at_its_entry_though_more_is_there(client, read):
    places = sent(client, *[Outgoing(b"%d" % number) for number in range(5)])
    values = [row["value"] for row in read(places[0], places[2])]
    assert values == [b"1", b"2"]


def test_reading_does_not_format_entries_as_text(client, read, monkeypatch):
    """asyncio.Runner would format each result for a signal handler: a quarter of a reader's CPU."""
    texts = []
    monkeypatch.setattr(StoredEntry, "__repr__", lambda entry: texts.append(entry) or "an entry")
    places = sent(client, *[Outgoing(b"%d" % number) for number in range(5)])
    assert len(read(before(places[0]), places[-1])) == 5
    assert not texts


def test_null_values_and_empty_keys_are_told_from_empty_values_and_none(client, read):
    messages = [
        Outgoing(b"", partition_key="gone", null_value=True),
        Outgoing(b"", partition_key=""),
        Outgoing(b"v"),
    ]
    places = sent(client, *messages)
    rows = read(before(places[0]), places[-1])
    assert [(row["__key"], row["value"]) for row in rows] == [
        (b"gone", None),
        (b"", b""),
        (None, b"v"),
    ]


def test_a_null_value_is_one_without_a_batch_too(client, read):
    producer = client.create_producer(TOPIC)
    producer._thread.call(producer._core.send_message(Outgoing(b"", null_value=True), None))
    place = Position(*position_of(client.subscribe(TOPIC, "keep").get_last_message_id()))
    [row] = read(before(place), place)
    assert row["value"] is None


def test_a_span_whose_end_is_gone_is_an_error(client, read):
    [place] = sent(client, Outgoing(b"v"))
    beyond = Position(place.ledger_id, place.entry_id + 7)
    with pytest.raises(InputLost, match="To continue without them, set failOnDataLoss=false"):
        read(before(place), beyond)


def key_reader(folder: Path) -> CryptoKeyReader:
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = serialization.Encoding.PEM
    (folder / "private.pem").write_bytes(
        private.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    (folder / "public.pem").write_bytes(
        private.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    return CryptoKeyReader(str(folder / "public.pem"), str(folder / "private.pem"))


@pytest.mark.parametrize("batching", [False, True])
def test_an_encrypted_message_is_an_error_that_names_it(client, read, tmp_path, batching):
    keys = key_reader(tmp_path)
    producer = client.create_producer(
        TOPIC, encryption_key="k", crypto_key_reader=keys, batching_enabled=batching
    )
    place = position_of(producer.send(b"secret"))
    with pytest.raises(CryptoError, match=f"The entry {place}.* is encrypted"):
        read(before(place), place)


def test_an_encrypted_message_behind_the_span_does_not_matter(client, read, tmp_path):
    [place] = sent(client, Outgoing(b"clear"))
    keys = key_reader(tmp_path)
    client.create_producer(TOPIC, encryption_key="k", crypto_key_reader=keys).send(b"secret")
    assert [row["value"] for row in read(before(place), place)] == [b"clear"]
