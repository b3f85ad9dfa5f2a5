"""Consumers for workers: a raw one like those of Apache's clients, with control over each command,
and this project's own.

Like Java's, the raw one keeps its name and consumer id over connections, and its client's request
ids only rise. It counts epochs: a request for redelivery of everything begins one, and deliveries
of an earlier one are dropped unseen. While it is not connected, the application goes on receiving
what had arrived; a new connection clears the queue.
"""

import asyncio
import contextlib
import random
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from checks.conflicts import Key

from clients.plain import value_of
from clients.raw import Gone, RawPeer
from pybroker.client import Timeout, TransactionConflict
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.commands import ack_set_bits, ack_set_words
from pybroker.wire.frames import CommandFrame
from pybroker.wire.message_metadata import parse_metadata, payload_of

_U32: Final = struct.Struct(">I")
DEAD_AFTER_S: Final = 60.0  # the broker pings twice in this time


class Conflict(Exception):
    """The answer to an acknowledgement is TransactionConflict."""


@dataclass(frozen=True, slots=True, eq=False)
class Copy:
    """One delivery of a message."""

    key: Key
    batch_size: int  # 0 outside of a batch
    value: str


class _Peer(RawPeer):
    owner: "RawConsumer | None" = None
    heard_s = 0.0

    def data_received(self, data: bytes) -> None:
        self.heard_s = asyncio.get_running_loop().time()
        for frame in self._decoder.receive(data):
            if isinstance(frame, CommandFrame):
                self._hear(frame)
        self._tell()

    def _hear(self, frame: CommandFrame) -> None:
        kind = frame.command.type
        if kind == pb.BaseCommand.PING:
            self.post(pb.CommandPong())
        elif kind in _FOR_CONSUMERS:
            if self.owner is not None:
                self.owner.hear(frame)
        else:
            self._received.append(frame)

    def ask(self, body: Any, request_id: int) -> None:
        body.request_id = request_id
        self.post(body)

    async def answer_to(self, request_id: int) -> Any:
        """Raises Gone."""
        return await self._next(lambda answer, _: getattr(answer, "request_id", None) == request_id)


_FOR_CONSUMERS: Final = frozenset(
    (
        pb.BaseCommand.MESSAGE,
        pb.BaseCommand.ACTIVE_CONSUMER_CHANGE,
        pb.BaseCommand.CLOSE_CONSUMER,
    )
)


