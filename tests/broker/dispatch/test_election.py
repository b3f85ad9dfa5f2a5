"""Who is the active consumer, whatever the order in which consumers come and go."""

import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from pybroker.broker.dispatch.election import Election


@dataclass(eq=False)
class Told:
    """A consumer that is its own sink, and remembers what it is told."""

    priority_level: int
    rank: tuple[str, int, int]
    told: list[bool] = field(default_factory=list)

    @property
    def sink(self) -> "Told":
        return self

    def active_consumer_changed(self, consumer: Any, is_active: bool) -> None:
        self.told.append(is_active)


@pytest.mark.parametrize("partition", [-1, 0, 2])
def test_the_active_one_is_the_nth_of_the_best_level_by_name(partition: int) -> None:
    rng, election, present = random.Random(7), Election(True, partition), list[Any]()
    for number in range(300):
        if present and rng.random() < 0.45:
            election.remove(present.pop(rng.randrange(len(present))))
        else:
            present.append(Told(rng.randrange(3), (rng.choice("abc"), 0, number)))
            election.add(present[-1])
        best = min((each.priority_level for each in present), default=0)
        ranked = sorted(
            (each for each in present if each.priority_level == best), key=lambda each: each.rank
        )
        expected = ranked[max(0, partition) % len(ranked)] if ranked else None
        assert election.active is expected
        assert all(each.told[-1] is (each is expected) for each in present)
