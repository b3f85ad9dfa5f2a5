"""The ranges of a transaction's entries in a log."""

from array import array
from dataclasses import dataclass, field

from managed_ledger.position import Position


def no_ranges() -> "array[int]":
    return array("q")


@dataclass(slots=True)
class TransactionRanges:
    """The ranges of a transaction's durable entries: ledger, first, last; ledger, first, last; …

    The array is flat, because a long transaction among others may have a range per entry.
    """

    flat: "array[int]" = field(default_factory=no_ranges)

    def __len__(self) -> int:
        return len(self.flat) // 3

    def extend(self, ledger_id: int, first: int, last: int) -> int:
        """Add entries; returns the number of added ranges: 0 if the last range grew."""
        flat = self.flat
        if flat and flat[-1] == first - 1 and flat[-3] == ledger_id:
            flat[-1] = last
            return 0
        flat.extend((ledger_id, first, last))
        return 1

    def __iter__(self) -> "zip[tuple[int, int, int]]":
        return zip(self.flat[::3], self.flat[1::3], self.flat[2::3], strict=True)

    def first_ones(self, most: int) -> list[tuple[int, int, int]]:
        flat = self.flat[: 3 * most]
        return list(zip(flat[::3], flat[1::3], flat[2::3], strict=True))

    @property
    def first_position(self) -> Position | None:
        return Position(self.flat[0], self.flat[1]) if self.flat else None

    @property
    def last_ledger_id(self) -> int | None:
        """The ledger of the last entry."""
        return self.flat[-3] if self.flat else None
