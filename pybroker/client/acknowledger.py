"""Sends acknowledgements: the plain ones of one turn of the event loop together."""

import asyncio
from collections.abc import Iterable, Sequence

from pybroker.client.acks import AckGroup, AckId, EntryKey, cumulatively, individually
from pybroker.client.attachment import Attachment
from pybroker.client.connection import Connection
from pybroker.client.messages import MessageId
from pybroker.names import TxnId
from pybroker.wire import pulsar_api_pb2 as pb


class Acknowledger:
    """Plain acknowledgements made while there is no connection leave with the next session."""

    def __init__(self, consumer_id: int, attachment: Attachment, by_batch_index: bool) -> None:
        self._consumer_id = consumer_id
        self._attachment = attachment
        self._group = AckGroup(by_batch_index)
        self._scheduled = False

    def delivered(self, key: EntryKey, unacked: int, batch_size: int) -> None:
        self._group.delivered(key, unacked, batch_size)

    def add(self, message_id: MessageId) -> bool:
        """True if nothing of the message's entry is left to acknowledge."""
        self._schedule()
        return self._group.add(*place_of(message_id))

    def add_cumulative(self, message_id: MessageId) -> None:
        self._schedule()
        self._group.add_cumulative(*place_of(message_id))

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        self._scheduled = False
        connection = self._attachment.connection
        if connection is not None and not connection.closed:
            self.send_over(connection)

    def send_over(self, connection: Connection) -> None:
        individual, cumulative = self._group.take()
        if individual:
            connection.post(self._command(individual, cumulative=False))
        if cumulative is not None:
            connection.post(self._command([cumulative], cumulative=True))

    def in_transaction(
        self, txn_id: TxnId, message_ids: Iterable[MessageId], cumulative: bool
    ) -> pb.CommandAck:
        place = cumulatively if cumulative else individually
        command = self._command([place(*place_of(each)) for each in message_ids], cumulative)
        command.txnid_most_bits, command.txnid_least_bits = txn_id
        return command

    def _command(self, ids: Sequence[AckId], cumulative: bool) -> pb.CommandAck:
        return pb.CommandAck(
            consumer_id=self._consumer_id,
            ack_type=pb.CommandAck.Cumulative if cumulative else pb.CommandAck.Individual,
            message_id=[ack.to_wire() for ack in ids],
        )


def place_of(message_id: MessageId) -> tuple[int, int, int, int]:
    """Ledger, entry, index in the batch, size of the batch."""
    return (*message_id.order_key, message_id.batch_size())
