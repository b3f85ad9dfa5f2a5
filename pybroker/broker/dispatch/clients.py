"""What the clients of an Exclusive or Failover subscription were given, and other clients'
transactions have acknowledged.

Messages are given to several clients: a consumer loses its connection or is no longer active, and
the next one receives whatever is unacknowledged. The first client may still acknowledge in its
transaction, and messages that a transaction holds cumulatively are given to the next consumer
anyway: see `pending_acks.state`. Of two individual acknowledgements of a message, the second is
refused. A cumulative one covers only what is unacknowledged, but its client may have processed the
rest, too: two committed transactions would have consumed the same messages. So once another
client's transaction has acknowledged messages that the client was given, the client must ask for
redelivery before it acknowledges cumulatively in a transaction.

A client outlives its connection, and is recognised by its consumer's name, which may be empty,
unless it has closed the consumer. Of several gone clients with the same name, any one may return:
each is taken to have been given what any of them was. A client may also return before its previous
connection is known to be dead. When the topic is unloaded, everything is forgotten.
"""

from collections import Counter
from collections.abc import Collection, Iterator
from typing import Final

from managed_ledger.position import EARLIEST, Position
from pybroker.base.names import TxnId
from pybroker.transaction.txn_status import TxnAction

MOST_GONE: Final = 100  # of one subscription; beyond that, the oldest are forgotten


class Client:
    """What a consumer's client was given since it last asked for redelivery."""

    __slots__ = (
        "_begins_anew",
        "_holds_in",
        "_holds_to",
        "consumed_by",
        "earlier",
        "given_to",
        "had",
        "name",
        "stands_for",
        "taken_by",
    )

    def __init__(self, name: str = "") -> None:
        self.name = name  # of its consumer
        self.stands_for = 1  # clients of that name, which are gone
        # Everything unacknowledged before this; Clients notes it for the active one.
        self.given_to = EARLIEST
        self.earlier = EARLIEST  # the same, before reading restarted or another became active
        self.had = EARLIEST  # the same, when others last took some of it individually
        # Open transactions of others, with the last entry that each has taken.
        self.taken_by: dict[TxnId, Position] = {}
        self.consumed_by: TxnId | None = None  # a committed one
        # It has acknowledged cumulatively what it was given, in this transaction, up to here.
        self._holds_in: TxnId | None = None
        self._holds_to = EARLIEST
        self._begins_anew = False  # some of that will be given to it again

    def given(self, read_to: Position, first: Position) -> None:
        """It was given everything before `read_to`; `first` is the first unacknowledged entry."""
        if read_to > first:
            self.given_to = max(self.given_to, read_to)
            if self._begins_anew:
                self._holds_in = None

    def begin_anew(self) -> None:
        """It is given everything unacknowledged from now on."""
        self._begins_anew = True

    def asked_again(self) -> None:
        """It has asked for redelivery, and forgets what it has."""
        self.given_to = self.earlier = self.had = EARLIEST
        self.taken_by.clear()
        self.consumed_by = self._holds_in = None

    def holds(self, txn_id: TxnId, up_to: Position, read_to: Position) -> None:
        """It has acknowledged cumulatively in the transaction. `read_to` is how far it has been
        given everything since reading restarted, EARLIEST if it is not active.
        """
        self._holds_in, self._holds_to = txn_id, up_to
        # Beyond all that it was given before reading restarted, it has nothing twice.
        beyond = up_to >= self.earlier
        self._begins_anew = self._begins_anew and not beyond and EARLIEST < read_to <= up_to

    def _holds(self, txn_id: TxnId, up_to: Position) -> bool:
        return txn_id == self._holds_in and up_to <= self._holds_to

    def is_taken(self, txn_id: TxnId, up_to: Position) -> None:
        """Another client's transaction has taken some of what it was given."""
        self.taken_by[txn_id] = max(up_to, self.taken_by.get(txn_id, EARLIEST))
        self.had = self.given_to

    def cumulative_commits(self, txn_id: TxnId, up_to: Position, first: Position) -> None:
        if self.given_to > first and not self._holds(txn_id, up_to):
            self.consumed_by = txn_id

    def ended(self, txn_id: TxnId, action: TxnAction) -> None:
        taken_to = self.taken_by.pop(txn_id, None)
        if taken_to is None or action is TxnAction.ABORT or self._holds(txn_id, taken_to):
            return
        self.consumed_by = txn_id

    def is_also(self, other: "Client") -> None:
        """What `other` was given, this client may have been given."""
        self.given_to = max(self.given_to, other.given_to)
        self.earlier = max(self.earlier, other.earlier)
        self.had = max(self.had, other.had)
        for txn_id, up_to in other.taken_by.items():
            self.taken_by[txn_id] = max(up_to, self.taken_by.get(txn_id, EARLIEST))
        self.consumed_by = self.consumed_by or other.consumed_by
        if self._holds_in != other._holds_in:
            self._holds_in = None
        self._holds_to = min(self._holds_to, other._holds_to)

    def copy(self) -> "Client":
        copy = Client(self.name)
        copy._holds_in, copy._holds_to = self._holds_in, self._holds_to
        copy.is_also(self)
        return copy

    def rival(self, txn_id: TxnId) -> TxnId | None:
        """Another transaction that has acknowledged what the client was given, if any."""
        return self.consumed_by or next((each for each in self.taken_by if each != txn_id), None)

    @property
    def is_affected(self) -> bool:
        return bool(self.taken_by or self.consumed_by)


