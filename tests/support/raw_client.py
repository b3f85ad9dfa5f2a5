"""A client without rules: sends any command in any order, and returns the answers."""

import itertools
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pybroker.base.names import TxnId
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.frames import CommandFrame, FrameDecoder, encode_frame
from pybroker.wire.message_metadata import build_entry

_T = pb.BaseCommand
ANSWER_TIMEOUT_S = 30.0


class Refused(Exception):
    """CONNECT was answered with an error: code and message."""


class RawClient:
    def __init__(
        self,
        service_url: str,
        protocol_version: int = 21,
        answer_timeout_s: float = ANSWER_TIMEOUT_S,
        client_version: str = "raw",
        **connect_fields: Any,
    ) -> None:
        host, port = service_url.removeprefix("pulsar://").rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=answer_timeout_s)
        self._decoder = FrameDecoder(5 * 1024 * 1024)
        self._received: list[CommandFrame] = []
        self._request_ids = itertools.count(1)
        self._held: list[bytes] | None = None
        self.entry = b""  # that came with the last returned command
        connect = pb.CommandConnect(
            client_version=client_version, protocol_version=protocol_version, **connect_fields
        )
        self.send(_T.CONNECT, "connect", connect)
        self.connected = self.receive(_T.CONNECTED, _T.ERROR)
        if isinstance(self.connected, pb.CommandError):
            self._socket.close()
            raise Refused(self.connected.error, self.connected.message)

    def __enter__(self) -> "RawClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def send(self, kind: Any, field: str, body: Any, entry: bytes = b"") -> None:
        command = pb.BaseCommand(type=kind)
        getattr(command, field).CopyFrom(body)
        if self._held is not None:
            self._held.append(encode_frame(command, entry))
        else:
            self._socket.sendall(encode_frame(command, entry))

    @contextmanager
    def in_one_piece(self) -> Iterator[None]:
        """Commands sent within the block arrive together, and the broker handles them at once."""
        self._held = held = []
        yield
        self._held = None
        self._socket.sendall(b"".join(held))

    def receive(self, *kinds: Any) -> Any:
        """The body of the next command of one of these kinds."""
        return self._next(lambda command: command.type in kinds)

    def _next(self, wanted: Any) -> Any:
        looked_at = 0
        while True:
            for index in range(looked_at, len(self._received)):
                if wanted(self._received[index].command):
                    frame = self._received.pop(index)
                    self.entry = frame.entry
                    return _body(frame.command)
            looked_at = len(self._received)
            data = self._socket.recv(65536)
            if not data:
                raise ConnectionError("the broker closed the connection")
            for event in self._decoder.receive(data):
                assert isinstance(event, CommandFrame)
                self._received.append(event)

    def request(self, kind: Any, field: str, body: Any) -> Any:
        """Send a request; returns the answer with its request id, error or not."""
        return self.answer_to(self.start_request(kind, field, body))

    def start_request(self, kind: Any, field: str, body: Any) -> int:
        body.request_id = next(self._request_ids)
        self.send(kind, field, body)
        return int(body.request_id)

    def answer_to(self, request_id: int) -> Any:
        return self._next(lambda command: getattr(_body(command), "request_id", None) == request_id)

    def kinds_before_pong(self) -> list[int]:
        """The kinds of commands that the broker sends until it answers a PING."""
        self.send(_T.PING, "ping", pb.CommandPing())
        self.receive(_T.PONG)
        kinds = [frame.command.type for frame in self._received]
        self._received.clear()
        return kinds

    def waiting_messages(self) -> int:
        """The number of messages that the broker has sent and that are not received yet."""
        self.send(_T.PING, "ping", pb.CommandPing())
        self.receive(_T.PONG)
        return sum(frame.command.type == _T.MESSAGE for frame in self._received)

    def wait_closed(self) -> None:
        """Wait until the broker has closed the connection."""
        try:
            while self._socket.recv(65536):
                pass
        except ConnectionResetError:
            return

    # -- transactions: each method returns the whole response, error or not

    def new_txn(self, timeout_ms: int = 60_000, tc_id: int = 0, **fields: Any) -> TxnId:
        response = self.try_new_txn(timeout_ms, tc_id, **fields)
        assert not response.HasField("error"), response
        return TxnId(response.txnid_most_bits, response.txnid_least_bits)

    def try_new_txn(self, timeout_ms: int = 60_000, tc_id: int = 0, **fields: Any) -> Any:
        body = pb.CommandNewTxn(txn_ttl_millis=timeout_ms, tc_id=tc_id, **fields)
        return self.request(_T.NEW_TXN, "newTxn", body)

    def add_partition(self, txn_id: TxnId, topic: str) -> Any:
        body = pb.CommandAddPartitionToTxn(
            txnid_most_bits=txn_id.most, txnid_least_bits=txn_id.least, partitions=[topic]
        )
        return self.request(_T.ADD_PARTITION_TO_TXN, "addPartitionToTxn", body)

    def add_subscription(self, txn_id: TxnId, topic: str, subscription: str) -> Any:
        body = pb.CommandAddSubscriptionToTxn(
            txnid_most_bits=txn_id.most, txnid_least_bits=txn_id.least
        )
        body.subscription.add(topic=topic, subscription=subscription)
        return self.request(_T.ADD_SUBSCRIPTION_TO_TXN, "addSubscriptionToTxn", body)

    def end(self, txn_id: TxnId, commit: bool) -> Any:
        self.send_end(txn_id, commit)
        return self.receive(_T.END_TXN_RESPONSE)

    def send_end(self, txn_id: TxnId, commit: bool) -> None:
        body = pb.CommandEndTxn(
            txnid_most_bits=txn_id.most,
            txnid_least_bits=txn_id.least,
            txn_action=pb.COMMIT if commit else pb.ABORT,
        )
        self.start_request(_T.END_TXN, "endTxn", body)

    # -- producing

    def create_producer(self, topic: str, producer_id: int = 1, **fields: Any) -> str:
        answer = self.ask_for_producer(topic, producer_id, **fields)
        assert isinstance(answer, pb.CommandProducerSuccess), answer
        return answer.producer_name

    def ask_for_producer(self, topic: str, producer_id: int = 1, **fields: Any) -> Any:
        """The answer: PRODUCER_SUCCESS or ERROR."""
        body = pb.CommandProducer(topic=topic, producer_id=producer_id, **fields)
        return self.request(_T.PRODUCER, "producer", body)

    def close_producer(self, producer_id: int = 1) -> Any:
        body = pb.CommandCloseProducer(producer_id=producer_id)
        return self.request(_T.CLOSE_PRODUCER, "close_producer", body)

    def publish(
        self, payload: bytes, sequence_id: int, txn_id: TxnId | None = None, **fields: Any
    ) -> Any:
        """The answer: a receipt or a send error."""
        self.start_publish(payload, sequence_id, txn_id, **fields)
        return self.receive(_T.SEND_RECEIPT, _T.SEND_ERROR)

    def start_publish(
        self,
        payload: bytes,
        sequence_id: int,
        txn_id: TxnId | None = None,
        producer_id: int = 1,
        send_fields: dict[str, Any] | None = None,
        **metadata_fields: Any,
    ) -> None:
        metadata_fields.setdefault("producer_name", "raw")
        metadata_fields.setdefault("publish_time", 1_700_000_000_000)
        metadata = pb.MessageMetadata(sequence_id=sequence_id, **metadata_fields)
        fields = {"producer_id": producer_id, "sequence_id": sequence_id, **(send_fields or {})}
        send = pb.CommandSend(**fields)
        for message in (metadata, send) if txn_id is not None else ():
            message.txnid_most_bits, message.txnid_least_bits = txn_id
        self.send(_T.SEND, "send", send, build_entry(metadata, payload))

    # -- consuming

    def subscribe(self, topic: str, consumer_id: int = 1, **fields: Any) -> Any:
        """The answer: SUCCESS or ERROR. By default Exclusive and from the beginning."""
        return self.answer_to(self.start_subscribe(topic, consumer_id, **fields))

    def start_subscribe(self, topic: str, consumer_id: int = 1, **fields: Any) -> int:
        fields.setdefault("subscription", "raw")
        fields.setdefault("subType", pb.CommandSubscribe.Exclusive)
        fields.setdefault("initialPosition", pb.CommandSubscribe.Earliest)
        body = pb.CommandSubscribe(topic=topic, consumer_id=consumer_id, **fields)
        return self.start_request(_T.SUBSCRIBE, "subscribe", body)

    def close_consumer(self, consumer_id: int = 1) -> Any:
        body = pb.CommandCloseConsumer(consumer_id=consumer_id)
        return self.request(_T.CLOSE_CONSUMER, "close_consumer", body)

    def flow(self, permits: int, consumer_id: int = 1) -> None:
        flow = pb.CommandFlow(consumer_id=consumer_id, messagePermits=permits)
        self.send(_T.FLOW, "flow", flow)

    def messages(self, count: int) -> list[Any]:
        return [self.receive(_T.MESSAGE) for _ in range(count)]

    def receive_entry(self, topic: str) -> bytes:
        """The first entry of the topic, as in its MESSAGE command."""
        self.subscribe(topic)
        self.flow(1)
        self.receive(_T.MESSAGE)
        return self.entry


def _body(command: pb.BaseCommand) -> Any:
    for descriptor, value in command.ListFields():
        if descriptor.name != "type":
            return value
    raise AssertionError(f"{command} has no body")
