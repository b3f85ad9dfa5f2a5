"""One producer name's sequence ids on one topic.

    top        the highest id seen; any id above it is new
    flying     accepted but not durable yet; these ids exist in memory only
    open       durable or flying, in a transaction that has not ended
    returned   aborted, refused or not written; the producer may send these ids again
    untold     the part of `returned` that the log does not contain; the producer's next append
               records it
    floor      up to this id `returned` was discarded; an id below it that is in no other set may
               have been aborted or stored

An id up to `top` and above `floor` that is in none of these sets is stored durably. A producer's
ids ascend, so ids that it skipped are also treated as stored. After a crash the same holds for a
refused id if no later message of the producer was stored before the crash and the producer
continues above it.

The chunks of a large message share one id. It is taken with the last chunk; until then `chunk` is
the newest chunk that has arrived.
"""

from collections.abc import Callable, Iterator
from enum import Enum
from typing import Final, NamedTuple

from pybroker.base.names import TxnId
from pybroker.broker.deduplication.sent import MAX_TOLD
from pybroker.broker.deduplication.sequence_ranges import Range, SequenceRanges

MAX_RETURNED_RANGES: Final = 10_000

# Called with the error if the first copy of a duplicate was not written, otherwise with None.
Answer = Callable[[Exception | None], None]


class Chunk(NamedTuple):
    """A part of the message `sequence_id`; the last part is not a Chunk but the message."""

    sequence_id: int
    number: int


NO_CHUNK: Final = Chunk(-1, -1)


class Standing(Enum):
    """How a message relates to those before it; the values complete a sentence."""

    NEW = "has not been seen before"
    DUPLICATE = "is stored or being stored"
    COPY = "is in another open transaction"
    FORGOTTEN = "may have been aborted or stored: it is too old to tell"
    MIXED = "is a batch that is already stored in part"


