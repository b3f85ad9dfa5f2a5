"""Consume-transform-produce in transactions: raw commands, with many transactions open at once on
one connection.

Each transaction acknowledges one message of an input topic and publishes one to an output topic:
NEW, ADD_PARTITION + ADD_SUBSCRIPTION, SEND + ACK, END. Each step waits for the answers to the
previous one. Without an input topic a transaction only publishes; without an end it stays open.
"""

import time
from collections.abc import Callable

from flood import build_batch
from raw_connection import RawConnection, Type, whole_commands

from pybroker.base.names import TxnId
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.frames import encode_frame

TIMEOUT_MS = 600_000
SUBSCRIPTION = "transform"


class BrokenTransaction(Exception):
    """A step of a transaction was answered with an error."""


class Transform:
    """A pump that runs `count` transactions, `window` of them at any time, on the `coordinators` in
    turn. `action` is how they end; None: they stay open.
    """

    def __init__(
        self,
        connection: RawConnection,
        output: str,
        source: "Source | None",
        count: int,
        window: int,
        coordinators: int = 1,
        action: pb.TxnAction | None = pb.COMMIT,
    ) -> None:
        self.connection = connection
        self.done = False
        self.blocked = False
        self.commit_ms: list[float] = []
        self._output = output
        self._source = source
        self._count = count
        self._window = window
        self._coordinators = coordinators
        self._action = action
        self._started = self._over = 0
        self._missing: dict[int, int] = {}  # missing answers to a transaction's current step
        self._txn_ids: dict[int, TxnId] = {}
        self._ended_at: dict[int, float] = {}
        self._rest = b""
        self._outgoing = bytearray()
        self._steps: dict[int, Callable[[int], None]] = {}

    def start(self) -> None:
        for _ in range(min(self._window, self._count)):
            self._begin()
        self.push()

    def received(self, chunk: bytes) -> None:
        commands, self._rest = whole_commands(self._rest + chunk)
        for command in commands:
            self._answered(command)
        self.push()

    def push(self) -> None:
        self.blocked = False
        while self._outgoing:
            try:
                sent = self.connection.socket.send(self._outgoing)
            except BlockingIOError:
                self.blocked = True
                return
            del self._outgoing[:sent]

    def _begin(self) -> None:
        number = self._started
        self._started += 1
        tc_id = number % self._coordinators
        new = pb.CommandNewTxn(request_id=number, txn_ttl_millis=TIMEOUT_MS, tc_id=tc_id)
        self._await(number, 1, self._add_participants)
        self._write(pb.BaseCommand(type=Type.NEW_TXN, newTxn=new))

    def _answered(self, command: pb.BaseCommand) -> None:
        number = self._number_of(command)
        if number is None:
            return
        if command.type == Type.NEW_TXN_RESPONSE:
            answer = command.newTxnResponse
            self._txn_ids[number] = TxnId(answer.txnid_most_bits, answer.txnid_least_bits)
        self._missing[number] -= 1
        if self._missing[number] == 0:
            self._steps[number](number)

    def _number_of(self, command: pb.BaseCommand) -> int | None:
        """The number of the answer's transaction: request ids are the numbers of transactions."""
        field = _ANSWERS.get(command.type)
        if field is None:
            return None
        answer = getattr(command, field)
        if command.type == Type.SEND_RECEIPT:
            return int(answer.sequence_id)
        if command.type in (Type.ERROR, Type.SEND_ERROR) or answer.HasField("error"):
            raise BrokenTransaction(f"{field}: {answer.message}")
        return int(answer.request_id)

    def _await(self, number: int, answers: int, then: Callable[[int], None]) -> None:
        self._missing[number] = answers
        self._steps[number] = then

    def _add_participants(self, number: int) -> None:
        most, least = self._txn_ids[number]
        self._await(number, 1 if self._source is None else 2, self._work)
        add_partition = pb.CommandAddPartitionToTxn(
            request_id=number,
            txnid_most_bits=most,
            txnid_least_bits=least,
            partitions=[self._output],
        )
        self._write(pb.BaseCommand(type=Type.ADD_PARTITION_TO_TXN, addPartitionToTxn=add_partition))
        if self._source is None:
            return
        add_subscription = pb.CommandAddSubscriptionToTxn(
            request_id=number, txnid_most_bits=most, txnid_least_bits=least
        )
        add_subscription.subscription.add(topic=self._source.topic, subscription=SUBSCRIPTION)
        self._write(
            pb.BaseCommand(type=Type.ADD_SUBSCRIPTION_TO_TXN, addSubscriptionToTxn=add_subscription)
        )

    def _work(self, number: int) -> None:
        most, least = self._txn_ids[number]
        then = self._forget if self._action is None else self._end
        self._await(number, 1 if self._source is None else 2, then)
        send = pb.CommandSend(
            producer_id=1, sequence_id=number, txnid_most_bits=most, txnid_least_bits=least
        )
        entry = build_batch(1, 100, self._txn_ids[number])
        self._write(pb.BaseCommand(type=Type.SEND, send=send), entry)
        if self._source is not None:
            self._write(acknowledgement(self._source, self._txn_ids[number], number))

    def _end(self, number: int) -> None:
        assert self._action is not None
        self._await(number, 1, self._ended)
        self._ended_at[number] = time.perf_counter()
        self._write(end_txn(number, self._txn_ids[number], self._action))

    def _ended(self, number: int) -> None:
        self.commit_ms.append((time.perf_counter() - self._ended_at.pop(number)) * 1000)
        self._forget(number)

    def _forget(self, number: int) -> None:
        del self._txn_ids[number], self._steps[number], self._missing[number]
        self._over += 1
        self.done = self._over >= self._count
        if self._started < self._count:
            self._begin()

    def _write(self, command: pb.BaseCommand, entry: bytes = b"") -> None:
        self._outgoing += encode_frame(command, entry)


