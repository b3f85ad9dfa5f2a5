"""The amount that open transactions hold: per topic, namespace and principal.

Messages are counted when they are passed to the log, and subtracted if the append fails or when
their transaction has ended on the topic. If a topic is loaded with open transactions, their earlier
messages are counted only when a limit first needs the figure, because that means reading them all.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from managed_ledger.appender import Appended
from managed_ledger.ledger import ManagedLedger
from managed_ledger.position import Position
from pybroker.base.names import TxnId
from pybroker.base.runtime import do_nothing
from pybroker.transaction.buffer.transaction_ranges import TransactionRanges
from pybroker.transaction.txn_status import TxnAction

_READ_ENTRIES: Final = 1000
_READ_BYTES: Final = 1024 * 1024

OwnerOf = Callable[[TxnId], str | None]
OnEnded = Callable[[TxnId, TxnAction, Position | None], None]  # the position is its first entry


class Held:
    __slots__ = ("messages", "size_bytes")

    def __init__(self) -> None:
        self.messages = self.size_bytes = 0


class OpenContents:
    """The totals of a broker's topics. `owner_of` returns the principal of a live transaction."""

    def __init__(self) -> None:
        self.owner_of: OwnerOf = lambda txn_id: None
        self._namespaces: dict[str, Held] = {}
        self._owners: dict[str, Held] = {}

    def in_namespace(self, namespace: str) -> Held:
        return self._namespaces.get(namespace) or Held()

    def of_owner(self, owner: str) -> Held:
        return self._owners.get(owner) or Held()

    def add(self, namespace: str, owner: str | None, messages: int, size_bytes: int) -> None:
        """Negative amounts are subtracted."""
        held = self._namespaces.get(namespace)
        if held is not None and held.messages > -messages:  # nearly always
            held.messages += messages
            held.size_bytes += size_bytes
        else:
            _add(self._namespaces, namespace, messages, size_bytes)
        if owner is not None:
            _add(self._owners, owner, messages, size_bytes)


def _add(helds: dict[str, Held], key: str, messages: int, size_bytes: int) -> None:
    held = helds.get(key)
    if held is None:
        held = helds[key] = Held()
    held.messages += messages
    held.size_bytes += size_bytes
    if not held.messages and not held.size_bytes:
        del helds[key]


class _OfTransaction(Held):
    __slots__ = ("owner",)

    def __init__(self, owner: str | None) -> None:
        self.messages = self.size_bytes = 0
        self.owner = owner


# For topics without transactions; never changed.
_NO_TRANSACTIONS: Final[dict[TxnId, _OfTransaction]] = {}
_NOTHING: Final = Held()
_NOWHERE: Final[Mapping[str, Position]] = {}
_OF_NO_BROKER: Final = OpenContents()  # for topics before `join`


class TopicContents:
    """The amounts of one topic. `of_before`: by log name, the last position whose contents are not
    counted yet.

    A topic that never had a transaction has no data of its own here.
    """

    __slots__ = ("_broker", "_namespace", "_transactions", "of_before", "on_ended", "total")

    def __init__(self) -> None:
        self._broker, self._namespace = _OF_NO_BROKER, ""
        self._transactions, self.total, self.of_before = _NO_TRANSACTIONS, _NOTHING, _NOWHERE
        self.on_ended: OnEnded = do_nothing  # called for each transaction that ends on the topic

    def __len__(self) -> int:
        """The number of transactions that hold messages here."""
        return len(self._transactions)

    def transactions(self) -> list[tuple[TxnId, Held]]:
        """The amount that each transaction holds here."""
        return list[tuple[TxnId, Held]](self._transactions.items())

    def of(self, txn_id: TxnId) -> Held | None:
        return self._transactions.get(txn_id)

    def join(self, broker: OpenContents, namespace: str) -> None:
        """Add to the totals of `broker` as well; call it before any transaction is counted."""
        assert not self._transactions
        self._broker, self._namespace = broker, sys.intern(namespace)

    def counted(
        self,
        txn_id: TxnId,
        entries: Sequence[bytes],
        message_counts: Sequence[int],
        done: Appended,
    ) -> Appended:
        """Count the entries. The result replaces `done`: it calls `done`, and subtracts them if the
        append failed.
        """
        messages, size_bytes = sum(message_counts), sum(map(len, entries))
        self.add(txn_id, messages, size_bytes)
        return partial(self._appended, txn_id, messages, size_bytes, done)

    def _appended(
        self,
        txn_id: TxnId,
        messages: int,
        size_bytes: int,
        done: Appended,
        position: Position | None,
        error: Exception | None,
    ) -> None:
        if position is None and txn_id in self._transactions:
            self.add(txn_id, -messages, -size_bytes)
        done(position, error)

    def add(self, txn_id: TxnId, messages: int, size_bytes: int) -> None:
        found = self._transactions.get(txn_id)
        if found is None:
            if self._transactions is _NO_TRANSACTIONS:
                self._transactions, self.total = {}, Held()
            owner = self._broker.owner_of(txn_id)
            found = self._transactions[txn_id] = _OfTransaction(owner)
        found.messages += messages
        found.size_bytes += size_bytes
        self.total.messages += messages
        self.total.size_bytes += size_bytes
        self._broker.add(self._namespace, found.owner, messages, size_bytes)
        if not found.messages and not found.size_bytes:
            del self._transactions[txn_id]

    def transaction_ended(self, txn_id: TxnId, action: TxnAction, first: Position | None) -> None:
        self.ended(txn_id)
        self.on_ended(txn_id, action, first)

    def ended(self, txn_id: TxnId) -> None:
        """The transaction's marker is durable here: subtract its messages."""
        found = self._transactions.pop(txn_id, None)
        if found is not None:
            self.total.messages -= found.messages
            self.total.size_bytes -= found.size_bytes
            self._broker.add(self._namespace, found.owner, -found.messages, -found.size_bytes)

    def forget(self) -> None:
        """The topic is deleted or unloaded: subtract all its transactions."""
        for txn_id in list(self._transactions):
            self.ended(txn_id)
        self.of_before = _NOWHERE


async def held_in(
    ledger: ManagedLedger, ranges: TransactionRanges, up_to: Position
) -> tuple[int, int]:
    """The number of messages and bytes in the entries of `ranges`, up to `up_to`."""
    messages = size_bytes = 0
    for ledger_id, first, last in list(ranges):
        position, end = Position(ledger_id, first), min(Position(ledger_id, last), up_to)
        while position <= end:
            run = await ledger.read_whole(position, end, _READ_ENTRIES, _READ_BYTES)
            if run is None:
                break
            messages += sum(run.message_counts)
            size_bytes += sum(map(len, run.entries))
            position = Position(run.ledger_id, run.first_entry_id + len(run.entries))
    return messages, size_bytes
