"""A scripted broker, joined to the client in memory, on an event loop with virtual time.

It answers like an idle broker. A test replaces single answers, inspects the requests, and sends
what a broker sends unasked. Waiting costs nothing: when no callback is ready, the clock jumps to
the next timer. A wait that nothing can end is an error.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from pybroker.base.names import TxnId
from pybroker.client import Outgoing, encode_batch
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.frames import CommandFrame, FrameDecoder, SendRun, encode_frame
from pybroker.wire.message_metadata import build_entry

T = TypeVar("T")
Answer = Callable[["Peer", Any], Any]
FIELDS = {f.message_type.name: f for f in pb.BaseCommand.DESCRIPTOR.fields if f.message_type}


class JumpingSelector(selectors.SelectSelector):
    """Passes time when no socket is ready."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise RuntimeError("everything waits for something that cannot happen")
            self.now_s += timeout
        return ready


class ScriptedLoop(asyncio.SelectorEventLoop):
    def __init__(self, broker: "ScriptedBroker") -> None:
        self._jumping = JumpingSelector()
        self._broker = broker
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s

    async def create_connection(self, factory: Any, host: str, port: int, **_: Any) -> Any:
        if f"{host}:{port}" in self._broker.unreachable or self._broker.down:
            raise ConnectionRefusedError(f"{host}:{port} refused")
        protocol = factory()
        peer = Peer(self._broker, protocol, f"{host}:{port}")
        self._broker.peers.append(peer)
        protocol.connection_made(peer.transport)
        return peer.transport, protocol


class MemoryTransport(asyncio.Transport):
    def __init__(self, peer: "Peer") -> None:
        super().__init__()
        self._peer = peer
        self._closing = False

    def write(self, data: Any) -> None:
        if not self._closing:
            self._peer.broker.writes += 1
            asyncio.get_running_loop().call_soon(self._peer.receive, bytes(data))

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        self._peer.drop()

    def abort(self) -> None:
        self._peer.drop()

    def end(self) -> bool:
        was_open, self._closing = not self._closing, True
        return was_open


class Peer:
    """The broker's end of one connection."""

    def __init__(self, broker: "ScriptedBroker", protocol: Any, address: str) -> None:
        self.broker = broker
        self.address = address
        self.transport = MemoryTransport(self)
        self._protocol = protocol
        self._decoder = FrameDecoder(10 * 1024 * 1024)

    def receive(self, data: bytes) -> None:
        for event in self._decoder.receive(data):
            if isinstance(event, SendRun):
                self._receive_sends(event)
            elif isinstance(event, CommandFrame):
                number = event.command.type
                field = pb.BaseCommand.DESCRIPTOR.fields_by_number[number]
                self._receive_body(getattr(event.command, field.name))

    def _receive_sends(self, run: SendRun) -> None:
        for sequence_id, entry in zip(run.sequence_ids(), run.entries, strict=True):
            self.broker.sent.append(Sent(run.producer_id, sequence_id, run.txn_id, entry))
            answer = self.broker.on_send(self, self.broker.sent[-1])
            if answer is not None:
                self.say(answer)

    def _receive_body(self, body: Any) -> None:
        self.broker.asked.append(body)
        answer = self.broker.answers.get(type(body).__name__.removeprefix("Command"))
        said = None if answer is None else answer(self, body)
        if said is not None:
            if "request_id" in body.DESCRIPTOR.fields_by_name:
                said.request_id = body.request_id
            self.say(said)

    def say(self, body: Any, entry: bytes = b"") -> None:
        field = FIELDS[type(body).__name__]
        command = pb.BaseCommand(type=field.number)
        getattr(command, field.name).CopyFrom(body)
        if not self.transport.is_closing():
            frame = encode_frame(command, entry)
            asyncio.get_running_loop().call_soon(self._deliver, frame)

    def _deliver(self, frame: bytes) -> None:
        if not self.transport.is_closing():
            self._protocol.data_received(frame)

    def deliver(
        self,
        consumer_id: int,
        entry_id: int,
        payload: bytes,
        *,
        ack_set: tuple[int, ...] = (),
        consumer_epoch: int | None = None,
        **metadata: Any,
    ) -> None:
        message = pb.CommandMessage(
            consumer_id=consumer_id,
            message_id=pb.MessageIdData(ledgerId=1, entryId=entry_id),
            ack_set=ack_set,
            consumer_epoch=consumer_epoch,
        )
        described = pb.MessageMetadata(
            producer_name="p", sequence_id=entry_id, publish_time=7, **metadata
        )
        self.say(message, build_entry(described, payload))

    def drop(self) -> None:
        if self.transport.end():
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)

    def lose(self) -> None:
        """Like `drop`, but in this turn of the event loop."""
        if self.transport.end():
            self._protocol.connection_lost(None)


