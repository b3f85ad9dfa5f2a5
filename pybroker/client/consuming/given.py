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

What a transaction had acknowledged individually comes *late* after its abort, behind later ones.
The application counts it as not received until then. Whether an acknowledgement up to a message
that came before covers it depends on when the application stopped reading, which is unknown.
"""

from collections.abc import Iterable
from typing import Final

from pybroker.client.consuming.acks import EntryKey, Place
from pybroker.client.consuming.message_set import WHOLE, MessageSet

# Counts the application's requests for redelivery, and its seeks: both begin anew.
Since = tuple[int, int]
MAX_ITEMS: Final = 100_000  # runs and batches; beyond this number the first ones are forgotten


class Given:
    """One pass. `owner` stands for the consumer, `session` is the number of its registration."""

    __slots__ = (
        "__weakref__",
        "_late",
        "_reached",
        "before",
        "in_hand",
        "is_kept",
        "is_whole",
        "owner",
        "session",
        "since",
        "spent",
    )

    def __init__(self, owner: object, session: int, is_kept: bool, since: Since = (0, 0)) -> None:
        """Nothing is remembered unless it `is_kept`: for consumers without transactions."""
        self.owner = owner
        self.since = since
        self.session = session
        self.is_kept = is_kept
        self.is_whole = is_kept  # whether nothing of what is in hand was forgotten
        self.in_hand = MessageSet()
        self.before = MessageSet()
        self.spent = MessageSet()
        self._reached: EntryKey = (-1, -1)  # the furthest entry that came
        # By entry: the messages that came late, as bits, and how far the pass had come then. The
        # latest are last.
        self._late: dict[EntryKey, tuple[int, EntryKey]] = {}

    def goes_on(self, earlier: "Given") -> None:
        """The consumer has reconnected; the application has what it had."""
        self.is_whole = self.is_whole and earlier.is_whole
        self.before.add_all(earlier.before)
        self.before.add_all(earlier.in_hand)
        while self.before.size > MAX_ITEMS:
            self.before.forget_first()
            self.is_whole = False

    def arrived(self, ledger_id: int, first: int, last: int) -> bool:
        """Entries that are single messages. False, and nothing noted, if some are in hand."""
        if self.is_kept:
            if not self.in_hand.add_run(ledger_id, first, last):
                return False
            if (ledger_id, first) > self._reached:
                self._reached = ledger_id, last
            else:
                for entry_id in range(first, last + 1):
                    self._came_late((ledger_id, entry_id), WHOLE)
            self._limit()
        return True

    def _came_late(self, key: EntryKey, bits: int) -> None:
        self._late.pop(key, None)
        self._late[key] = bits, self._reached
        if len(self._late) > MAX_ITEMS:
            del self._late[next(iter(self._late))]
            self.is_whole = False

    def unclear(self, place: Place, covered: MessageSet) -> EntryKey | None:
        """An entry with messages that are covered, and came after the one at `place`."""
        if not self._late:
            return None
        self._late = {key: late for key, late in self._late.items() if self._is_left(key, late[0])}
        end, number = place[:2], {key: number for number, key in enumerate(self._late)}
        last = number.get(end, -1) if self._was_late(place) else -1
        for key, (bits, reached) in self._late.items():
            came_after = number[key] > last if last >= 0 else end <= reached
            if came_after and covered.bits_of(key) & bits:
                return key
        return None

    def _is_left(self, key: EntryKey, bits: int) -> bool:
        return bool(self.in_hand.bits_of(key) & bits)

    def _was_late(self, place: Place) -> bool:
        bits = self._late.get(place[:2], (0, place[:2]))[0]
        return bits == WHOLE or bool(bits >> max(0, place[2]) & 1)

    def new_of(self, key: EntryKey, bits: int) -> int:
        """Those of an entry's messages that are not in hand, as bits."""
        return bits & ~self.in_hand.bits_of(key) if self.in_hand else bits

    def entry_arrived(self, key: EntryKey, bits: int, batch_size: int) -> None:
        """Messages of an entry, none of them in hand."""
        if batch_size <= 1:
            self.arrived(*key, key[1])
        elif self.is_kept:
            self.in_hand.add_part(key, bits, batch_size)
            if key > self._reached:
                self._reached = key
            else:
                self._came_late(key, bits)
            self._limit()

    def _limit(self) -> None:
        if self.in_hand.size > MAX_ITEMS:
            self.in_hand.forget_first()
            self.is_whole = False

    def discard(self, places: Iterable[Place]) -> None:
        """They were acknowledged, or dropped from the queue."""
        if self.in_hand or self.before:
            messages = MessageSet.of(places)
            self.in_hand.discard_all(messages)
            self.before.discard_all(messages)

    def discard_up_to(self, place: Place) -> None:
        for messages in (self.in_hand, self.before):
            if messages:
                messages.discard_all(messages.up_to(place))
