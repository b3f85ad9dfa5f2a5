"""Broker entry metadata: only clients that support it receive it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from raw_client import RawClient

import pybroker.testing
from pybroker.broker.persistent.entry_metadata import INDEX, TIMESTAMP
from pybroker.process.app import StartFailed
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.message_metadata import payload_of, without_broker_metadata

TOPIC = "persistent://public/default/stamped"
SETTINGS: dict[str, Any] = {
    "broker_entry_metadata_interceptors": (TIMESTAMP, INDEX),
    "exposing_broker_entry_metadata_to_client_enabled": True,
}


@contextmanager
def client(sees: bool = True, data_dir: Path | None = None, **settings: Any) -> Iterator[RawClient]:
    flags = pb.FeatureFlags(supports_broker_entry_metadata=sees)
    with (
        pybroker.testing.broker(data_dir=data_dir, **(SETTINGS | settings)) as broker,
        RawClient(broker.service_url, feature_flags=flags) as raw,
    ):
        yield raw


def metadata_of(entry: bytes) -> pb.BrokerEntryMetadata:
    size = len(entry) - len(without_broker_metadata(entry)) - 6
    return pb.BrokerEntryMetadata.FromString(entry[6 : 6 + size])


def received(raw: RawClient, count: int, **fields: Any) -> list[bytes]:
    raw.subscribe(TOPIC, **fields)
    raw.flow(100)
    entries = []
    for _ in range(count):
        raw.receive(pb.BaseCommand.MESSAGE)
        entries.append(raw.entry)
    return entries


def publish_some(raw: RawClient) -> None:
    """Publishes a message, a batch of three, and a message."""
    raw.create_producer(TOPIC)
    raw.publish(b"a", 0)
    raw.publish(b"bcd", 1, send_fields={"num_messages": 3}, num_messages_in_batch=3)
    raw.publish(b"e", 4)


def test_who_may_see_it_is_told_the_time_and_the_last_messages_number() -> None:
    with client() as raw:
        publish_some(raw)
        entries = received(raw, 3)
    found = [metadata_of(entry) for entry in entries]
    assert [metadata.index for metadata in found] == [0, 3, 4]
    assert all(metadata.broker_timestamp > 0 for metadata in found)
    assert [payload_of(entry) for entry in entries] == [b"a", b"bcd", b"e"]


@pytest.mark.parametrize("kind", [pb.CommandSubscribe.Exclusive, pb.CommandSubscribe.Key_Shared])
@pytest.mark.parametrize("exposed", [True, False])
def test_others_get_entries_as_they_were_sent(exposed: bool, kind: int) -> None:
    settings = {"exposing_broker_entry_metadata_to_client_enabled": exposed}
    with client(sees=not exposed, **settings) as raw:
        publish_some(raw)
        entries = received(raw, 3, subType=kind)
        assert all(entry == without_broker_metadata(entry) for entry in entries)
        asked = pb.CommandGetLastMessageId(consumer_id=1)
        kind_of = pb.BaseCommand.GET_LAST_MESSAGE_ID
        last = raw.request(kind_of, "getLastMessageId", asked).last_message_id
        assert (last.entryId, last.batch_index) == (2, -1)


def test_numbers_go_on_over_a_restart_and_for_messages_of_transactions(tmp_path: Path) -> None:
    with client(data_dir=tmp_path) as raw:
        publish_some(raw)
    with client(data_dir=tmp_path) as raw:
        raw.create_producer(TOPIC)
        txn_id = raw.new_txn()
        raw.add_partition(txn_id, TOPIC)
        raw.publish(b"f", 5, txn_id)
        raw.end(txn_id, commit=True)
        raw.publish(b"g", 6)
        entries = received(raw, 5)
    indexes = [metadata_of(entry).index for entry in entries]
    assert indexes == [0, 3, 4, 5, 6]  # a marker has no index


def test_what_was_stored_with_it_is_served_when_it_is_switched_off(tmp_path: Path) -> None:
    with client(data_dir=tmp_path) as raw:
        publish_some(raw)
    with client(data_dir=tmp_path, broker_entry_metadata_interceptors=()) as raw:
        raw.create_producer(TOPIC)
        raw.publish(b"f", 5)
    with client(data_dir=tmp_path, sees=False) as raw:
        entries = received(raw, 4)
    assert [payload_of(entry) for entry in entries] == [b"a", b"bcd", b"e", b"f"]
    assert all(entry == without_broker_metadata(entry) for entry in entries)


def test_the_time_alone_may_be_asked_for() -> None:
    with client(broker_entry_metadata_interceptors=(TIMESTAMP,)) as raw:
        publish_some(raw)
        found = metadata_of(received(raw, 3)[0])
    assert found.HasField("broker_timestamp") and not found.HasField("index")


def test_an_unknown_interceptor_stops_the_start() -> None:
    with (
        pytest.raises(StartFailed, match="brokerEntryMetadataInterceptors"),
        pybroker.testing.broker(broker_entry_metadata_interceptors=("my.Own",)),
    ):
        pass


def test_a_client_cannot_number_its_messages_itself(tmp_path: Path) -> None:
    """Its forged index is refused, and the broker's own numbers begin at 0."""
    forged = pb.BrokerEntryMetadata(index=2**64 - 1).SerializeToString()
    entry = b"\x0e\x02" + len(forged).to_bytes(4, "big") + forged + bytes(20)
    with client(data_dir=tmp_path, broker_entry_metadata_interceptors=()) as raw:
        raw.create_producer(TOPIC)
        send = pb.CommandSend(producer_id=1, sequence_id=0)
        raw.send(pb.BaseCommand.SEND, "send", send, entry)
        refused = raw.receive(pb.BaseCommand.SEND_RECEIPT, pb.BaseCommand.SEND_ERROR)
        assert refused.error == pb.ChecksumError
    with client(data_dir=tmp_path) as raw:
        raw.create_producer(TOPIC)
        raw.publish(b"a", 1)
        (stored,) = received(raw, 1, initialPosition=pb.CommandSubscribe.Earliest)
    assert metadata_of(stored).index == 0
