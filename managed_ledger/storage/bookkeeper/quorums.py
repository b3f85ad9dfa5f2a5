"""Which bookies hold an entry, and how many answers are a proof. No I/O.

Entries are striped: entry `e` is on the `write_quorum` bookies from position `e % ensemble` on. It
is confirmed by `ack_quorum` of them. So a confirmed entry is on at least one of any `write_quorum -
ack_quorum + 1` bookies of its write set: only that many denials prove that it was not confirmed.

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
        """How many of a write set must deny an entry, to prove that it was not confirmed."""
        return self.write - self.ack + 1

    @property
    def is_striped(self) -> bool:
        """Whether a bookie lacks some entries of its ledger."""
        return self.ensemble > self.write

    def covered(self, answered: Collection[int]) -> bool:
        """Whether no entry can be confirmed any more without one of the positions that answered."""
        return all(
            sum(position in answered for position in self.write_set(first)) >= self.denials
            for first in range(self.ensemble)
        )

    def copies_without(self, lost: Collection[int]) -> int:
        """Of the entries with the fewest, without these positions."""
        return min(
            sum(position not in lost for position in self.write_set(first))
            for first in range(self.ensemble)
        )

    def suffices_without(self, lost: Collection[int]) -> bool:
        """Whether every entry has an ack quorum without these positions."""
        return self.copies_without(lost) >= self.ack

    def within(self, bookies: int) -> "Quorums | None":
        """The same with so many bookies: a smaller ensemble, never a smaller ack quorum."""
        if bookies < self.ack:
            return None
        ensemble = min(self.ensemble, bookies)
        return Quorums(ensemble, min(self.write, ensemble), self.ack)