class RawConsumer:
    """The hooks are called when a SUBSCRIBE is sent, with its request id; when a pass begins; for
    each message that arrives and counts; and when the application is to forget all that it has.
    """

    def __init__(
        self, topic: str, subscription: str, kind: str, name: str, consumer_id: int,
        queue_size: int, requests: Iterator[int],
    ) -> None:  # fmt: skip
        self.topic = topic
        self.subscription = subscription
        self.kind = kind
        self.name = name
        self.consumer_id = consumer_id
        self.queue_size = queue_size
        self.requests = requests
        self.queue: deque[Copy] = deque()
        self.epoch = 0
        self.on_subscribe: Callable[[int], None] = lambda _: None
        self.on_pass: Callable[[], None] = lambda: None
        self.on_given: Callable[[Key], None] = lambda _: None
        self._peer: _Peer | None = None
        self._was_active = False

    @property
    def connected(self) -> bool:
        """False also if nothing is heard any more, not even a PING."""
        peer = self._peer
        if peer is not None and asyncio.get_running_loop().time() - peer.heard_s > DEAD_AFTER_S:
            self.cut()
        return self._peer is not None and not self._peer.lost

    # -- connections

    async def connect(self) -> bool:
        """Tries once. Without an answer it closes the connection: the broker may still take the
        SUBSCRIBE, and would deliver to a consumer that nobody reads.
        """
        self.cut()
        peer: _Peer | None = None
        try:
            peer = await _Peer.connect()
            peer.owner = self
            await peer.request(pb.CommandTcClientConnectRequest(tc_id=0))
            return await self._subscribe(peer)
        except (OSError, Gone):
            if peer is not None:
                peer.owner = None
                peer.close()
            return False

    async def _subscribe(self, peer: _Peer) -> bool:
        request_id = next(self.requests)
        self.on_subscribe(request_id)
        self.queue.clear()
        self._was_active = False
        if self.kind == "Exclusive":
            self.on_pass()
        command = pb.CommandSubscribe(
            topic=self.topic,
            subscription=self.subscription,
            subType=pb.CommandSubscribe.SubType.Value(self.kind),
            consumer_id=self.consumer_id,
            consumer_name=self.name,
            initialPosition=pb.CommandSubscribe.Earliest,
            consumer_epoch=self.epoch,
        )
        peer.ask(command, request_id)
        answer = await peer.answer_to(request_id)
        if not isinstance(answer, pb.CommandSuccess):
            peer.close()
            return False
        self._peer = peer
        self._flow(self.queue_size)
        return True

    def cut(self) -> None:
        """Loses the connection; the broker sees no CLOSE_CONSUMER."""
        if self._peer is not None:
            self._peer.owner = None
            self._peer.close()
            self._peer = None

    async def close(self) -> None:
        peer, request_id = self._peer, next(self.requests)
        if peer is not None and not peer.lost:
            peer.ask(pb.CommandCloseConsumer(consumer_id=self.consumer_id), request_id)
            with contextlib.suppress(Gone):
                await peer.answer_to(request_id)
        self.cut()

    # -- deliveries

    def hear(self, frame: CommandFrame) -> None:
        command = frame.command
        if command.type == pb.BaseCommand.MESSAGE:
            self._arrived(command.message, frame.entry)
        elif command.type == pb.BaseCommand.ACTIVE_CONSUMER_CHANGE:
            active = command.active_consumer_change.is_active
            if active and not self._was_active:
                self.on_pass()
            self._was_active = active
        else:
            self.cut()

    def _arrived(self, message: pb.CommandMessage, entry: bytes) -> None:
        copies = _copies(message, entry)
        if message.consumer_epoch < self.epoch:
            self._flow(len(copies))
            return
        for copy in copies:
            self.on_given(copy.key)
            self.queue.append(copy)

    def _flow(self, permits: int) -> None:
        if self._peer is not None:
            command = pb.CommandFlow(consumer_id=self.consumer_id, messagePermits=permits)
            self._peer.post(command)

    async def receive(self, within_s: float) -> Copy | None:
        end_s = asyncio.get_running_loop().time() + within_s
        while not self.queue:
            if asyncio.get_running_loop().time() >= end_s:
                return None
            await asyncio.sleep(within_s / 8)
        self._flow(1)
        return self.queue.popleft()

    # -- commands

    def redeliver(self) -> None:
        """Everything, in a new epoch. While it is not connected, the next SUBSCRIBE tells it. Call
        it when the life has forgotten what it has.
        """
        self.epoch += 1
        cleared = len(self.queue)
        self.queue.clear()
        if self._peer is not None and not self._peer.lost:
            self._peer.post(
                pb.CommandRedeliverUnacknowledgedMessages(
                    consumer_id=self.consumer_id, consumer_epoch=self.epoch
                )
            )
            if self.kind == "Exclusive" or self._was_active:
                self.on_pass()
            if cleared:
                self._flow(cleared)

    def acknowledge(self, copies: list[Copy], txn: Any, cumulative: bool) -> int:
        """Sends the command; its request id. Raises Gone."""
        if self._peer is None or self._peer.lost:
            raise Gone("the consumer is not connected")
        command = pb.CommandAck(
            consumer_id=self.consumer_id,
            ack_type=pb.CommandAck.Cumulative if cumulative else pb.CommandAck.Individual,
            txnid_most_bits=txn.txn_id.most,
            txnid_least_bits=txn.txn_id.least,
            message_id=[_message_id(copy, cumulative) for copy in copies],
        )
        request_id = next(self.requests)
        self._peer.ask(command, request_id)
        return request_id

    async def answer_to(self, request_id: int) -> None:
        """Raises Conflict, Gone."""
        if self._peer is None:
            raise Gone("the consumer has lost its connection")
        answer = await self._peer.answer_to(request_id)
        if not answer.HasField("error"):
            return
        if answer.error == pb.TransactionConflict:
            raise Conflict(answer.message)
        raise Gone(f"{pb.ServerError.Name(answer.error)}: {answer.message}")


