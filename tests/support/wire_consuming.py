"""Common steps of tests of consumers on the wire."""

from typing import Any

from raw_client import RawClient

from pybroker.wire import pulsar_api_pb2 as pb

_T = pb.BaseCommand


def fill(raw: RawClient, topic: str, count: int) -> list[Any]:
    """Publish `count` messages with publish times 1000, 1001, …; returns their ids."""
    raw.create_producer(topic)
    return [raw.publish(b"x", n, publish_time=1000 + n).message_id for n in range(count)]


def fill_batches(raw: RawClient, topic: str, count: int, size: int) -> list[Any]:
    raw.create_producer(topic)
    fields = {"num_messages": size}
    return [
        raw.publish(b"x", n * size, send_fields=fields, num_messages_in_batch=size).message_id
        for n in range(count)
    ]


def entry_ids(raw: RawClient, count: int) -> list[int]:
    return [message.message_id.entryId for message in raw.messages(count)]


def reader(raw: RawClient, topic: str, start: Any, consumer_id: int = 1, **fields: Any) -> Any:
    return raw.subscribe(topic, consumer_id, durable=False, start_message_id=start, **fields)


def ack(raw: RawClient, *ids: Any, kind: Any = pb.CommandAck.Individual) -> Any:
    body = pb.CommandAck(consumer_id=1, ack_type=kind, message_id=ids)
    return raw.request(_T.ACK, "ack", body)


def seek(raw: RawClient, **where: Any) -> Any:
    return raw.request(_T.SEEK, "seek", pb.CommandSeek(consumer_id=1, **where))


def consumer_stats(raw: RawClient) -> Any:
    asked = pb.CommandConsumerStats(consumer_id=1)
    return raw.request(_T.CONSUMER_STATS, "consumerStats", asked)