_ANSWERS = {
    int(Type.NEW_TXN_RESPONSE): "newTxnResponse",
    int(Type.ADD_PARTITION_TO_TXN_RESPONSE): "addPartitionToTxnResponse",
    int(Type.ADD_SUBSCRIPTION_TO_TXN_RESPONSE): "addSubscriptionToTxnResponse",
    int(Type.SEND_RECEIPT): "send_receipt",
    int(Type.ACK_RESPONSE): "ackResponse",
    int(Type.END_TXN_RESPONSE): "endTxnResponse",
    int(Type.SEND_ERROR): "send_error",
    int(Type.ERROR): "error",
}


class Source:
    """Returns the messages of the input topic one by one."""

    def __init__(self, topic: str, ledger_id: int) -> None:
        self.topic = topic
        self.ledger_id = ledger_id
        self._next_entry_id = 0

    def take(self) -> int:
        entry_id = self._next_entry_id
        self._next_entry_id += 1
        return entry_id


def acknowledgement(source: Source, txn_id: TxnId, request_id: int) -> pb.BaseCommand:
    """The acknowledgement of the next message by consumer 1."""
    ack = pb.CommandAck(
        consumer_id=1,
        ack_type=pb.CommandAck.Individual,
        txnid_most_bits=txn_id.most,
        txnid_least_bits=txn_id.least,
        request_id=request_id,
    )
    ack.message_id.add(ledgerId=source.ledger_id, entryId=source.take())
    return pb.BaseCommand(type=Type.ACK, ack=ack)


def end_txn(request_id: int, txn_id: TxnId, action: pb.TxnAction = pb.COMMIT) -> pb.BaseCommand:
    end = pb.CommandEndTxn(
        request_id=request_id,
        txnid_most_bits=txn_id.most,
        txnid_least_bits=txn_id.least,
        txn_action=action,
    )
    return pb.BaseCommand(type=Type.END_TXN, endTxn=end)
