"""A broker in a dictionary, with transactions: the part of the client's API that the sink uses.

A topic is one ledger, so a position's entry id is an index. `broker.faults` maps an operation
("commit", "send …", …) to an error of its next use, raised before the operation takes effect or,
with `after=True`, afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from pybroker.base.errors import (
    InvalidTxnStatus,
    PulsarError,
    TopicNotFound,
    TransactionConflict,
    TransactionNotFound,
)
from pybroker.base.names import TxnId
from pybroker.client import EncodedBatch, InitialPosition, MessageId, Result
from pybroker.spark.checkpoint import LeftOpen

LEDGER = 1


@dataclass
class Fault:
    error: BaseException
    after: bool = False


@dataclass
class FakeEntry:
    data: bytes
    txn: FakeTransaction | None = None
    # False: stored but never delivered, like an aborted message or a marker of the broker.
    is_message: bool = True

    @property
    def is_hidden_yet(self) -> bool:
        return self.txn is not None and self.txn.state == "open"

    @property
    def is_visible(self) -> bool:
        return self.is_message and (self.txn is None or self.txn.state == "committed")


@dataclass
class FakeTopic:
    entries: list[FakeEntry] = field(default_factory=list)
    first: int = 0  # earlier entries have been trimmed

    def readable(self, after: int) -> Iterator[tuple[int, FakeEntry]]:
        for index, entry in enumerate(self.entries):
            if entry.is_hidden_yet:
                return
            if index > after and index >= self.first and entry.is_visible:
                yield index, entry

    def backlog(self, after: int) -> int:
        stored = self.entries[max(after + 1, self.first) :]
        return sum(entry.is_hidden_yet or entry.is_visible for entry in stored)

    @property
    def last(self) -> int:
        return max((index for index, _ in self.readable(-1)), default=-1)


@dataclass
class FakeTransaction:
    broker: FakeBroker
    txn_id: TxnId
    state: str = "open"
    acks: dict[tuple[str, str], int] = field(default_factory=dict)

    def commit(self, together_with: Sequence[TxnId] = ()) -> None:
        others = [self.broker.transactions[txn_id] for txn_id in together_with]
        self.broker.act("commit", lambda: self._commit([*others, self]))

    def _commit(self, all_of_them: Sequence[FakeTransaction]) -> None:
        for txn in all_of_them:
            txn._require("open", "committed")
        if len({txn.state for txn in all_of_them}) > 1:
            raise InvalidTxnStatus(f"{self.txn_id} and the others are no longer together")
        for txn in all_of_them:
            if txn.state == "open":
                txn.state = "committed"
                self.broker.cursors.update(txn.acks)

    def join(self, topic: str) -> None:
        self._require("open")

    def abort(self) -> None:
        self.broker.act("abort", self._abort)

    def _abort(self) -> None:
        self._require("open", "aborted")
        self.state = "aborted"

    def _require(self, *states: str) -> None:
        if self.state not in states:
            raise InvalidTxnStatus(f"{self.txn_id} is {self.state}")


@dataclass
class FakeBroker:
    topics: dict[str, FakeTopic] = field(default_factory=dict)
    # Mark-delete positions, by topic and subscription.
    cursors: dict[tuple[str, str], int] = field(default_factory=dict)
    transactions: dict[TxnId, FakeTransaction] = field(default_factory=dict)
    faults: dict[str, Fault] = field(default_factory=dict)
    events: list[str] = field(default_factory=list)

    def act(self, name: str, action: Callable[[], None]) -> None:
        self.events.append(name)
        fault = self.faults.pop(name, None)
        if fault is None:
            action()
            return
        if fault.after:
            action()
        raise fault.error

    def topic(self, name: str) -> FakeTopic:
        return self.topics.setdefault(name, FakeTopic())

    def store(self, topic: str, *contents: bytes) -> None:
        self.topic(topic).entries += map(FakeEntry, contents)

    def published(self, topic: str) -> list[bytes]:
        """All messages that were ever visible, trimmed or not."""
        return [entry.data for entry in self.topic(topic).entries if entry.is_visible]

    def begin(self) -> FakeTransaction:
        txn_id = TxnId(0, len(self.transactions))
        txn = self.transactions[txn_id] = FakeTransaction(self, txn_id)
        return txn

    def holder(self, cursor: tuple[str, str]) -> FakeTransaction | None:
        for txn in self.transactions.values():
            if txn.state == "open" and cursor in txn.acks:
                return txn
        return None

    def expire(self, topic: str, subscription: str) -> None:
        """What a message TTL does to a subscription."""
        self.cursors[topic, subscription] = self.topic(topic).last

    def lose_what_nobody_keeps(self) -> None:
        """Trim topics without a subscription completely, as their ledgers are when they close."""
        for name, topic in self.topics.items():
            if not any(of == name for of, _ in self.cursors):
                topic.first = len(topic.entries)

    def trim(self) -> None:
        """Trim entries that every subscription has acknowledged."""
        for name, topic in self.topics.items():
            cursors = [place for (of, _), place in self.cursors.items() if of == name]
            topic.first = max(topic.first, min(cursors, default=-1) + 1)


class FakeClient:
    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker
        broker.events.append("connect")

    def subscribe(
        self,
        topic: str,
        subscription: str,
        initial_position: InitialPosition = InitialPosition.Earliest,
        **_: object,
    ) -> FakeConsumer:
        stored = self.broker.topic(topic)
        earliest = initial_position is InitialPosition.Earliest
        start = stored.first - 1 if earliest else stored.last
        self.broker.cursors.setdefault((topic, subscription), start)
        return FakeConsumer(self.broker, (topic, subscription))

    def create_producer(self, topic: str, **_: object) -> FakeProducer:
        return FakeProducer(self.broker, topic)

    def create_reader(
        self, topic: str, start: MessageId, start_message_id_inclusive: bool = False, **_: object
    ) -> FakeReader:
        return FakeReader(self.broker.topic(topic), start.entry_id() - start_message_id_inclusive)

    def get_topic_partitions(self, topic: str, create: bool = True) -> list[str]:
        if not create and topic not in self.broker.topics:
            raise TopicNotFound(topic)
        return [topic]

    def connections_made(self) -> int:
        return 1

    def commits_together(self) -> bool:
        return True

    def answers_topic_questions(self) -> bool:
        return False

    def new_transaction(self, timeout_ms: int, beside: TxnId | None = None) -> FakeTransaction:
        self.broker.act("begin", lambda: None)
        return self.broker.begin()

    def attach_transaction(self, txn_id: TxnId) -> FakeTransaction:
        if txn_id not in self.broker.transactions:
            raise TransactionNotFound(f"{txn_id} is not known")
        return self.broker.transactions[txn_id]

    def close(self) -> None:
        self.broker.events.append("close")


@dataclass
class FakeConsumer:
    broker: FakeBroker
    cursor: tuple[str, str]

    def __enter__(self) -> FakeConsumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def get_mark_delete_position(self) -> MessageId:
        return message_id(self.broker.cursors[self.cursor])

    def close(self) -> None:
        pass

    def get_backlog(self) -> int:
        return self.broker.topic(self.cursor[0]).backlog(self.broker.cursors[self.cursor])

    def redeliver_unacknowledged_messages(self) -> None:
        pass

    def acknowledge_cumulative(
        self, message_id: MessageId, txn: FakeTransaction | None = None
    ) -> None:
        place = message_id.entry_id()
        if txn is None:
            self.broker.act("let go", lambda: self._move(place))
        else:
            self.broker.act("acknowledge", lambda: self._acknowledge(place, txn))

    def _move(self, place: int) -> None:
        self.broker.cursors[self.cursor] = max(place, self.broker.cursors[self.cursor])

    def _acknowledge(self, place: int, txn: FakeTransaction) -> None:
        txn._require("open")
        if self.broker.holder(self.cursor) or place <= self.broker.cursors[self.cursor]:
            raise TransactionConflict(f"{self.cursor} is held or past {place}")
        txn.acks[self.cursor] = place


@dataclass
class FakeProducer:
    broker: FakeBroker
    topic: str

    def send(self, data: bytes, txn: FakeTransaction | None = None) -> MessageId:
        name = f"publish {self.topic}" if txn is None else f"send {self.topic}"
        self.broker.act(name, lambda: self._store(data, txn))
        return message_id(len(self.broker.topic(self.topic).entries) - 1)

    def send_batch_async(
        self,
        batch: EncodedBatch,
        callback: Callable[[object, MessageId | None], None],
        txn: FakeTransaction | None = None,
    ) -> None:
        try:
            callback(Result.Ok, self.send(batch.payload, txn))
        except PulsarError as error:
            callback(error, None)

    def _store(self, data: bytes, txn: FakeTransaction | None) -> None:
        if txn is not None:
            txn._require("open")
        self.broker.topic(self.topic).entries.append(FakeEntry(data, txn))


@dataclass
class FakeMessage:
    place: MessageId
    content: bytes

    def message_id(self) -> MessageId:
        return self.place

    def data(self) -> bytes:
        return self.content

    def publish_timestamp(self) -> int:
        return self.place.entry_id()


@dataclass
class FakeReader:
    topic: FakeTopic
    after: int

    def get_last_message_id(self) -> MessageId:
        return message_id(self.topic.last)

    def get_backlog(self) -> int:
        return self.topic.backlog(self.after)

    def has_message_available(self) -> bool:
        return any(True for _ in self.topic.readable(self.after))

    def read_next(self, timeout_millis: int) -> FakeMessage:
        return self.batch_read(1, timeout_millis)[0]

    def batch_read(self, max_messages: int, timeout_millis: int) -> list[FakeMessage]:
        found = list(self.topic.readable(self.after))[:max_messages]
        self.after = found[-1][0] if found else self.after
        return [FakeMessage(message_id(index), entry.data) for index, entry in found]

    def close(self) -> None:
        pass


@dataclass
class FakeCheckpoint:
    left_open: LeftOpen | None = None

    def open_transaction(self) -> LeftOpen | None:
        return self.left_open

    def record_transaction(self, left_open: LeftOpen) -> None:
        self.left_open = left_open


def message_id(index: int) -> MessageId:
    return MessageId(-1, LEDGER, index)