class ProducerSequence:
    __slots__ = (
        "chunk",
        "chunk_txn",
        "durable",
        "durable_chunk",
        "floor",
        "flying",
        "in_transactions",
        "open",
        "returned",
        "top",
        "untold",
        "waiting",
    )

    def __init__(self) -> None:
        self.top = self.durable = self.floor = -1
        self.flying = SequenceRanges()
        self.returned = SequenceRanges()
        self.untold = SequenceRanges()
        self.open: dict[TxnId, SequenceRanges] = {}
        self.in_transactions = SequenceRanges()  # all of `open` together
        self.chunk = self.durable_chunk = NO_CHUNK
        self.chunk_txn: TxnId | None = None  # the open transaction that contains `chunk`
        self.waiting: list[tuple[Range | Chunk, Answer]] = []

    @property
    def is_settled(self) -> bool:
        """Nothing is in flight, and no transaction may give back ids."""
        chunk_flies = self.chunk != self.durable_chunk
        return not (self.flying or self.open or self.waiting or self.chunk_txn or chunk_flies)

    @property
    def size(self) -> int:
        """The approximate cost of writing it to a snapshot."""
        return 1 + len(self.returned) + sum(map(len, self.open.values()))

    # classification of a message

    def standing(self, first: int, last: int, txn_id: TxnId | None) -> Standing:
        """Classifies a message, or a batch from its lowest to its highest id."""
        if first > self.top:
            return Standing.NEW
        known = (first, min(last, self.top))
        own = self.open.get(txn_id) if txn_id is not None else None
        if own is not None and last <= self.top and own.covers(first, last):
            return Standing.DUPLICATE
        if self.in_transactions.overlaps(*known) and self.holder(*known, txn_id) is not None:
            return Standing.COPY
        if self.returned.covers(*known):
            return Standing.NEW
        if first <= self.floor:
            return Standing.FORGOTTEN
        if last > self.top or self.returned.overlaps(*known):
            return Standing.MIXED
        return Standing.DUPLICATE

    def chunk_standing(self, chunk: Chunk, txn_id: TxnId | None) -> Standing:
        if self.chunk.sequence_id == chunk.sequence_id and chunk.number <= self.chunk.number:
            mine = self.chunk_txn is None or self.chunk_txn == txn_id
            return Standing.DUPLICATE if mine else Standing.COPY
        return self.standing(chunk.sequence_id, chunk.sequence_id, txn_id)

    def holder(self, first: int, last: int, txn_id: TxnId | None) -> TxnId | None:
        """An open transaction other than `txn_id` that holds some of these ids."""
        for holder, ids in self.open.items():
            if holder != txn_id and ids.overlaps(first, last):
                return holder
        return None

    @property
    def durable_to(self) -> int:
        """No id up to this one is in flight. A later message may be durable before an earlier
        one.
        """
        first_flying = next(iter(self.flying), None)
        return self.top if first_flying is None else min(self.durable, first_flying[0] - 1)

    def held_by(self, txn_id: TxnId) -> Iterator[Range]:
        """The ids that the transaction's abort would give back, with an incomplete chunked
        message's.
        """
        yield from self.open.get(txn_id, ())
        if self.chunk_txn == txn_id:
            yield self.chunk.sequence_id, self.chunk.sequence_id

    def is_durable(self, what: Range | Chunk) -> bool:
        """Whether the first copy of a duplicate is durable."""
        if isinstance(what, Chunk):
            if self.chunk.sequence_id == what.sequence_id:
                return what <= self.durable_chunk
            return not self.flying.overlaps(what.sequence_id, what.sequence_id)
        return not self.flying.overlaps(*what)

    # the outcome of a message

    def take(self, first: int, last: int, txn_id: TxnId | None) -> None:
        """The message goes to the log: from now on these ids are no longer new."""
        self.flying.add(first, last)
        self._hold(first, last, txn_id)

    def take_chunk(self, chunk: Chunk, txn_id: TxnId | None) -> None:
        self.chunk, self.chunk_txn = chunk, txn_id

    def stored(self, ranges: list[Range]) -> None:
        for first, last in ranges:
            self.flying.take_out(first, last)
            self.durable = max(self.durable, last)
            self._complete(last)
        self._answer_durable()

    def chunk_stored(self, chunk: Chunk) -> None:
        self.durable_chunk = chunk
        self._answer_durable()

    def failed(self, ranges: list[Range], txn_id: TxnId | None, error: Exception) -> None:
        """These ids were taken but did not reach the log: they may be sent again."""
        for first, last in ranges:
            self.flying.take_out(first, last)
            self._release(first, last, txn_id)
            self._give_back_untold(first, last)
            self._fail_waiting(first, last, error)
        if not self.flying:  # as if they had never arrived; later messages may leave them out
            self.top = self.durable

    def chunk_failed(self, chunk: Chunk, error: Exception) -> None:
        if chunk <= self.chunk:
            self._end_chunk_before(chunk)
        self.refused(chunk.sequence_id, chunk.sequence_id)
        self._fail_waiting(chunk.sequence_id, chunk.sequence_id, error)

    def refused(self, first: int, last: int) -> None:
        """These ids were not taken: the new ones may be sent again, even after later ones."""
        if last > self.top:
            self._give_back_untold(max(first, self.top + 1), last)

    def tell(self, for_good: bool) -> list[Range]:
        """The ids to store with the next messages that go to the log. If not `for_good`, those
        messages may be removed from it again, so the messages after them store the same ids.
        """
        if not self.untold:
            return []
        if not for_good:
            return list(self.untold)
        told, self.untold = list(self.untold), SequenceRanges()
        return told

    def not_told(self, told: list[Range]) -> None:
        for first, last in told:
            self.untold.add(first, last)

    def ended(self, txn_id: TxnId, aborted: bool) -> None:
        """Called when the transaction has ended."""
        for first, last in self.open.pop(txn_id, ()):
            self.in_transactions.take_out(first, last)
            if aborted:
                self._give_back(first, last)
        if self.chunk_txn == txn_id:
            self.chunk_txn = None
            if aborted:
                self._give_back(*(self.chunk.sequence_id,) * 2)
                self.chunk = self.durable_chunk = NO_CHUNK

    def outcome_lost(self, txn_id: TxnId) -> None:
        """The transaction has ended with an unknown outcome: its ids may have been aborted or
        stored.
        """
        for first, last in self.open.pop(txn_id, ()):
            self.in_transactions.take_out(first, last)
            self.floor = max(self.floor, last)
        if self.chunk_txn == txn_id:  # the message starts over
            self.chunk, self.durable_chunk, self.chunk_txn = NO_CHUNK, NO_CHUNK, None

    def replay_returned(self, ranges: list[Range], floor: int) -> None:
        for first, last in ranges:
            self.returned.add(first, last)
        self.floor = max(self.floor, floor)

    def replay(self, first: int, last: int, txn_id: TxnId | None) -> None:
        """Called for ids that were taken and stored, according to a log."""
        self._hold(first, last, txn_id)
        self.durable = self.top
        self._complete(last)

    def replay_chunk(self, chunk: Chunk, txn_id: TxnId | None) -> None:
        self.take_chunk(chunk, txn_id)
        self.durable_chunk = chunk

    def began_again(self, first: int) -> None:
        """Called when the producer stored `first` while ids were not compared. If that is not above
        all earlier ids, the producer has restarted its numbers: its next messages are new, although
        the ids were used before.
        """
        if first > self.top:
            return
        for holder in list(self.open):
            self._release(first, self.top, holder)
        self.returned.take_out(first, self.top)
        self.floor = min(self.floor, first - 1)
        self.top = self.durable = first - 1
        if self.chunk.sequence_id > first:
            self.chunk, self.durable_chunk, self.chunk_txn = NO_CHUNK, NO_CHUNK, None

    def _hold(self, first: int, last: int, txn_id: TxnId | None) -> None:
        self.top = max(self.top, last)
        if self.returned:
            self.returned.take_out(first, last)
        if self.untold:
            self.untold.take_out(first, last)
        if self.in_transactions.overlaps(first, last):  # written while deduplication was off
            for holder in list(self.open):
                self._release(first, last, holder)
        if txn_id is not None:
            self.open.setdefault(txn_id, SequenceRanges()).add(first, last)
            self.in_transactions.add(first, last)

    def _complete(self, sequence_id: int) -> None:
        if self.chunk.sequence_id == sequence_id:
            self.chunk, self.durable_chunk, self.chunk_txn = NO_CHUNK, NO_CHUNK, None

    def _release(self, first: int, last: int, txn_id: TxnId | None) -> None:
        ids = self.open.get(txn_id) if txn_id is not None else None
        if ids is None or txn_id is None:
            return
        ids.take_out(first, last)
        self.in_transactions.take_out(first, last)
        if not ids:
            del self.open[txn_id]

    def _give_back(self, first: int, last: int) -> None:
        self.returned.add(first, last)
        self.floor = max(self.floor, self.returned.forget_lowest(MAX_RETURNED_RANGES))

    def _give_back_untold(self, first: int, last: int) -> None:
        self._give_back(first, last)
        self.untold.add(first, last)
        self.floor = max(self.floor, self.untold.forget_lowest(MAX_TOLD))

    def _end_chunk_before(self, chunk: Chunk) -> None:
        before = Chunk(chunk.sequence_id, chunk.number - 1) if chunk.number else NO_CHUNK
        self.chunk = self.durable_chunk = before
        if before is NO_CHUNK:
            self.chunk_txn = None

    # duplicates whose first copy is in flight

    def _answer_durable(self) -> None:
        if not self.waiting:
            return
        waiting, self.waiting = self.waiting, []
        for what, answer in waiting:
            if self.is_durable(what):
                answer(None)
            else:
                self.waiting.append((what, answer))

    def _fail_waiting(self, first: int, last: int, error: Exception) -> None:
        """The first copy of these ids was not written, so the duplicates fail, too."""
        waiting, self.waiting = self.waiting, []
        for what, answer in waiting:
            low, high = (what.sequence_id,) * 2 if isinstance(what, Chunk) else what
            if low <= last and first <= high:
                answer(error)
            else:
                self.waiting.append((what, answer))