class OwnConsumer:
    """The same for this project's client, which reconnects by itself."""

    def __init__(self, subscribed: Callable[[], Awaitable[Any]], topic: str) -> None:
        self.topic = topic
        self._subscribed = subscribed
        self._consumer: Any = None
        self._messages: dict[Copy, Any] = {}
        self._asked: list[Callable[[], Awaitable[None]]] = []

    @property
    def connected(self) -> bool:
        return self._consumer is not None

    async def connect(self) -> bool:
        self._consumer = await self._subscribed()
        return True

    def cut(self) -> None:
        """Its connection is the client's, and so closed with it."""

    async def close(self) -> None:
        if self._consumer is not None:
            await self._consumer.close()

    async def receive(self, within_s: float) -> Copy | None:
        if self._consumer is None:
            return None
        try:
            message = await self._consumer.receive(timeout_millis=int(1000 * within_s))
        except Timeout:
            return None
        copy = Copy(message.order_key, message.place[3], value_of(message))
        self._messages[copy] = message
        return copy

    def redeliver(self) -> None:
        if self._consumer is not None:
            self._consumer.redeliver_unacknowledged_messages()

    def acknowledge(self, copies: list[Copy], txn: Any, cumulative: bool) -> int:
        self._asked.append(partial(self._acknowledge, copies, txn, cumulative))
        return len(self._asked) - 1

    async def _acknowledge(self, copies: list[Copy], txn: Any, cumulative: bool) -> None:
        messages = [self._messages[copy] for copy in copies]
        if cumulative:
            await self._consumer.acknowledge_cumulative(messages[-1], txn=txn)
        else:
            await self._consumer.acknowledge(messages, txn=txn)

    async def answer_to(self, request_id: int) -> None:
        """Raises Conflict, and the client's errors."""
        try:
            await self._asked[request_id]()
        except TransactionConflict as error:
            raise Conflict(str(error)) from error


def request_ids(rng: random.Random) -> Iterator[int]:
    """A client's, from a random start on, as Java's."""
    number = rng.randrange(2**61)
    while True:
        number += 1
        yield number


def _message_id(copy: Copy, cumulative: bool) -> pb.MessageIdData:
    ledger_id, entry_id, index = copy.key
    wanted = pb.MessageIdData(ledgerId=ledger_id, entryId=entry_id)
    if copy.batch_size > 1:
        every = (1 << copy.batch_size) - 1
        unacked = every & ~((2 << index) - 1) if cumulative else every & ~(1 << index)
        if unacked:
            wanted.batch_size = copy.batch_size
            words = ack_set_words(unacked, copy.batch_size)
            wanted.ack_set.extend(word - 2**64 if word >= 2**63 else word for word in words)
    return wanted


def _copies(message: pb.CommandMessage, entry: bytes) -> list[Copy]:
    where = message.message_id.ledgerId, message.message_id.entryId
    metadata, payload = parse_metadata(entry), payload_of(entry)
    if not metadata.HasField("num_messages_in_batch"):
        return [Copy((*where, -1), 0, _value(payload))]
    size, start, copies = metadata.num_messages_in_batch, 0, []
    wanted = ack_set_bits(message.ack_set, size) if message.ack_set else (1 << size) - 1
    for index in range(size):
        head = start + 4
        body = head + _U32.unpack_from(payload, start)[0]
        single = pb.SingleMessageMetadata.FromString(payload[head:body])
        start = body + single.payload_size
        if wanted >> index & 1:
            copies.append(Copy((*where, index), size, _value(payload[body:start])))
    return copies


def _value(payload: bytes) -> str:
    return payload.partition(b"|")[0].decode()
