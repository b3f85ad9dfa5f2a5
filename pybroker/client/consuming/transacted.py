"""The acknowledgements of one topic's consumer in transactions.

A cumulative one is sent as individual ones, of all that the application received up to there and
has not acknowledged: then the broker need not know what it was given, or which delivery of a
message is meant. A position that was not received here is sent as it is, and taken at its word.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

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

_GO_ON: Final = "Abort, ask for redelivery, and acknowledge the messages you then receive"


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
        places = [message.place for message in messages]
        commands = self._acks.in_transaction(txn.txn_id, places, cumulative=False)
        await self._send_in(txn, lambda: self._send(commands))
        groups: dict[Given, list[Place]] = {}
        for message in messages:
            if (given := self._passes.of(message)) is not None:
                groups.setdefault(given, []).append(message.place)
        for given, some in groups.items():
            self._follow(txn, given)
            given.acknowledged_singly(txn.txn_id, some)

    async def acknowledge_up_to(self, txn: Transaction, message: Message | MessageId) -> None:
        """Raises TransactionConflict, NotAllowed."""
        place, given = message.place, self._passes.of(message)
        if given is None or not given.is_kept or given.has_forgotten:
            await self._at_its_word(txn, place, given)
            return
        try:
            covered = given.covered(txn.txn_id, place, self._passes.queued(given))
        except TransactionConflict as error:
            txn.refused(error)
            raise
        self._follow(txn, given)
        given.claims(txn.txn_id, covered)
        try:
            await self._send_in(txn, lambda: self._send_covered(txn, covered, given))
        except BaseException:
            given.gives_up(txn.txn_id, covered)
            raise

    async def _at_its_word(self, txn: Transaction, place: Place, given: Given | None) -> None:
        if given is not None:  # chunks of a later message cannot be excluded
            self._acks.refuse_amid_chunks(place[:2])
        commands = self._acks.in_transaction(txn.txn_id, [place], cumulative=True)
        await self._send_in(txn, lambda: self._send(commands))

    async def _send_covered(self, txn: Transaction, covered: MessageSet, given: Given) -> None:
        commands = self._acks.of_messages(txn.txn_id, covered)
        try:
            await self._send(commands[:1])
        except TransactionConflict as conflict:
            others = await self._ended_elsewhere(txn, given)
            for other in others:
                covered.discard_all(given.claimed(other))
            if not (others and covered):
                raise TransactionConflict(f"{conflict}. {_GO_ON}") from conflict
            # Another client has ended them: if they had not committed, this would be no conflict.
            commands = self._acks.of_messages(txn.txn_id, covered)
            await self._send(commands[:1])
            for other in others:
                given.ended(other, committed=True)
        try:
            await self._send(commands[1:])
        except Exception as error:
            error.add_note(f"Transaction {txn.txn_id} cannot commit any more: abort it")
            raise

    async def _ended_elsewhere(self, txn: Transaction, given: Given) -> list[TxnId]:
        """The transactions whose cumulative acknowledgements may be in the way, unless one of them
        is open.
        """
        others = given.claimed_besides(txn.txn_id)
        for other in others:
            if await txn.is_open(other, self._topic, self._subscription):
                return []
        return others

    def _follow(self, txn: Transaction, given: Given) -> None:
        if given.is_kept and not given.takes_part_in(txn.txn_id):

            def ended(txn_id: TxnId, committed: bool) -> None:
                self._passes.consumed(given, given.ended(txn_id, committed))

            txn.follow(ended)

    async def _send_in(self, txn: Transaction, send: Callable[[], Awaitable[None]]) -> None:
        await txn.acknowledge(self._topic, self._subscription, send)

    async def _send(self, commands: Iterable[pb.CommandAck]) -> None:
        for command in commands:
            await self._request(command)
