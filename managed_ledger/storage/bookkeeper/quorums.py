"""Which bookies hold an entry, and how many answers prove something. No I/O.

Entries are striped: entry `e` is on the `write_quorum` bookies from position `e % ensemble` on, and
`ack_quorum` of them confirm it. So among any `write_quorum - ack_quorum + 1` bookies of its write
set, at least one has a confirmed entry: that many denials prove that it was not confirmed.

Source: org.apache.bookkeeper.client.RoundRobinDistributionSchedule.
"""

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Quorums:
    ensemble: int
    write: int
    ack: int

    def __post_init__(self) -> None:
        if not 1 <= self.ack <= self.write <= self.ensemble:
            raise ValueError(
                f"ensemble {self.ensemble}, write quorum {self.write}, ack quorum {self.ack}: "
                "each must be at least the next, and all at least 1"
            )

    def write_set(self, entry_id: int) -> tuple[int, ...]:
        """Positions in the ensemble, in the order of reading."""
        first = entry_id % self.ensemble
        return tuple((first + i) % self.ensemble for i in range(self.write))

    @property
    def denials(self) -> int:
        """The number of denials from a write set that prove that an entry was not confirmed."""
        return self.write - self.ack + 1

    @property
    def is_striped(self) -> bool:
        """Whether each bookie holds only some of the entries."""
        return self.ensemble > self.write

    def covered(self, answered: Collection[int]) -> bool:
        """Whether every ack quorum contains a position that has answered."""
        return all(
            sum(position in answered for position in self.write_set(first)) >= self.denials
            for first in range(self.ensemble)
        )

    def copies_without(self, lost: Collection[int]) -> int:
        """The number of copies of the entry with the fewest, without these positions."""
        return min(
            sum(position not in lost for position in self.write_set(first))
            for first in range(self.ensemble)
        )

    def suffices_without(self, lost: Collection[int]) -> bool:
        """Whether every entry still has an ack quorum without these positions."""
        return self.copies_without(lost) >= self.ack

    def within(self, bookies: int) -> "Quorums | None":
        """The quorums for fewer bookies: the ensemble may be smaller, the ack quorum not."""
        if bookies < self.ack:
            return None
        ensemble = min(self.ensemble, bookies)
        return Quorums(ensemble, min(self.write, ensemble), self.ack)
