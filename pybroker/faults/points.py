"""The table of fault points: each step of the protocol, with what has happened there and what not.

A command of the wire protocol has `<step>.before`, when it has arrived, and `<step>.after`, when it
is done and its answer is about to be sent. Sending, delivering and the records of a transaction
have points of their own, because they happen without a command or long after it.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from pybroker.wire import pulsar_api_pb2 as pb

TOPIC: Final = "topic"
SUBSCRIPTION: Final = "subscription"
PRODUCER: Final = "producer"
TRANSACTION: Final = "transaction"
PREDICATES: Final = (TOPIC, SUBSCRIPTION, PRODUCER, TRANSACTION)

_T: Final = pb.BaseCommand


class Action(StrEnum):
    CRASH = "crash"
    DELAY = "delay"
    DROP = "drop"
    CUT = "cut"
    FAIL = "fail"
    HOLD = "hold"


ACTIONS: Final[Mapping[Action, str]] = {
    Action.CRASH: "the broker ends here as if killed; nothing after this point happens",
    Action.DELAY: "this step waits for some seconds of the broker's clock, then continues",
    Action.DROP: "what was to be done or sent here is lost; the connection stays open",
    Action.CUT: "as drop, and the connection is closed without sending what is pending",
    Action.FAIL: "this step fails with an error code and a message",
    Action.HOLD: "this step waits until it is released, or for a time limit, then continues",
}
_WAITS: Final = (Action.CRASH, Action.DELAY, Action.HOLD)
_LOSES: Final = (*_WAITS, Action.DROP, Action.CUT)
_ANY: Final = (*_LOSES, Action.FAIL)


@dataclass(frozen=True, slots=True)
class Point:
    name: str
    state: str  # a sentence that says what has happened here and what has not
    actions: tuple[Action, ...]
    predicates: tuple[str, ...]  # the `PREDICATES` that are known here


@dataclass(frozen=True, slots=True)
class _Pair:
    """A point before a step, and one after it; `before` and `after` say what is true there."""

    name: str
    before: str

    @property
    def point_before(self) -> str:
        return f"{self.name}.before"

    @property
    def point_after(self) -> str:
        return f"{self.name}.after"


@dataclass(frozen=True, slots=True)
class Step(_Pair):
    """A step of a command; only with the first point if the command has no answer."""

    after: str = ""
    predicates: tuple[str, ...] = ()
    fails: bool = True  # whether the step can be refused with an error
    learned: tuple[str, ...] = ()  # predicates that are known only after the step


_OF_TOPIC: Final = (TOPIC,)
_OF_SUBSCRIPTION: Final = (TOPIC, SUBSCRIPTION)
_OF_PRODUCER: Final = (TOPIC, PRODUCER)
_OF_TRANSACTION: Final = (TRANSACTION,)

# SEND and its receipt are not here: see `_messages`. PONG needs no point.
STEPS: Final[Mapping[int, Step]] = {
    _T.CONNECT: Step("connect", "the client is not connected", "the client is connected"),
    _T.AUTH_RESPONSE: Step("authenticate", "the new credentials are not checked"),
    _T.PING: Step(
        "ping", "the client is not noted as alive", "the client is noted as alive", fails=False
    ),
    _T.LOOKUP: Step("lookup", "the topic is not looked up", "the topic is looked up", _OF_TOPIC),
    _T.PARTITIONED_METADATA: Step(
        "lookup.partitions", "the partitions are not counted", "the partitions are counted",
        _OF_TOPIC,
    ),
    _T.GET_TOPICS_OF_NAMESPACE: Step(
        "topics.list", "the topics are not listed", "the topics are listed"
    ),
    _T.WATCH_TOPIC_LIST: Step(
        "topics.watch", "the pattern is not watched", "the pattern is watched"
    ),
    _T.WATCH_TOPIC_LIST_CLOSE: Step(
        "topics.unwatch", "the pattern is still watched", "the pattern is not watched"
    ),
    _T.ASK_TOPICS: Step("topics.ask", "nothing is answered", "the questions are answered"),
    _T.SCALABLE_TOPIC_LOOKUP: Step(
        "layout.watch", "the topic's layout is not watched", "the topic's layout is watched",
        _OF_TOPIC,
    ),
    _T.SCALABLE_TOPIC_CLOSE: Step(
        "layout.unwatch", "the topic's layout is still watched", fails=False
    ),
    _T.SCALABLE_TOPIC_SUBSCRIBE: Step(
        "group.join", "the consumer has no segments", "the segments are divided anew",
        _OF_SUBSCRIPTION,
    ),
    _T.SCALABLE_TOPIC_UNSUBSCRIBE: Step(
        "group.leave", "the consumer still has its segments", "the others have its segments"
    ),
    _T.WATCH_SCALABLE_TOPICS: Step(
        "topics.watch_scalable", "the namespace is not watched", "the namespace is watched"
    ),
    _T.WATCH_SCALABLE_TOPICS_CLOSE: Step(
        "topics.unwatch_scalable", "the namespace is still watched", fails=False
    ),
    _T.WATCH_TC_ASSIGNMENTS: Step(
        "coordinators.watch", "the coordinators' places are not watched",
        "the coordinators' places are watched",
    ),
    _T.WATCH_TC_ASSIGNMENTS_CLOSE: Step(
        "coordinators.unwatch", "the coordinators' places are still watched", fails=False
    ),
    _T.GET_SCHEMA: Step("schema.get", "the schema is not read", "the schema is read", _OF_TOPIC),
    _T.GET_OR_CREATE_SCHEMA: Step(
        "schema.add", "the schema is not stored", "the schema is durable", _OF_TOPIC
    ),
    _T.PRODUCER: Step(
        "producer.open", "the producer does not exist", "the producer exists", _OF_PRODUCER
    ),
    _T.CLOSE_PRODUCER: Step(
        "producer.close", "the producer still exists", "the producer is gone", _OF_PRODUCER
    ),
    _T.SUBSCRIBE: Step(
        "subscribe", "the consumer does not exist",
        "the consumer exists, and the subscription is durable", _OF_SUBSCRIPTION,
    ),
    _T.FLOW: Step(
        "flow", "the consumer has no new permits", "", _OF_SUBSCRIPTION, fails=False
    ),
    _T.ACK: Step(
        "acknowledge", "nothing is acknowledged",
        "the acknowledgement is in effect: in a transaction durable, otherwise in memory",
        (*_OF_SUBSCRIPTION, TRANSACTION),
    ),
    _T.REDELIVER_UNACKNOWLEDGED_MESSAGES: Step(
        "redeliver", "nothing is delivered again", "", _OF_SUBSCRIPTION, fails=False
    ),
    _T.SEEK: Step("seek", "the cursor has not moved", "the cursor has moved", _OF_SUBSCRIPTION),
    _T.UNSUBSCRIBE: Step(
        "unsubscribe", "the subscription still exists", "the subscription is deleted",
        _OF_SUBSCRIPTION,
    ),
    _T.CLOSE_CONSUMER: Step(
        "consumer.close", "the consumer still exists", "the consumer is gone", _OF_SUBSCRIPTION
    ),
    _T.GET_LAST_MESSAGE_ID: Step(
        "last_message_id", "the topic's end is not read", "the topic's end is read",
        _OF_SUBSCRIPTION,
    ),
    _T.CONSUMER_STATS: Step(
        "consumer.stats", "no figures are collected", "the figures are collected", _OF_SUBSCRIPTION
    ),
    _T.TC_CLIENT_CONNECT_REQUEST: Step(
        "transaction.connect", "the coordinator is not requested", "the coordinator is open"
    ),
    _T.NEW_TXN: Step(
        "transaction.begin", "no transaction exists", "the transaction is OPEN and durable",
        learned=_OF_TRANSACTION,
    ),
    _T.ADD_PARTITION_TO_TXN: Step(
        "transaction.add_partition", "the topics do not take part", "the topics take part, durably",
        (TOPIC, TRANSACTION),
    ),
    _T.ADD_SUBSCRIPTION_TO_TXN: Step(
        "transaction.add_subscription", "the subscriptions do not take part",
        "the subscriptions take part, durably", (*_OF_SUBSCRIPTION, TRANSACTION),
    ),
    _T.END_TXN: Step(
        "transaction.end", "nothing is decided",
        "the transaction has committed or aborted, and all participants have followed",
        _OF_TRANSACTION,
    ),
    _T.PREPARE_TXN: Step(
        "transaction.prepare", "the transaction may still time out",
        "the transaction is PREPARED, durably", _OF_TRANSACTION,
    ),
    _T.LIST_PREPARED_TXNS: Step(
        "transaction.list_prepared", "nothing is answered",
        "the prepared transactions are collected",
    ),
    _T.END_TXN_ON_PARTITION: Step(
        "transaction.end_on_partition", "the topic has not ended the transaction",
        "the topic has ended the transaction", (TOPIC, TRANSACTION),
    ),
    _T.END_TXN_ON_SUBSCRIPTION: Step(
        "transaction.end_on_subscription", "the subscription has not ended the transaction",
        "the subscription has ended the transaction", (*_OF_SUBSCRIPTION, TRANSACTION),
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Recorded(_Pair):
    """A step of a transaction without a command: a log record, or the end at a participant."""

    after: str
    predicates: tuple[str, ...] = _OF_TRANSACTION
    loses_log: bool = True  # whether a failure is that of the coordinator's log


# By the class name of the record in a coordinator's log.
RECORDS: Final[Mapping[str, Recorded]] = {
    "NewTransaction": Recorded(
        "transaction.log.begin", "the transaction is not recorded", "the beginning is durable"
    ),
    "AddPartitions": Recorded(
        "transaction.log.add_partition", "the topics do not take part",
        "the topics take part, durably", (TOPIC, TRANSACTION),
    ),
    "AddSubscriptions": Recorded(
        "transaction.log.add_subscription", "the subscriptions do not take part",
        "the subscriptions take part, durably", (*_OF_SUBSCRIPTION, TRANSACTION),
    ),
    "BindSession": Recorded(
        "transaction.log.session", "the transaction belongs to no session of a transactional id",
        "the session is durable",
    ),
    "SpanNamespace": Recorded(
        "transaction.log.namespace", "the transaction does not span a namespace",
        "the namespace is durable",
    ),
    "Promise": Recorded(
        "transaction.log.promise", "the transaction has not promised to end as its leader does",
        "the promise, or its end, is durable",
    ),
    "Prepare": Recorded(
        "transaction.log.prepare", "the transaction may still time out",
        "the transaction is PREPARED, durably",
    ),
    "GroupMembers": Recorded(
        "transaction.log.group", "the leader's group is not decided", "the decision is durable"
    ),
}  # fmt: skip
DECIDED: Final = Recorded(
    "transaction.decided", "the outcome is not decided",
    "the decision is durable; no participant has been told",
)  # fmt: skip
COMPLETED: Final = Recorded(
    "transaction.completed",
    "all participants have followed; the record of completion is not written",
    "the record of completion is durable",
)
MARKER: Final = Recorded(
    "transaction.marker", "this topic does not know the outcome",
    "the outcome is durable in this topic, and the coordinator has not been told",
    (TOPIC, TRANSACTION), loses_log=False,
)  # fmt: skip
PENDING_ACK: Final = Recorded(
    "transaction.pending_ack", "this subscription does not know the outcome",
    "the outcome is durable in this subscription, and the coordinator has not been told",
    (*_OF_SUBSCRIPTION, TRANSACTION), loses_log=False,
)  # fmt: skip
# While a rule exists at one of these, no participant is told before the decision is durable.
BEHIND_DECISION: Final = (
    DECIDED.point_after,
    *(point for each in (MARKER, PENDING_ACK) for point in (each.point_before, each.point_after)),
)

PUBLISH_BEFORE_APPEND: Final = "publish.before_append"
PUBLISH_AFTER_APPEND: Final = "publish.after_append"
PUBLISH_BEFORE_RECEIPT: Final = "publish.before_receipt"
DELIVER_BEFORE: Final = "deliver.before"
DELIVER_AFTER: Final = "deliver.after"

_OF_PUBLISH: Final = (TOPIC, PRODUCER, TRANSACTION)


def _messages() -> Iterator[Point]:
    yield Point(
        PUBLISH_BEFORE_APPEND,
        "SEND has arrived; the message is not stored.",
        _ANY,
        _OF_PUBLISH,
    )
    yield Point(
        PUBLISH_AFTER_APPEND,
        "The message is durable and readers may get it; its producer has not been told.",
        _WAITS,
        _OF_PUBLISH,
    )
    yield Point(
        PUBLISH_BEFORE_RECEIPT,
        "The message is durable; its receipt is about to be sent.",
        _ANY,
        _OF_PUBLISH,
    )
    yield Point(
        DELIVER_BEFORE,
        "The message is chosen for a consumer and recorded as delivered; it is not sent.",
        _LOSES,
        _OF_SUBSCRIPTION,
    )
    yield Point(
        DELIVER_AFTER,
        "The message has been written to the consumer's connection.",
        (Action.CRASH, Action.CUT),
        _OF_SUBSCRIPTION,
    )


def _of_steps(steps: Mapping[int, Step]) -> Iterator[Point]:
    for kind, step in steps.items():
        command = _T.Type.Name(kind)
        failing = (Action.FAIL,) if step.fails else ()
        actions = (*_LOSES, *failing)
        before = f"{command} has arrived; {step.before}."
        yield Point(step.point_before, before, actions, step.predicates)
        if step.after:
            after = f"{_capital(step.after)}; the answer to {command} has not been sent."
            yield Point(step.point_after, after, actions, (*step.predicates, *step.learned))


def _of_records(records: Iterable[Recorded]) -> Iterator[Point]:
    for record in records:
        before = _WAITS if record is COMPLETED else (*_WAITS, Action.FAIL)
        after = _WAITS if record.loses_log else (*_WAITS, Action.FAIL)
        fails = " If it fails, the coordinator is reopened." if record.loses_log else ""
        fails = "" if record is COMPLETED else fails
        yield Point(
            record.point_before, f"{_capital(record.before)}.{fails}", before, record.predicates
        )
        yield Point(record.point_after, f"{_capital(record.after)}.", after, record.predicates)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _table(points: Iterable[Point]) -> Mapping[str, Point]:
    return MappingProxyType({point.name: point for point in points})


_OF_TRANSACTIONS: Final = (*RECORDS.values(), DECIDED, MARKER, PENDING_ACK, COMPLETED)

POINTS: Final = _table([*_messages(), *_of_steps(STEPS), *_of_records(_OF_TRANSACTIONS)])
