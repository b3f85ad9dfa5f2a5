"""Settings of broker.conf that change what consumers receive."""

from typing import Any

import httpx
import pytest
from raw_client import RawClient

import pybroker.testing
from pybroker.client import Client, ConsumerType, InitialPosition, encode_batch
from pybroker.wire import pulsar_api_pb2 as pb

_T = pb.BaseCommand
TOPIC = "persistent://public/default/switched"


def acknowledge(raw: RawClient, message_id: Any, still_unacked: int, kind: int) -> None:
    part = pb.MessageIdData(
        ledgerId=message_id.ledgerId, entryId=message_id.entryId, ack_set=[still_unacked]
    )
    ack = pb.CommandAck(consumer_id=1, ack_type=kind, message_id=[part])
    assert not raw.request(_T.ACK, "ack", ack).HasField("error")


def subscribed(raw: RawClient, kind: int) -> Any:
    raw.subscribe(TOPIC, subType=kind)
    raw.flow(100)
    return raw.receive(_T.MESSAGE)


@pytest.mark.parametrize("by_index", [True, False])
@pytest.mark.parametrize("kind", [pb.CommandAck.Individual, pb.CommandAck.Cumulative])
def test_parts_of_batches_are_acknowledged_where_that_is_enabled(kind: int, by_index: bool) -> None:
    subscription = (
        pb.CommandSubscribe.Exclusive
        if kind == pb.CommandAck.Cumulative
        else pb.CommandSubscribe.Shared
    )
    with (
        pybroker.testing.broker(acknowledgment_at_batch_index_level_enabled=by_index) as broker,
        RawClient(broker.service_url) as raw,
    ):
        raw.create_producer(TOPIC)
        raw.publish(b"", 0, send_fields={"num_messages": 3}, num_messages_in_batch=3)
        got = subscribed(raw, subscription)
        acknowledge(raw, got.message_id, 0b110, kind)
        raw.close_consumer()
        again = subscribed(raw, subscription)
        assert list(again.ack_set) == ([0b110] if by_index else [])
        acknowledge(raw, again.message_id, 0, kind)
        raw.close_consumer()
        raw.subscribe(TOPIC, subType=subscription)
        raw.flow(100)
        assert raw.waiting_messages() == 0


def test_where_they_are_not_the_rest_of_what_a_transaction_acknowledged_is() -> None:
    """Clients acknowledge the rest, and say nothing of the message left out of the batch."""
    how = {
        "consumer_type": ConsumerType.Shared,
        "initial_position": InitialPosition.Earliest,
    }
    with (
        pybroker.testing.broker(acknowledgment_at_batch_index_level_enabled=False) as broker,
        Client(broker.service_url) as client,
    ):
        client.create_producer(TOPIC).send_batch(encode_batch([b"0", b"1"]))
        with client.subscribe(TOPIC, "s", **how) as consumer:
            txn = client.new_transaction()
            consumer.acknowledge(consumer.receive(1000), txn)
        with client.subscribe(TOPIC, "s", **how) as consumer:
            rest = consumer.receive(1000)
            assert rest.data() == b"1"
            consumer.acknowledge(rest)
            assert consumer.get_backlog() == 1
            txn.commit()
            assert consumer.get_backlog() == 0


@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
def test_key_shared_consumers_may_have_one_range_each(domain: str) -> None:
    topic = TOPIC.replace("persistent", domain)
    with (
        pybroker.testing.broker(
            subscription_key_shared_use_consistent_hashing=False, http=True
        ) as broker,
        RawClient(broker.service_url) as raw,
    ):
        for consumer_id in range(1, 4):
            raw.subscribe(topic, consumer_id, subType=pb.CommandSubscribe.Key_Shared)
        path = f"{broker.admin_url}/admin/v2/{topic.replace('://', '/')}/stats"
        stats = httpx.get(path).json()["subscriptions"]["raw"]
        ranges = [consumer["keyHashRanges"] for consumer in stats["consumers"]]
        assert sorted(ranges) == [["[0, 16384]"], ["[16385, 32768]"], ["[32769, 65535]"]]
