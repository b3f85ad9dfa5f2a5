"""What a transaction costs, in calls of the broker's functions: the same on every machine.

Many transactions are open at once on one connection, and each step of all of them arrives together
(as in the benchmarks). Storage is in memory, and time is virtual. A limit is what was measured when
it was set; a feature that nobody uses must not raise it.
"""

import asyncio
import random
import struct
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from virtual_loop import LoopClock, run_virtually

import managed_ledger
import pybroker
from managed_ledger.storage.memory import MemoryBackend
from pybroker.base.configuration.config import BrokerConfig
from pybroker.process.app import Broker
from pybroker.server.connections.session import Session
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.frames import encode_frame
from pybroker.wire.message_metadata import build_entry

OPEN, COORDINATORS = 64, 4
TOPIC, INPUT = "persistent://public/default/output", "persistent://public/default/input"
SUBSCRIPTION = "transform"
CODE = tuple(str(Path(each.__file__).parent) for each in (pybroker, managed_ledger))
Type = pb.BaseCommand
Ids = tuple[int, int]


class Wire(asyncio.Transport):
    """Counts the answers, and keeps them for `answers`."""

    def __init__(self, session: Session) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self._session = session
        self._written: list[bytes] = []
        self._missing = 0
        self._complete = asyncio.Event()
        session.connection_made(self)
        session.protocol_version = 21
        session.connected()

    async def exchange(self, commands: list[bytes]) -> list[pb.BaseCommand]:
        """Sends commands that have one answer each; returns the answers."""
        self._written, self._missing = [], len(commands)
        self._complete.clear()
        data = b"".join(commands)
        buffer = self._session.get_buffer(len(data))
        assert len(data) <= len(buffer)
        buffer[: len(data)] = data
        self._session.buffer_updated(len(data))
        await self._complete.wait()
        return [pb.BaseCommand.FromString(each[8:]) for each in _frames(b"".join(self._written))]

    def write(self, data: Any) -> None:
        self._written.append(bytes(data))
        self._missing -= sum(1 for _ in _frames(data))
        if self._missing == 0:
            self._complete.set()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Everything written is consumed at once."""

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        """All of a step is handled, even if it takes several turns."""

    def resume_reading(self) -> None:
        """As above."""

    def abort(self) -> None:
        self._session.connection_lost(None)


def _frames(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        size = 4 + struct.unpack_from(">I", data, at)[0]
        yield data[at : at + size]
        at += size


def test_calls_of_a_transaction_with_one_message() -> None:
    assert _calls_of_each(acknowledges=False) <= 345


def test_calls_of_a_transaction_with_one_message_and_one_acknowledgement() -> None:
    assert _calls_of_each(acknowledges=True) <= 541


def _calls_of_each(acknowledges: bool) -> float:
    """The most frequent functions are printed, for a test that fails."""
    calls = run_virtually(_count(acknowledges))
    for name, times in calls.most_common(400):
        print(f"{times / OPEN:6.2f} {name}")
    print("total", calls.total() / OPEN)
    return calls.total() / OPEN


async def _count(acknowledges: bool) -> Counter[str]:
    broker = Broker(BrokerConfig(), MemoryBackend(), LoopClock(), random.Random(1))
    await broker.start(listen=None)
    wire = Wire(broker.server.accept())
    try:
        first = await _prepare(wire)
        await _round(wire, acknowledges, first, 0)  # creates logs, fills caches
        calls = Counter[str]()

        def note(frame: FrameType, event: str, _: Any) -> None:
            code = frame.f_code
            if event == "call" and code.co_filename.startswith(CODE):
                calls[f"{code.co_filename.rpartition('/')[2]}:{code.co_name}"] += 1

        await _round(wire, acknowledges, first, OPEN, note)
        return calls
    finally:
        wire.abort()
        await broker.stop()


async def _prepare(wire: Wire) -> int:
    """Returns the ledger id of the messages to acknowledge."""
    for tc_id in range(COORDINATORS):
        connect = pb.CommandTcClientConnectRequest(request_id=tc_id, tc_id=tc_id)
        command = pb.BaseCommand(
            type=Type.TC_CLIENT_CONNECT_REQUEST, tcClientConnectRequest=connect
        )
        await wire.exchange([encode_frame(command)])
    for producer_id, topic in enumerate((INPUT, TOPIC)):
        producer = pb.CommandProducer(topic=topic, producer_id=producer_id, request_id=producer_id)
        await wire.exchange([encode_frame(pb.BaseCommand(type=Type.PRODUCER, producer=producer))])
    subscribe = pb.CommandSubscribe(
        topic=INPUT,
        subscription=SUBSCRIPTION,
        subType=pb.CommandSubscribe.Shared,
        consumer_id=1,
        request_id=1,
    )
    await wire.exchange([encode_frame(pb.BaseCommand(type=Type.SUBSCRIBE, subscribe=subscribe))])
    receipts = await wire.exchange([_send(0, number, None) for number in range(2 * OPEN)])
    return receipts[0].send_receipt.message_id.ledgerId


async def _round(
    wire: Wire,
    acknowledges: bool,
    ledger_id: int,
    first: int,
    note: Callable[[FrameType, str, Any], None] | None = None,
) -> None:
    """Runs OPEN transactions, which acknowledge the messages from `first` on."""

    async def step(*commands: list[bytes]) -> list[pb.BaseCommand]:
        together = [each for of_one in zip(*commands, strict=True) for each in of_one]
        sys.setprofile(note)
        try:
            answers = await wire.exchange(together)
        finally:
            sys.setprofile(None)
        assert {len(commands) * OPEN} == {len(answers)}
        return answers

    begun = await step([_new(number) for number in range(OPEN)])
    answers = [each.newTxnResponse for each in begun]
    ids = [(each.txnid_most_bits, each.txnid_least_bits) for each in answers]
    topics = [_add_topic(each) for each in ids]
    messages = [_send(1, first + at, each) for at, each in enumerate(ids)]
    if acknowledges:
        await step(topics, [_add_subscription(each) for each in ids])
        await step(messages, [_ack(each, ledger_id, first + at) for at, each in enumerate(ids)])
    else:
        await step(topics)
        await step(messages)
    for ended in await step([_end(each) for each in ids]):
        assert not ended.endTxnResponse.HasField("error")


def _new(number: int) -> bytes:
    new = pb.CommandNewTxn(request_id=number, txn_ttl_millis=600_000, tc_id=number % COORDINATORS)
    return encode_frame(pb.BaseCommand(type=Type.NEW_TXN, newTxn=new))


def _add_topic(txn_id: Ids) -> bytes:
    most, least = txn_id
    add = pb.CommandAddPartitionToTxn(
        request_id=1, txnid_most_bits=most, txnid_least_bits=least, partitions=[TOPIC]
    )
    return encode_frame(pb.BaseCommand(type=Type.ADD_PARTITION_TO_TXN, addPartitionToTxn=add))


def _add_subscription(txn_id: Ids) -> bytes:
    most, least = txn_id
    add = pb.CommandAddSubscriptionToTxn(request_id=1, txnid_most_bits=most, txnid_least_bits=least)
    add.subscription.add(topic=INPUT, subscription=SUBSCRIPTION)
    command = pb.BaseCommand(type=Type.ADD_SUBSCRIPTION_TO_TXN, addSubscriptionToTxn=add)
    return encode_frame(command)


def _send(producer_id: int, number: int, txn_id: Ids | None) -> bytes:
    send = pb.CommandSend(producer_id=producer_id, sequence_id=number)
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=number, publish_time=1)
    if txn_id is not None:
        send.txnid_most_bits, send.txnid_least_bits = txn_id
        metadata.txnid_most_bits, metadata.txnid_least_bits = txn_id
    entry = build_entry(metadata, bytes(100))
    return encode_frame(pb.BaseCommand(type=Type.SEND, send=send), entry)


def _ack(txn_id: Ids, ledger_id: int, entry_id: int) -> bytes:
    ack = pb.CommandAck(consumer_id=1, ack_type=pb.CommandAck.Individual, request_id=1)
    ack.txnid_most_bits, ack.txnid_least_bits = txn_id
    ack.message_id.add(ledgerId=ledger_id, entryId=entry_id)
    return encode_frame(pb.BaseCommand(type=Type.ACK, ack=ack))


def _end(txn_id: Ids) -> bytes:
    most, least = txn_id
    end = pb.CommandEndTxn(
        request_id=1, txnid_most_bits=most, txnid_least_bits=least, txn_action=pb.COMMIT
    )
    return encode_frame(pb.BaseCommand(type=Type.END_TXN, endTxn=end))
