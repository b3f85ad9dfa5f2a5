"""Translates one connection's commands into steps; no socket, no clock.

On a connection, numbers identify producers, consumers and requests. The trace remembers their
meaning. So each command becomes an `Event` with the topic's name, and a command that changes state
also becomes a `Passing` before it and one after it.
"""

from dataclasses import dataclass, field
from typing import Final

from pybroker.eos_check.faults import Passing, Phase, Step
from pybroker.wire import pulsar_api_pb2 as pb

Position = tuple[int, int]
Txn = tuple[int, int]
_Type = pb.BaseCommand

# The field of each type of command, and its name here.
_REQUESTS: Final = {
    _Type.PRODUCER: ("producer", "PRODUCER"),
    _Type.SUBSCRIBE: ("subscribe", "SUBSCRIBE"),
    _Type.ACK: ("ack", "ACK"),
    _Type.NEW_TXN: ("newTxn", "NEW_TXN"),
    _Type.ADD_PARTITION_TO_TXN: ("addPartitionToTxn", "ADD_PARTITION_TO_TXN"),
    _Type.ADD_SUBSCRIPTION_TO_TXN: ("addSubscriptionToTxn", "ADD_SUBSCRIPTION_TO_TXN"),
    _Type.PREPARE_TXN: ("prepareTxn", "PREPARE_TXN"),
    _Type.END_TXN: ("endTxn", "END_TXN"),
    _Type.SEEK: ("seek", "SEEK"),
    _Type.UNSUBSCRIBE: ("unsubscribe", "UNSUBSCRIBE"),
    _Type.ASK_TOPICS: ("askTopics", "ASK_TOPICS"),
}
_ANSWERS: Final = {
    _Type.PRODUCER_SUCCESS: "producer_success",
    _Type.SUCCESS: "success",
    _Type.ERROR: "error",
    _Type.ACK_RESPONSE: "ackResponse",
    _Type.NEW_TXN_RESPONSE: "newTxnResponse",
    _Type.ADD_PARTITION_TO_TXN_RESPONSE: "addPartitionToTxnResponse",
    _Type.ADD_SUBSCRIPTION_TO_TXN_RESPONSE: "addSubscriptionToTxnResponse",
    _Type.PREPARE_TXN_RESPONSE: "prepareTxnResponse",
    _Type.END_TXN_RESPONSE: "endTxnResponse",
    _Type.ASK_TOPICS_RESPONSE: "askTopicsResponse",
}
_PENDING_AT_MOST: Final = 100_000  # remembered commands of a connection that are not answered yet


@dataclass(slots=True)
class Event:
    """An event for the timeline. `answer` marks the broker's answer to the command."""

    what: str
    topic: str = ""
    answer: bool = False
    txn: Txn | None = None
    positions: tuple[Position, ...] = ()
    count: int = 1  # messages
    error: str = ""
    note: str = ""
    at_s: float = 0.0
    life: int = 0  # of the pipeline, from 1


@dataclass(slots=True)
class Seen:
    """The meaning of a frame: an event to show, a passed step, both, or neither."""

    event: Event | None = None
    passing: Passing | None = None
    is_answered: bool = True  # False: a command that the broker does not answer