class Clients:
    """Of one subscription, present and gone. Parameters: `read_to` is how far the active client was
    given everything, `first` the first unacknowledged entry.
    """

    __slots__ = ("_active", "_gone", "_names", "_present")

    def __init__(self) -> None:
        self._active: Client | None = None
        self._present: list[Client] = []
        self._names: Counter[str] = Counter()  # of those present
        self._gone: dict[str, Client] = {}  # by the consumer's name; the latest is last

    def arrive(self, name: str, read_to: Position, first: Position) -> Client:
        self._note(read_to, first)
        client = self._returned(name)
        self._present.append(client)
        self._names[name] += 1
        return client

    def _returned(self, name: str) -> Client:
        gone = self._gone.get(name)
        if gone is None:
            return self._reconnected(name)
        if gone.stands_for == 1:
            return self._gone.pop(name)
        gone.stands_for -= 1
        return gone.copy()

    def _reconnected(self, name: str) -> Client:
        """A client whose previous connection may not have been found dead yet. Without names, no
        two consumers are taken for the same.
        """
        if not name or not self._names[name]:
            return Client(name)
        first, *others = (each for each in self._present if each.name == name)
        client = first.copy()
        for each in others:
            client.is_also(each)
        return client

    def leave(self, client: Client, closed: bool, first: Position) -> None:
        """Call after `begin`. `closed`: it has closed its consumer."""
        name = client.name
        self._present.remove(client)
        self._names[name] -= 1
        if not self._names[name]:
            del self._names[name]
        self._forget_gone(first, name)
        if closed:
            return
        if name and self._names[name]:
            latest = next(each for each in reversed(self._present) if each.name == name)
            latest.is_also(client)
            return
        if (namesake := self._gone.pop(name, None)) is not None:
            client.is_also(namesake)
            client.stands_for += namesake.stands_for
        self._gone[name] = client
        if len(self._gone) > MOST_GONE:
            del self._gone[next(iter(self._gone))]

    def share(self, name: str) -> bool:
        """Whether several clients may have this name."""
        gone = self._gone.get(name)
        return self._names[name] + (0 if gone is None else gone.stands_for) > 1

    def may_return(self, first: Position) -> bool:
        """Whether any that is gone was given something unacknowledged."""
        self._forget_gone(first)
        return bool(self._gone)

    def forget_gone(self) -> None:
        """Call when the subscription was moved."""
        self._gone.clear()

    def _forget_gone(self, first: Position, except_name: str | None = None) -> None:
        """Forget those that have nothing unacknowledged."""
        for name, client in list(self._gone.items()):
            if name != except_name and client.given_to <= first and not client.is_affected:
                del self._gone[name]

    def begin(self, active: Client | None, read_to: Position, first: Position) -> None:
        """From now on, `active` is given everything unacknowledged."""
        self._note(read_to, first)
        if self._active is not None:
            self._active.earlier = self._active.given_to
        self._active = active
        if active is not None:
            active.begin_anew()

    def _note(self, read_to: Position, first: Position) -> None:
        if self._active is not None:
            self._active.given(read_to, first)

    def _all(self) -> Iterator[Client]:
        yield from self._present
        yield from self._gone.values()

    def are_only(self, client: Client) -> bool:
        return not self._gone and len(self._present) == 1 and self._present[0] is client

    def taken(
        self,
        client: Client,
        txn_id: TxnId,
        positions: Collection[Position],
        read_to: Position,
        first: Position,
    ) -> None:
        """`client` has acknowledged these individually in the transaction."""
        if self._gone:
            self._forget_gone(first)
        if self.are_only(client) or not positions:
            return
        self._note(read_to, first)
        lowest, highest = min(positions), max(positions)
        for each in self._all():
            if each is not client and each.given_to > lowest:
                each.is_taken(txn_id, highest)

    def cumulative_commits(
        self, txn_id: TxnId, up_to: Position, read_to: Position, first: Position
    ) -> None:
        """The transaction, which holds messages cumulatively, commits; call this before the cursor
        moves.
        """
        self._note(read_to, first)
        for each in self._all():
            each.cumulative_commits(txn_id, up_to, first)

    def ended(self, txn_id: TxnId, action: TxnAction) -> None:
        for each in self._all():
            each.ended(txn_id, action)
