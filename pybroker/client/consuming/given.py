"""What a consumer of one topic was given, and how much of it is still in the application's hand.

A *pass* begins with each registration and each request for redelivery: then everything that is
unacknowledged comes again. Messages know the pass in which they came, so an acknowledgement says
which of two deliveries it means.

In hand is what came in the pass and was not acknowledged since, including what is still queued. A
cumulative acknowledgement in a transaction leaves its messages in hand until the transaction has
committed: after an abort the application may acknowledge them again, or ask for redelivery. What is
in hand and comes again without a request (because the broker gave it back after such an abort, or
the consumer is the active one again) is left out: the application has it.

What a transaction acknowledged individually is not in hand any more. It comes again if the
transaction aborts; until then it is *awaited*.
"""

from collections.abc import Iterable
from typing import Final

from pybroker.base.errors import TransactionConflict
from pybroker.base.names import TxnId
from pybroker.client.consuming.acks import EntryKey, Place
from pybroker.client.consuming.message_set import MessageSet, is_whole

MAX_ITEMS: Final = 100_000  # runs and batches; beyond this number the first ones are forgotten
MAX_TRANSACTIONS: Final = 10_000  # whose ends are unknown; as well


class Given:
    """One pass. `owner` stands for the consumer, `session` is the number of its registration."""

    __slots__ = (
        "__weakref__",
        "_singly",
        "_up_to",
        "awaited",
        "has_forgotten",
        "in_hand",
        "is_kept",
        "owner",
        "session",
    )

    def __init__(self, owner: object, session: int, is_kept: bool) -> None:
        """Nothing is remembered unless it `is_kept`: for consumers without transactions."""
        self.owner = owner
        self.session = session
        self.is_kept = is_kept
        self.in_hand = MessageSet()
        self.awaited = MessageSet()
        # Whether some of what is in hand is not remembered.
        self.has_forgotten = False
        # What transactions acknowledged whose ends are unknown.
        self._up_to: dict[TxnId, MessageSet] = {}
        self._singly: dict[TxnId, MessageSet] = {}

    # --- arriving ---------------------------------------------------------------------------

    def arrived(self, ledger_id: int, first: int, last: int) -> bool:
        """Entries that are single messages. False, and nothing noted, if some are in hand."""
        if not self.is_kept:
            return True
        if not self.in_hand.add_run(ledger_id, first, last):
            return False
        if self.awaited:
            self.awaited.discard_all(_run(ledger_id, first, last))
        self._limit()
        return True

    def new_of(self, key: EntryKey, bits: int) -> int:
        """Those of an entry's messages that are not in hand, as bits."""
        return bits & ~self.in_hand.bits_of(key) if self.in_hand else bits

    def entry_arrived(self, key: EntryKey, bits: int, batch_size: int) -> None:
        """Messages of an entry, none of them in hand."""
        if batch_size <= 1:
            self.arrived(*key, key[1])
        elif self.is_kept:
            self.in_hand.add_part(key, bits, batch_size)
            if self.awaited:
                self.awaited.discard_part(key, bits)
            self._limit()

    def _limit(self) -> None:
        if self.in_hand.size > MAX_ITEMS:
            self.in_hand.forget_first()
            self.has_forgotten = True

    def never_taken(self, places: Iterable[Place]) -> None:
        """They were dropped from the queue."""
        if self.in_hand:
            self.in_hand.discard_all(MessageSet.of(places))

    # --- acknowledging ----------------------------------------------------------------------

    def acknowledged(self, places: Iterable[Place]) -> None:
        """Without a transaction."""
        if self.in_hand or self.awaited:
            done = MessageSet.of(places)
            self.in_hand.discard_all(done)
            self.awaited.discard_all(done)

    def acknowledged_up_to(self, place: Place) -> None:
        """Without a transaction."""
        self.in_hand.discard_all(self.in_hand.up_to(place))
        self.awaited.discard_all(self.awaited.up_to(place))
        self.has_forgotten = False

    def acknowledged_singly(self, txn_id: TxnId, places: Iterable[Place]) -> None:
        done = MessageSet.of(places)
        self.in_hand.discard_all(done)
        self.awaited.discard_all(done)
        _of(txn_id, self._singly).add_all(done)

    def covered(self, txn_id: TxnId, place: Place, queued: Iterable[Place]) -> MessageSet:
        """What a cumulative acknowledgement in a transaction means: what is in hand up to `place`,
        except what is `queued` and what the transaction has acknowledged already.

        Raises TransactionConflict if that is nothing, or if some is awaited: the application may
        have worked on the messages that it kept, or wait for them.
        """
        if self.awaited.up_to(place):
            raise TransactionConflict(
                f"Transaction {txn_id} cannot acknowledge up to {_named(place)}: an aborted "
                "transaction had acknowledged an earlier message individually, and it has not come "
                "again yet. Receive it first; or abort, ask for redelivery, and acknowledge the "
                "messages you then receive"
            )
        covered = self.in_hand.up_to(place)
        covered.discard_all(MessageSet.of(queued))
        covered.discard_all(self.claimed(txn_id))
        if not covered:
            raise TransactionConflict(
                f"Transaction {txn_id} cannot acknowledge up to {_named(place)}: everything that "
                "this consumer received up to there is acknowledged already"
            )
        return covered

    def claims(self, txn_id: TxnId, covered: MessageSet) -> None:
        """The transaction acknowledges them cumulatively."""
        _of(txn_id, self._up_to).add_all(covered)

    def gives_up(self, txn_id: TxnId, covered: MessageSet) -> None:
        """That acknowledgement was refused."""
        self.claimed(txn_id).discard_all(covered)

    def takes_part_in(self, txn_id: TxnId) -> bool:
        return txn_id in self._up_to or txn_id in self._singly

    def claimed(self, txn_id: TxnId) -> MessageSet:
        return self._up_to.get(txn_id, _NONE)

    def claimed_besides(self, txn_id: TxnId) -> list[TxnId]:
        """The other transactions with cumulative acknowledgements whose ends are unknown."""
        return [other for other, claimed in self._up_to.items() if other != txn_id and claimed]

    def ended(self, txn_id: TxnId, committed: bool) -> MessageSet:
        """Returns what it has consumed."""
        up_to = self._up_to.pop(txn_id, _NONE)
        singly = self._singly.pop(txn_id, _NONE)
        consumed = MessageSet()
        if committed:
            self.in_hand.discard_all(up_to)
            consumed.add_all(up_to)
            consumed.add_all(singly)
        else:
            self.awaited.add_all(singly)
            self.awaited.discard_all(self.in_hand)  # given back meanwhile
        return consumed


_NONE: Final = MessageSet()


def _of(txn_id: TxnId, sets: dict[TxnId, MessageSet]) -> MessageSet:
    if txn_id not in sets and len(sets) >= MAX_TRANSACTIONS:
        del sets[next(iter(sets))]
    return sets.setdefault(txn_id, MessageSet())


def _run(ledger_id: int, first: int, last: int) -> MessageSet:
    run = MessageSet()
    run.add_run(ledger_id, first, last)
    return run


def _named(place: Place) -> str:
    index = "" if is_whole(*place[2:]) else f", message {place[2]} of its batch"
    return f"{place[0]}:{place[1]}{index}"