@dataclass(slots=True)
class ConnectionTrace:
    _producers: dict[int, str] = field(default_factory=dict)
    _consumers: dict[int, str] = field(default_factory=dict)
    _requests: dict[int, Event] = field(default_factory=dict)
    _sends: dict[Position, Event] = field(default_factory=dict)

    def from_client(self, command: pb.BaseCommand) -> Seen:
        if command.type == _Type.SEND:
            return self._send(command.send)
        if command.type not in _REQUESTS or not _changes_something(command):
            return Seen()
        name, what = _REQUESTS[command.type]
        body = getattr(command, name)
        event = Event(what, self._topic(body), txn=_txn(body))
        if command.type == _Type.ACK:
            event.positions = tuple((at.ledgerId, at.entryId) for at in command.ack.message_id)
            event.note = "cumulative" if command.ack.ack_type == pb.CommandAck.Cumulative else ""
        elif command.type == _Type.END_TXN:
            commits = command.endTxn.txn_action == pb.COMMIT
            event.what = "COMMIT" if commits else "ABORT"
        elif command.type == _Type.SUBSCRIBE:
            event.note = command.subscribe.subscription
        return Seen(event, before(event), self._expect(body, event))

    def from_broker(self, command: pb.BaseCommand) -> Seen:
        if command.type == _Type.MESSAGE:
            at = command.message.message_id
            topic = self._consumers.get(command.message.consumer_id, "")
            event = Event("MESSAGE", topic, positions=((at.ledgerId, at.entryId),))
            if command.message.redelivery_count:
                event.note = f"delivery {command.message.redelivery_count + 1}"
            return Seen(event)
        if command.type == _Type.SEND_RECEIPT:
            receipt = command.send_receipt
            at = receipt.message_id
            key = receipt.producer_id, receipt.sequence_id
            return self._answered(self._sends.pop(key, None), "", (at.ledgerId, at.entryId))
        if command.type == _Type.SEND_ERROR:
            refused = command.send_error
            asked = self._sends.pop((refused.producer_id, refused.sequence_id), None)
            return self._answered(asked, refused.message or "refused")
        if command.type not in _ANSWERS:
            return Seen()
        body = getattr(command, _ANSWERS[command.type])
        error = body.message if "message" in body.DESCRIPTOR.fields_by_name else ""
        asked = self._requests.pop(body.request_id, None)
        if asked is not None and asked.what == "NEW_TXN" and not error:
            asked.txn = _txn(body)
        return self._answered(asked, error)

    def _send(self, send: pb.CommandSend) -> Seen:
        topic = self._producers.get(send.producer_id, "")
        event = Event("SEND", topic, txn=_txn(send), count=max(1, send.num_messages))
        if len(self._sends) < _PENDING_AT_MOST:
            self._sends[send.producer_id, send.sequence_id] = event
        return Seen(event, before(event))

    def _topic(self, body: object) -> str:
        """The command's topic. Also registers the producer or consumer that the command creates."""
        if isinstance(body, pb.CommandProducer):
            self._producers[body.producer_id] = short(body.topic)
            return self._producers[body.producer_id]
        if isinstance(body, pb.CommandSubscribe):
            self._consumers[body.consumer_id] = short(body.topic)
            return self._consumers[body.consumer_id]
        if isinstance(body, pb.CommandAck | pb.CommandSeek | pb.CommandUnsubscribe):
            return self._consumers.get(body.consumer_id, "")
        if isinstance(body, pb.CommandAddPartitionToTxn) and body.partitions:
            return short(body.partitions[0])
        if isinstance(body, pb.CommandAddSubscriptionToTxn) and body.subscription:
            return short(body.subscription[0].topic)
        return ""

    def _expect(self, body: object, event: Event) -> bool:
        """Remembers the command until its answer. Returns whether the broker will answer it."""
        if isinstance(body, pb.CommandAck) and not body.HasField("request_id"):
            return False
        if len(self._requests) < _PENDING_AT_MOST:
            self._requests[body.request_id] = event  # type: ignore[attr-defined]
        return True

    def _answered(self, asked: Event | None, error: str, at: Position | None = None) -> Seen:
        if asked is None:
            return Seen()
        positions = (at,) if at is not None else asked.positions
        event = Event(
            asked.what, asked.topic, True, asked.txn, positions, asked.count, error, asked.note
        )
        return Seen(event, after(asked))


def _changes_something(command: pb.BaseCommand) -> bool:
    """Whether the command changes state. ASK_TOPICS is mostly a query, but may create subscriptions
    and move cursors.
    """
    if command.type != _Type.ASK_TOPICS:
        return True
    asked = command.askTopics
    moves = any(each.HasField("acknowledge") for each in asked.question[:1000])
    return moves or asked.HasField("initial_position")


def short(topic: str) -> str:
    """A topic's name without the prefix of the default namespace."""
    return topic.removeprefix("persistent://").removeprefix("public/default/")


def after(event: Event) -> Passing:
    return Passing(Step(event.what, event.topic), Phase.AFTER)


def before(event: Event) -> Passing:
    return Passing(Step(event.what, event.topic), Phase.BEFORE)


def _txn(body: object) -> Txn | None:
    has: bool = body.HasField("txnid_least_bits") if _names_txn(body) else False  # type: ignore[attr-defined]
    return (body.txnid_most_bits, body.txnid_least_bits) if has else None  # type: ignore[attr-defined]


def _names_txn(body: object) -> bool:
    return "txnid_least_bits" in body.DESCRIPTOR.fields_by_name  # type: ignore[attr-defined]
