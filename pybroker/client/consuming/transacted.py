"""The acknowledgements of one topic's consumer in transactions.

A broker cannot know which of two deliveries a cumulative acknowledgement means, but this client
knows: it refuses one that covers what another of its transactions has consumed as it was delivered
the other time.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from pybroker.base.errors import ConsumerNotFound, TransactionConflict
from pybroker.base.names import TxnId
from pybroker.client.connection.connection import Connection
from pybroker.client.consuming.acknowledger import Acknowledger
from pybroker.client.consuming.acks import EntryKey, Place
from pybroker.client.consuming.given import Given
from pybroker.client.consuming.message_set import MessageSet
from pybroker.client.consuming.passes import Passes, Taken
from pybroker.client.errors import ConnectError, PulsarException
from pybroker.client.messages import Message, MessageId
from pybroker.client.transactions.transaction import Transaction
from pybroker.wire import pulsar_api_pb2 as pb

# Runs what it is given with the consumer's connection, once there is one.
Connected = Callable[[Callable[[Connection], Awaitable[Any]], str], Awaitable[Any]]


class Transacted:
    def __init__(
        self,
        topic: str,
        subscription: str,
        acks: Acknowledger,
        passes: Passes,
        connected: Connected,
        gets_all: bool,
    ) -> None:
        """`gets_all`: whether the consumer is given every message, so that it names those that it
        acknowledges cumulatively; the others come again.
        """
        self._topic = topic
        self._subscription = subscription
        self._acks = acks
        self._passes = passes
        self._connected = connected
        self._gets_all = gets_all

    async def acknowledge(self, txn: Transaction, messages: Sequence[Message | MessageId]) -> None:
        groups: dict[Given, list[Place]] = {}
        for message in messages:
            if (given := self._passes.of(message)) is not None:
                groups.setdefault(given, []).append(message.place)
        places = [message.place for message in messages]
        await self._send(txn, self._acks.in_transaction(txn.txn_id, places))
        for given, places in groups.items():
            taken = MessageSet.of(places)
            self._passes.leave(given, taken)
            self._take(txn, Taken(given, False, self._passes.copies(given, taken)))

    async def acknowledge_up_to(self, txn: Transaction, message: Message | MessageId) -> None:
        """Raises TransactionConflict if one of the messages is already acknowledged, NotAllowed if
        the message is between the chunks of another one.
        """
        place, given = message.place, self._passes.of(message)
        covered = MessageSet()
        if given is not None:
            try:
                covered = await self._covered(txn, given, place)
            except Exception as error:
                txn.refused(error)
                raise
        is_known = self._gets_all and given is not None and self._passes.knows_all(given)
        command = self._acks.up_to(txn.txn_id, place, covered if is_known else None)
        await self._send(txn, [command])
        if given is not None:
            self._take(txn, Taken(given, True, covered))

    async def _covered(self, txn: Transaction, given: Given, place: Place) -> MessageSet:
        """Raises TransactionConflict if it covers second copies of what was consumed."""
        passes = self._passes
        covered = passes.covered(given, place)
        for other, otherwise in passes.rivals(txn.txn_id, given, covered):
            # It was ended by its timeout, or by another client.
            committed = await txn.has_committed(other, self._topic, self._subscription)
            if committed is not None:
                passes.ended(other, committed)
                covered = passes.covered(given, place)
            elif otherwise:
                raise _delivered_twice(txn, other)
        if passes.has_spent(given, covered):
            raise _delivered_twice(txn, None)
        if passes.has_copies(txn.txn_id, given, place):
            raise _received_twice(txn)
        if (late := passes.unclear(given, place, covered)) is not None:
            raise _came_late(txn, place, late)
        return covered

    def _take(self, txn: Transaction, taken: Taken) -> None:
        if taken.given.is_kept and taken.messages and self._passes.take(txn.txn_id, taken):
            txn.follow(self._ended)

    def _ended(self, txn_id: TxnId, committed: bool) -> None:
        self._passes.ended(txn_id, committed)

    async def _send(self, txn: Transaction, commands: Sequence[pb.CommandAck]) -> None:
        async def send() -> None:
            for command in commands:
                ask = partial(_ask, command)
                try:
                    error = await self._connected(ask, "An acknowledgement")
                except ConnectError as lost:
                    raise ConnectError(f"{lost} with a new transaction") from lost
                if error is not None:
                    raise error

        await txn.acknowledge(self._topic, self._subscription, send)


async def _ask(command: pb.CommandAck, connection: Connection) -> PulsarException | None:
    """Returns an error after which it must not be repeated: the broker may have accepted it."""
    if not connection.takes_covered_messages:
        command.ClearField("covered")
    try:
        await connection.request(command, None)  # the wait has a limit
    except ConsumerNotFound:
        raise
    except PulsarException as error:
        return error
    return None


def _came_late(txn: Transaction, place: Place, late: EntryKey) -> TransactionConflict:
    return TransactionConflict(
        f"Transaction {txn.txn_id} cannot acknowledge everything up to {place[0]}:{place[1]}: the "
        f"message {late[0]}:{late[1]} was received after it. Acknowledge that message individually "
        "before, or abort and ask for redelivery"
    )


def _received_twice(txn: Transaction) -> TransactionConflict:
    return TransactionConflict(
        f"Transaction {txn.txn_id} cannot acknowledge messages that were received twice, because "
        "the connection broke: they might count twice. Abort, ask for redelivery, and acknowledge "
        "the messages you then receive"
    )


def _delivered_twice(txn: Transaction, other: TxnId | None) -> TransactionConflict:
    consumer = "an earlier transaction" if other is None else f"transaction {other}"
    return TransactionConflict(
        f"Transaction {txn.txn_id} cannot acknowledge messages that {consumer} has acknowledged as "
        "they were delivered another time: abort, ask for redelivery, and acknowledge the messages "
        "you then receive"
    )
