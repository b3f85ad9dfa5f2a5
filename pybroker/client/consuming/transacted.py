"""The acknowledgements of one topic's consumer in transactions.

A broker cannot know which of two deliveries a cumulative acknowledgement means, but this client
knows: it refuses one that covers what another of its transactions has consumed as it was delivered
the other time.
"""

from collections.abc import Awaitable, Callable, Sequence

from pybroker.base.errors import TransactionConflict
from pybroker.base.names import TxnId
from pybroker.client.consuming.acknowledger import Acknowledger
from pybroker.client.consuming.acks import Place
from pybroker.client.consuming.given import Given
from pybroker.client.consuming.message_set import MessageSet
from pybroker.client.consuming.passes import Passes
from pybroker.client.messages import Message, MessageId
from pybroker.client.transactions.transaction import Transaction
from pybroker.wire import pulsar_api_pb2 as pb


class Transacted:
    def __init__(
        self,
        topic: str,
        subscription: str,
        acks: Acknowledger,
        passes: Passes,
        request: Callable[[pb.CommandAck], Awaitable[object]],
    ) -> None:
        self._topic = topic
        self._subscription = subscription
        self._acks = acks
        self._passes = passes
        self._request = request

    async def acknowledge(self, txn: Transaction, messages: Sequence[Message | MessageId]) -> None:
        groups: dict[Given, list[Place]] = {}
        for message in messages:
            if (given := self._passes.of(message)) is not None:
                groups.setdefault(given, []).append(message.place)
        await self._send(txn, [message.place for message in messages], cumulative=False)
        for given, places in groups.items():
            given.discard(places)
            # What is held individually is delivered again only after an abort.
            self._take(txn, given, self._passes.copies(given, MessageSet.of(places)))

    async def acknowledge_up_to(self, txn: Transaction, message: Message | MessageId) -> None:
        """Raises TransactionConflict, NotAllowed."""
        place, given = message.place, self._passes.of(message)
        covered = MessageSet()
        if given is not None:
            covered = self._passes.covered(given, place)
            try:
                await self._refuse_second_copies(txn, given, covered)
            except Exception as error:
                txn.refused(error)
                raise
        await self._send(txn, [place], cumulative=True)
        if given is not None:
            self._take(txn, given, covered)

    async def _refuse_second_copies(
        self, txn: Transaction, given: Given, covered: MessageSet
    ) -> None:
        for other in self._passes.rivals(txn.txn_id, given, covered):
            # It was ended by its timeout, or by another client.
            committed = await txn.has_committed(other, self._topic, self._subscription)
            if committed is None:
                raise _delivered_twice(txn, other)
            self._passes.ended(other, committed)
        if given.spent and covered.both(given.spent):
            raise _delivered_twice(txn, None)

    def _take(self, txn: Transaction, given: Given, messages: MessageSet) -> None:
        if given.is_kept and messages and self._passes.take(txn.txn_id, given, messages):
            txn.follow(self._ended)

    def _ended(self, txn_id: TxnId, committed: bool) -> None:
        self._passes.ended(txn_id, committed)

    async def _send(self, txn: Transaction, places: Sequence[Place], cumulative: bool) -> None:
        commands = self._acks.in_transaction(txn.txn_id, places, cumulative)

        async def send() -> None:
            for command in commands:
                await self._request(command)

        await txn.acknowledge(self._topic, self._subscription, send)


def _delivered_twice(txn: Transaction, other: TxnId | None) -> TransactionConflict:
    consumer = "an earlier transaction" if other is None else f"transaction {other}"
    return TransactionConflict(
        f"Transaction {txn.txn_id} cannot acknowledge messages that {consumer} has acknowledged as "
        "they were delivered another time: abort, ask for redelivery, and acknowledge the messages "
        "you then receive"
    )
