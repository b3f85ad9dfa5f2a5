"""The number of machines, and of copies of an entry."""

import random
from dataclasses import dataclass
from typing import Final

from managed_ledger.storage.bookkeeper.bookies import BookieLimits
from managed_ledger.storage.bookkeeper.quorums import Quorums

SESSION_MS: Final = 3000
LIMITS: Final = BookieLimits(
    connect_timeout_s=1.0, add_timeout_s=1.0, read_timeout_s=1.0, quarantine_s=1.0
)
_SHAPES: Final = ((2, 2, 2), (3, 3, 2), (3, 2, 2), (3, 3, 3))


@dataclass(frozen=True, slots=True)
class Topology:
    brokers: int
    bookies: int
    quorums: Quorums

    @classmethod
    def draw(cls, rng: random.Random) -> "Topology":
        quorums = Quorums(*rng.choice(_SHAPES))
        return cls(rng.choice((2, 2, 3, 3, 4)), quorums.ensemble + rng.choice((0, 1)), quorums)
