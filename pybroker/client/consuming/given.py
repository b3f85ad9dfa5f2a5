"""What a consumer of one topic was given, and how much of it is still in the application's hand.

A *pass* begins with each registration and each request for redelivery: then everything that is
unacknowledged comes again. Messages know the pass in which they came, so an acknowledgement says
which of two deliveries it means.

In hand is what came in the pass and was not acknowledged since, including what is still queued. A
cumulative acknowledgement in a transaction leaves its messages in hand until the transaction has
committed: after an abort the application may acknowledge them again, or ask for redelivery. What is
in hand and comes again without a request (because the consumer is the active one again) is left
out: the application has it.

Of what is in hand, that is *spent* which a transaction of this client has consumed as it was
delivered in another pass. The application may have worked on both deliveries.
"""

from collections.abc import Iterable
from typing import Final

from pybroker.client.consuming.acks import EntryKey, Place
from pybroker.client.consuming.message_set import MessageSet

MAX_ITEMS: Final = 100_000  # runs and batches; beyond this number the first ones are forgotten


class Given:
    """One pass. `owner` stands for the consumer, `session` is the number of its registration."""

    __slots__ = ("__weakref__", "in_hand", "is_kept", "is_whole", "owner", "session", "spent")

    def __init__(self, owner: object, session: int, is_kept: bool) -> None:
        """Nothing is remembered unless it `is_kept`: for consumers without transactions."""
        self.owner = owner
        self.session = session
        self.is_kept = is_kept
        self.is_whole = is_kept  # whether nothing of what is in hand was forgotten
        self.in_hand = MessageSet()
        self.spent = MessageSet()

    def arrived(self, ledger_id: int, first: int, last: int) -> bool:
        """Entries that are single messages. False, and nothing noted, if some are in hand."""
        if self.is_kept:
            if not self.in_hand.add_run(ledger_id, first, last):
                return False
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
            self._limit()

    def _limit(self) -> None:
        if self.in_hand.size > MAX_ITEMS:
            self.in_hand.forget_first()
            self.is_whole = False

    def discard(self, places: Iterable[Place]) -> None:
        """They were acknowledged, or dropped from the queue."""
        if self.in_hand:
            self.in_hand.discard_all(MessageSet.of(places))

    def discard_up_to(self, place: Place) -> None:
        if self.in_hand:
            self.in_hand.discard_all(self.in_hand.up_to(place))
