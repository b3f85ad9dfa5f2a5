"""A broker in a dictionary: as much of the client's API as the sink uses, and its transactions.

`broker.faults` maps an operation ("commit", "send", …) to what happens at its next use: an error,
raised before the operation took effect or, with `after=True`, when it had.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pybroker.client import MessageId
from pybroker.errors import InvalidTxnStatus, TransactionConflict, TransactionNotFound
from pybroker.names import TxnId


@dataclass
class Fault:
    error: Exception
    after: bool = False


@dataclass
class FakeTransaction:
    broker: FakeBroker
    txn_id: TxnId
    state: str = "open"
    acks: dict[tuple[str, str], MessageId] = field(default_factory=dict)
    messages: list[tuple[str, bytes]] = field(default_factory=list)

    def commit(self) -> None:
        self.broker.act("commit", self._commit)

    def _commit(self) -> None:
        self._require("open", "committed")
        if self.state == "open":
            self.state = "committed"
            self.broker.cursors.update(self.acks)
            self.broker.topics += self.messages

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
    cursors: dict[tuple[str, str], MessageId] = field(default_factory=dict)
    topics: list[tuple[str, bytes]] = field(default_factory=list)
    transactions: dict[TxnId, FakeTransaction] = field(default_factory=dict)
    faults: dict[str, Fault] = field(default_factory=dict)
    events: list[str] = field(default_factory=list)
    # What stands between two positions of a topic, for readers: the messages' ids in order.
    readable: list[MessageId] = field(default_factory=list)

    def act(self, name: str, action: Callable[[], None]) -> None:
        self.events.append(name)
        fault = self.faults.pop(name, None)
        if fault is None:
            action()
            return
        if fault.after:
            action()
        raise fault.error

    def published(self, topic: str) -> list[bytes]:
        return [data for name, data in self.topics if name == topic]

    def begin(self) -> FakeTransaction:
        txn_id = TxnId(0, len(self.transactions))
        txn = self.transactions[txn_id] = FakeTransaction(self, txn_id)
        return txn

    def holder(self, cursor: tuple[str, str]) -> FakeTransaction | None:
        for txn in self.transactions.values():
            if txn.state == "open" and cursor in txn.acks:
                return txn
        return None


class FakeClient:
    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker
        broker.events.append("connect")

    def subscribe(self, topic: str, subscription: str, **_: object) -> FakeConsumer:
        return FakeConsumer(self.broker, (topic, subscription))

    def create_producer(self, topic: str, **_: object) -> FakeProducer:
        return FakeProducer(self.broker, topic)

    def create_reader(self, topic: str, start: MessageId, **_: object) -> FakeReader:
        return FakeReader(self.broker, topic, start)

    def get_topic_partitions(self, topic: str) -> list[str]:
        return [topic]

    def new_transaction(self, timeout_ms: int) -> FakeTransaction:
        self.broker.act("begin", lambda: None)
        return self.broker.begin()

    def attach_transaction(self, txn_id: TxnId) -> FakeTransaction:
        if txn_id not in self.broker.transactions:
            raise TransactionNotFound(f"{txn_id} is not known")
        return self.broker.transactions[txn_id]

    def close(self) -> None:
        pass


@dataclass
class FakeConsumer:
    broker: FakeBroker
    cursor: tuple[str, str]

    def get_mark_delete_position(self) -> MessageId:
        return self.broker.cursors[self.cursor]

    def get_last_message_id(self) -> MessageId:
        return MessageId(-1, 0, len(self.broker.published(self.cursor[0])) - 1)

    def acknowledge_cumulative(self, message_id: MessageId, txn: FakeTransaction) -> None:
        self.broker.act("acknowledge", lambda: self._acknowledge(message_id, txn))

    def _acknowledge(self, message_id: MessageId, txn: FakeTransaction) -> None:
        if self.broker.holder(self.cursor) or message_id <= self.broker.cursors[self.cursor]:
            raise TransactionConflict(f"{self.cursor} is held or past {message_id}")
        txn.acks[self.cursor] = message_id


@dataclass
class FakeProducer:
    broker: FakeBroker
    topic: str

    def send(self, data: bytes, txn: FakeTransaction) -> None:
        self.broker.act(f"send {self.topic}", lambda: txn.messages.append((self.topic, data)))


@dataclass
class FakeMessage:
    place: MessageId
    content: bytes

    def message_id(self) -> MessageId:
        return self.place

    def data(self) -> bytes:
        return self.content


@dataclass
class FakeReader:
    broker: FakeBroker
    topic: str
    start: MessageId

    def _messages(self) -> list[FakeMessage]:
        published = self.broker.published(self.topic)
        places = [MessageId(-1, 0, index) for index in range(len(published))]
        messages = list(map(FakeMessage, places, published))
        messages += [FakeMessage(each, b"") for each in self.broker.readable]
        return [message for message in messages if message.place > self.start]

    def has_message_available(self) -> bool:
        return bool(self._messages())

    def read_next(self, timeout_millis: int) -> FakeMessage:
        return self._messages()[0]

    def close(self) -> None:
        pass


@dataclass
class FakeCheckpoint:
    left_open: TxnId | None = None

    def open_transaction(self) -> TxnId | None:
        return self.left_open

    def record_transaction(self, txn_id: TxnId) -> None:
        self.left_open = txn_id
