"""What goes to one consumer in one write: entries of one ledger, by column.

Columns are sliced and never walked entry by entry: a plain run of a thousand entries costs as many
Python operations as a run of one.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

MAX_RUN_ENTRIES: Final = 1000
ROUND_STEPS: Final = 3  # in a dispatch, each for up to MAX_RUN_ENTRIES or one look at all consumers
ROUND_BYTES: Final = 1 << 20  # written per dispatch before other subscriptions have their turn

EntryIds = dict[int, list[int]]  # by ledger


def by_ledger(positions: Iterable[tuple[int, int]]) -> EntryIds:
    found: EntryIds = {}
    for ledger_id, entry_id in positions:
        found.setdefault(ledger_id, []).append(entry_id)
    return found


@dataclass(frozen=True, slots=True)
class Delivery:
    """`message_counts[i]` is the number of unacknowledged messages of entry i.

    `unacked_indexes` has the batches that are partly acknowledged: entry id → (bitset of the
    indexes to deliver, batch size). None if every entry is delivered whole. `withheld` has those
    batches that open transactions hold in part: entry id → bitset of that part. `late` has batches
    of which only a part is delivered, because the rest was delivered before: entry id → bitset of
    all that is unacknowledged.
    """

    ledger_id: int
    entry_ids: Sequence[int]
    entries: list[bytes]
    message_counts: list[int]
    unacked_indexes: Mapping[int, tuple[int, int]] | None = None
    withheld: Mapping[int, int] | None = None
    late: Mapping[int, int] | None = None

    def affordable(self, messages: int) -> int:
        """The number of entries for which `messages` permits suffice; the last one may overdraw
        them.
        """
        if sum(self.message_counts) <= messages:
            return len(self.entries)
        return bisect_left(list(accumulate(self.message_counts)), messages) + 1

    def part(self, start: int, stop: int) -> "Delivery":
        if start == 0 and stop >= len(self.entries):
            return self
        return Delivery(
            self.ledger_id,
            self.entry_ids[start:stop],
            self.entries[start:stop],
            self.message_counts[start:stop],
            self.unacked_indexes,
            self.withheld,
            self.late,
        )

    def pick(self, indexes: Sequence[int]) -> "Delivery":
        """The entries at `indexes`, which must be in order."""
        if len(indexes) == len(self.entries):
            return self
        return Delivery(
            self.ledger_id,
            [self.entry_ids[index] for index in indexes],
            [self.entries[index] for index in indexes],
            [self.message_counts[index] for index in indexes],
            self.unacked_indexes,
            self.withheld,
            self.late,
        )


def nothing(ledger_id: int) -> Delivery:
    return Delivery(ledger_id, (), [], [])