class Sent:
    """One SEND as received by the broker."""

    def __init__(
        self, producer_id: int, sequence_id: int, txn_id: TxnId | None, entry: bytes
    ) -> None:
        self.producer_id = producer_id
        self.sequence_id = sequence_id
        self.txn_id = txn_id
        self.entry = entry


def receipt(sent: Sent) -> pb.CommandSendReceipt:
    stored = pb.MessageIdData(ledgerId=1, entryId=sent.sequence_id)
    return pb.CommandSendReceipt(
        producer_id=sent.producer_id, sequence_id=sent.sequence_id, message_id=stored
    )


class ScriptedBroker:
    def __init__(self) -> None:
        self.peers: list[Peer] = []
        self.asked: list[Any] = []
        self.writes = 0  # by the client, to any of its sockets
        self.sent: list[Sent] = []
        self.unreachable: set[str] = set()
        self.down = False
        self.on_send: Callable[[Peer, Sent], Any] = lambda peer, sent: receipt(sent)
        self.answers: dict[str, Answer] = {
            "Connect": lambda *_: pb.CommandConnected(server_version="scripted"),
            "PartitionedTopicMetadata": _partitions,
            "LookupTopic": lambda *_: pb.CommandLookupTopicResponse(
                request_id=0,
                response=pb.CommandLookupTopicResponse.Connect,
                brokerServiceUrl="pulsar://one:6650",
            ),
            "Producer": lambda _, body: pb.CommandProducerSuccess(
                request_id=0, producer_name=body.producer_name or "given-name"
            ),
            "Subscribe": _success,
            "CloseProducer": _success,
            "CloseConsumer": _success,
            "Unsubscribe": _success,
            "Seek": _success,
            "GetLastMessageId": lambda *_: refusal(pb.NotAllowedError, "nobody knows"),
            "TcClientConnectRequest": lambda *_: pb.CommandTcClientConnectResponse(request_id=0),
            "NewTxn": lambda _, body: pb.CommandNewTxnResponse(
                request_id=0, txnid_most_bits=body.tc_id, txnid_least_bits=0
            ),
            "AddPartitionToTxn": lambda *_: pb.CommandAddPartitionToTxnResponse(request_id=0),
            "AddSubscriptionToTxn": lambda *_: pb.CommandAddSubscriptionToTxnResponse(request_id=0),
            "EndTxn": lambda *_: pb.CommandEndTxnResponse(request_id=0),
            "Ack": lambda _, body: (
                pb.CommandAckResponse(consumer_id=body.consumer_id)
                if body.HasField("request_id")
                else None
            ),
        }

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        with asyncio.Runner(loop_factory=lambda: ScriptedLoop(self)) as runner:
            return runner.run(work)

    @property
    def peer(self) -> Peer:
        """The newest open connection."""
        return next(peer for peer in reversed(self.peers) if not peer.transport.is_closing())

    def asked_for(self, kind: type[T]) -> list[T]:
        return [body for body in self.asked if isinstance(body, kind)]

    def never_answers(self, *commands: str) -> None:
        for command in commands:
            self.answers.pop(command)


def _success(*_: Any) -> pb.CommandSuccess:
    return pb.CommandSuccess(request_id=0)


def _partitions(_: Peer, body: Any) -> pb.CommandPartitionedTopicMetadataResponse:
    counts = {"parts": 3, "transaction_coordinator_assign": 2}
    return pb.CommandPartitionedTopicMetadataResponse(
        request_id=0, partitions=counts.get(body.topic.rpartition("/")[2], 0)
    )


def refusal(code: int, message: str = "refused") -> pb.CommandError:
    return pb.CommandError(request_id=0, error=code, message=message)


def closes_whoever_seeks(peer: Peer, body: Any) -> pb.CommandSuccess:
    peer.say(pb.CommandCloseConsumer(consumer_id=body.consumer_id, request_id=0))
    return pb.CommandSuccess(request_id=0)


BATCH = encode_batch([Outgoing(b"a", {"n": "0"}, "key"), b"b", b"c"])


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def deliver_batch(broker: ScriptedBroker, entry_id: int, **details: Any) -> None:
    broker.peer.deliver(
        1,
        entry_id,
        BATCH.payload,
        num_messages_in_batch=3,
        uncompressed_size=BATCH.uncompressed_size,
        **details,
    )


def acks(broker: ScriptedBroker) -> list[list[tuple[int, list[int]]]]:
    return [
        [(each.entryId, list(each.ack_set)) for each in ack.message_id]
        for ack in broker.asked_for(pb.CommandAck)
    ]
