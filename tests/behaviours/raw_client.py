"""A client without manners: sends any command, in any order, and hands back what comes."""

import itertools
import socket
from typing import Any

from pybroker.names import TxnId
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.frames import CommandFrame, FrameDecoder, encode_frame
from pybroker.wire.message_metadata import build_entry

_T = pb.BaseCommand
ANSWER_TIMEOUT_S = 10.0


class RawClient:
    def __init__(self, service_url: str) -> None:
        host, port = service_url.removeprefix("pulsar://").rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=ANSWER_TIMEOUT_S)
        self._decoder = FrameDecoder(5 * 1024 * 1024)
        self._received: list[pb.BaseCommand] = []
        self._request_ids = itertools.count(1)
        self.entry = b""  # behind the last command that came
        connect = pb.CommandConnect(client_version="raw", protocol_version=21)
        self.send(_T.CONNECT, "connect", connect)
        self.receive(_T.CONNECTED)

    def __enter__(self) -> "RawClient":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, kind: Any, field: str, body: Any, entry: bytes = b"") -> None:
        command = pb.BaseCommand(type=kind)
        getattr(command, field).CopyFrom(body)
        self._socket.sendall(encode_frame(command, entry))

    def receive(self, *kinds: Any) -> Any:
        """The next command of one of these kinds; its body."""
        while True:
            for index, command in enumerate(self._received):
                if command.type in kinds:
                    del self._received[index]
                    return _body(command)
            data = self._socket.recv(65536)
            assert data, "the broker closed the connection"
            for event in self._decoder.receive(data):
                assert isinstance(event, CommandFrame)
                self._received.append(event.command)
                self.entry = event.entry

    # -- transactions, each returning the whole response, error or not

    def new_txn(self, timeout_ms: int = 60_000, tc_id: int = 0) -> TxnId:
        response = self.try_new_txn(timeout_ms, tc_id)
        assert not response.HasField("error"), response
        return TxnId(response.txnid_most_bits, response.txnid_least_bits)

    def try_new_txn(self, timeout_ms: int = 60_000, tc_id: int = 0) -> Any:
        body = pb.CommandNewTxn(
            request_id=next(self._request_ids), txn_ttl_millis=timeout_ms, tc_id=tc_id
        )
        self.send(_T.NEW_TXN, "newTxn", body)
        return self.receive(_T.NEW_TXN_RESPONSE)

    def add_partition(self, txn_id: TxnId, topic: str) -> Any:
        body = pb.CommandAddPartitionToTxn(
            request_id=next(self._request_ids),
            txnid_most_bits=txn_id.most,
            txnid_least_bits=txn_id.least,
            partitions=[topic],
        )
        self.send(_T.ADD_PARTITION_TO_TXN, "addPartitionToTxn", body)
        return self.receive(_T.ADD_PARTITION_TO_TXN_RESPONSE)

    def end(self, txn_id: TxnId, commit: bool) -> Any:
        self.send_end(txn_id, commit)
        return self.receive(_T.END_TXN_RESPONSE)

    def send_end(self, txn_id: TxnId, commit: bool) -> None:
        body = pb.CommandEndTxn(
            request_id=next(self._request_ids),
            txnid_most_bits=txn_id.most,
            txnid_least_bits=txn_id.least,
            txn_action=pb.COMMIT if commit else pb.ABORT,
        )
        self.send(_T.END_TXN, "endTxn", body)

    # -- producing

    def create_producer(self, topic: str, producer_id: int = 1) -> str:
        body = pb.CommandProducer(
            topic=topic, producer_id=producer_id, request_id=next(self._request_ids)
        )
        self.send(_T.PRODUCER, "producer", body)
        return self.receive(_T.PRODUCER_SUCCESS).producer_name

    def publish(
        self,
        payload: bytes,
        sequence_id: int,
        txn_id: TxnId | None = None,
        producer_id: int = 1,
        **metadata_fields: Any,
    ) -> Any:
        """A receipt or a send error."""
        metadata = pb.MessageMetadata(
            producer_name="raw",
            sequence_id=sequence_id,
            publish_time=1_700_000_000_000,
            **metadata_fields,
        )
        send = pb.CommandSend(producer_id=producer_id, sequence_id=sequence_id)
        for message in (metadata, send) if txn_id is not None else ():
            message.txnid_most_bits, message.txnid_least_bits = txn_id
        self.send(_T.SEND, "send", send, build_entry(metadata, payload))
        return self.receive(_T.SEND_RECEIPT, _T.SEND_ERROR)

    # -- consuming

    def receive_entry(self, topic: str) -> bytes:
        """The first entry of the topic, as MESSAGE carries it."""
        subscribe = pb.CommandSubscribe(
            topic=topic,
            subscription="raw",
            subType=pb.CommandSubscribe.Exclusive,
            consumer_id=1,
            request_id=next(self._request_ids),
            initialPosition=pb.CommandSubscribe.Earliest,
        )
        self.send(_T.SUBSCRIBE, "subscribe", subscribe)
        self.receive(_T.SUCCESS)
        self.send(_T.FLOW, "flow", pb.CommandFlow(consumer_id=1, messagePermits=1))
        self.receive(_T.MESSAGE)
        return self.entry


def _body(command: pb.BaseCommand) -> Any:
    for descriptor, value in command.ListFields():
        if descriptor.name != "type":
            return value
    raise AssertionError(f"{command} has no body")
