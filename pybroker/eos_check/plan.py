"""The faults to try and their order: the most promising first.

Single faults come from the steps that the run without faults passed. They are tried in rounds. A
round has at most one passing for each step, side and victim: first the middle one, then the first,
the last, and the middles of the rest. So all kinds of crash are tried early. Pairs come from the
steps that a run with one fault passed after the fault.

A run may miss its step, because the pipeline may take other steps than before. Then another crash
of this kind comes before second crashes of other kinds.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Final

from pybroker.eos_check.faults import Fault, Kind, Passing, Phase, Schedule, Victim

# The steps that pipelines most often get wrong come first.
_STEPS: Final = (
    "SEND",
    "PRODUCE",
    "ACK",
    "OFFSET_COMMIT",
    "SHARE_ACKNOWLEDGE",
    "COMMIT",
    "ADD_SUBSCRIPTION_TO_TXN",
    "TXN_OFFSET_COMMIT",
    "ADD_OFFSETS_TO_TXN",
    "ADD_PARTITION_TO_TXN",
    "ADD_PARTITIONS_TO_TXN",
    "NEW_TXN",
    "INIT_PRODUCER_ID",
    "ASK_TOPICS",
    "transaction.decided",
    "transaction.marker",
    "transaction.pending_ack",
    "transaction.completed",
    "SEEK",
    "ABORT",
    "SUBSCRIBE",
    "PRODUCER",
    "UNSUBSCRIBE",
)
_NONE: Final[Mapping[Passing, int]] = {}
_PHASES: Final = (Phase.AFTER, Phase.BEFORE)


def singles(passings: Iterable[Passing], inner: Mapping[Passing, int] = _NONE) -> list[Fault]:
    """One fault for each passing and victim. `inner` has the broker's own steps with their numbers
    of passings.
    """
    counts = Counter(passings)
    pipelines = dict.fromkeys(sorted(counts, key=_promise), Victim.PIPELINE)
    brokers = dict.fromkeys(sorted({**counts, **inner}, key=_promise), Victim.BROKER)
    kinds = [
        [Fault(victim, passing, number) for number in spread(counts[passing] or inner[passing])]
        for each in (pipelines, brokers)
        for passing, victim in each.items()
    ]
    return [fault for turn in zip_longest(*kinds) for fault in turn if fault is not None]


def spread(count: int) -> Iterator[int]:
    """The numbers 1 to `count`: the middle, the first, the last, then the middles of the rest."""
    if count < 1:
        return
    told = set()
    spans = [(1, count)]
    for number in (-(-count // 2), 1, count):
        if number not in told:
            told.add(number)
            yield number
    while spans:
        first, last = spans.pop(0)
        middle = -(-(first + last) // 2)
        if middle not in told:
            told.add(middle)
            yield middle
        if last - first > 1:
            spans += [(first, middle), (middle, last)]


def pairs(first: Fault, passings_behind: Sequence[Passing]) -> list[Schedule]:
    """The fault, followed by each possible second fault."""
    return [(first, second) for second in singles(passings_behind)]


def interleaved(plans: Sequence[Sequence[Schedule]]) -> list[Schedule]:
    """One schedule of each plan in turn. Second faults differ from plan to plan where possible."""
    turned = [
        [*plan[at % len(plan) :], *plan[: at % len(plan)]] for at, plan in enumerate(plans) if plan
    ]
    return [each for turn in zip_longest(*turned) for each in turn if each is not None]


class Plan:
    """Schedules to run, in order. Those of a kind that has not struck yet come first.

    Each of `kinds` should strike at least once, by a schedule of one fault.
    """

    def __init__(self, schedules: Iterable[Schedule], kinds: Iterable[Kind] = ()) -> None:
        self._left = deque(schedules)
        self._size = len(self._left)
        self._left_of = Counter(map(_kind, self._left))
        self._not_struck = dict.fromkeys(kinds)
        self._under_way: Counter[Kind] = Counter()

    def __len__(self) -> int:
        return self._size

    @property
    def left(self) -> int:
        """The number of schedules that were not taken."""
        return len(self._left)

    @property
    def not_tried(self) -> list[Kind]:
        """The kinds that have not struck yet, but have schedules left."""
        return [kind for kind in self._not_struck if self._left_of[kind]]

    @property
    def not_reached(self) -> list[Kind]:
        """The kinds whose schedules were all taken, but no run reached their step."""
        return [kind for kind in self._not_struck if not self._left_of[kind]]

    @property
    def is_finished(self) -> bool:
        """Whether all schedules were taken."""
        return not self._left

    def take(self, *, new_kinds_only: bool = False) -> Schedule | None:
        """The next schedule to run; None if there is none, or only of kinds that have struck or are
        running.
        """
        new = {kind for kind in self.not_tried if not self._under_way[kind]}
        if not self._left or (new_kinds_only and not new):
            return None
        at = next((at for at, each in enumerate(self._left) if _kind(each) in new), 0) if new else 0
        schedule = self._left[at]
        del self._left[at]
        kind = _kind(schedule)
        self._left_of[kind] -= 1
        self._under_way[kind] += 1
        return schedule

    def has_run(self, schedule: Schedule, *, struck: bool) -> None:
        kind = _kind(schedule)
        self._under_way[kind] -= 1
        if struck:
            self._not_struck.pop(kind, None)


def _kind(schedule: Schedule) -> Kind:
    return schedule[0].kind


def _promise(passing: Passing) -> tuple[int, int, str]:
    step = passing.step
    rank = _STEPS.index(step.command) if step.command in _STEPS else len(_STEPS)
    return rank, _PHASES.index(passing.phase), step.topic
