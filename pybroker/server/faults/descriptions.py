"""Describes a command, or messages, at a fault point."""

from collections.abc import Sequence
from typing import Any, Final

from pybroker.base.names import TxnId
from pybroker.broker.persistent.producers import Producer
from pybroker.faults.passing import Passing
from pybroker.server.connections.connection import Connection
from pybroker.server.consuming.on_acknowledge import position_of
from pybroker.wire import pulsar_api_pb2 as pb

_T: Final = pb.BaseCommand
# Their consumer ids are not those of consumers that exist.
_OTHER_IDS: Final = frozenset(
    {_T.SUBSCRIBE, _T.SCALABLE_TOPIC_SUBSCRIBE, _T.SCALABLE_TOPIC_UNSUBSCRIBE}
)
_MAX_POSITIONS: Final = 1000


def of_command(session: Connection, kind: int, body: Any, point: str) -> Passing:
    """`body` is the command's body as sent: its names may be any text."""
    passing = Passing(point, connection=session.number, client=session.peer)
    passing.topic = _text(body, "topic")
    passing.subscription = _text(body, "subscription")
    passing.producer = _text(body, "producer_name")
    if hasattr(body, "consumer_id") and kind not in _OTHER_IDS:
        consumer = session.consumers.get(body.consumer_id)
        if consumer is not None:
            passing.topic = str(consumer.topic.name)
            passing.subscription = consumer.subscription.name
    if kind == _T.CLOSE_PRODUCER:
        producer = session.producers.get(body.producer_id)
        if producer is not None:
            passing.topic, passing.producer = str(producer.topic.name), producer.producer.name
    if hasattr(body, "txnid_least_bits") and body.HasField("txnid_least_bits"):
        passing.transaction = transaction_of(body)
    _details(kind, body, passing)
    return passing


def _text(body: Any, field: str) -> str:
    value = getattr(body, field, "")
    return value if isinstance(value, str) else ""


def transaction_of(body: Any) -> str:
    return str(TxnId(body.txnid_most_bits, body.txnid_least_bits))


def _details(kind: int, body: Any, passing: Passing) -> None:
    if kind == _T.ACK:
        passing.positions = [position_of(each) for each in body.message_id[:_MAX_POSITIONS]]
        if body.ack_type == pb.CommandAck.Cumulative:
            passing.detail = "cumulative"
    elif kind == _T.ADD_PARTITION_TO_TXN:
        _name_topics(passing, list(body.partitions))
    elif kind == _T.ADD_SUBSCRIPTION_TO_TXN:
        _name_topics(passing, [each.topic for each in body.subscription])
        passing.subscription = next((each.subscription for each in body.subscription), "")
    elif kind == _T.END_TXN_ON_SUBSCRIPTION:
        passing.topic = body.subscription.topic
        passing.subscription = body.subscription.subscription
    elif kind == _T.CONNECT:
        passing.detail = body.client_version[:64]
    elif kind == _T.END_TXN:
        passing.detail = pb.TxnAction.Name(body.txn_action).lower()


def _name_topics(passing: Passing, topics: Sequence[str]) -> None:
    passing.topics = topics
    passing.topic = topics[0] if topics else ""


def of_messages(
    session: Connection,
    point: str,
    topic: object,
    entries: Sequence[bytes],
    positions: Sequence[tuple[int, int]] = (),
    messages: int = 0,
) -> Passing:
    return Passing(
        point,
        topic=str(topic),
        connection=session.number,
        client=session.peer,
        entries=entries,
        positions=positions,
        messages=messages,
    )


def published_by(passing: Passing, producer: Producer, txn_id: TxnId | None) -> Passing:
    passing.producer = producer.name
    passing.transaction = "" if txn_id is None else str(txn_id)
    return passing
