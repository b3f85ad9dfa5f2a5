"""Entries by the time at which they are due: 24 bytes each, whatever the spread of their times.

New entries go into a small heap. When it is full it becomes a run, three sorted arrays; another
heap knows which run is due next. The rest of a run that is nearly used up goes back into the first
heap, so there are never many small runs.
"""

from array import array
from bisect import bisect_right
from heapq import heapify, heappop, heappush
from typing import Final

RUN_ENTRIES: Final = 4096
_LEFTOVER: Final = RUN_ENTRIES // 4
FRESH_BYTES: Final = 160  # a tuple of three numbers, in a heap
_RUN_BYTES: Final = 24

Due = tuple[int, int, int]  # time, ledger, entry
LAST_MS: Final = 2**62  # later than any clock; a message's time may be too large for an array


class _Run:
    __slots__ = ("_entries", "_head", "_ledgers", "_times", "ceiling", "floor")

    def __init__(self, dues: list[Due]) -> None:
        """`dues` is sorted and not empty."""
        self._times = array("q", [due[0] for due in dues])
        self._ledgers = array("q", [due[1] for due in dues])
        self._entries = array("q", [due[2] for due in dues])
        self._head = 0
        # All positions are between these two.
        self.floor = min(self._ledgers), min(self._entries)
        self.ceiling = max(self._ledgers), max(self._entries)

    def __len__(self) -> int:
        return len(self._times) - self._head

    def first(self) -> Due:
        head = self._head
        return self._times[head], self._ledgers[head], self._entries[head]

    def take(self, up_to_ms: int, limit: int) -> list[tuple[int, int]]:
        start = self._head
        last = min(start + limit, len(self._times))
        self._head = stop = bisect_right(self._times, up_to_ms, start, last)
        return list(zip(self._ledgers[start:stop], self._entries[start:stop], strict=True))

    def rest(self) -> list[Due]:
        start = self._head
        columns = (self._times[start:], self._ledgers[start:], self._entries[start:])
        return list(zip(*columns, strict=True))


class DelayedIndex:
    __slots__ = ("_count", "_fresh", "_made", "_runs")

    def __init__(self) -> None:
        self._fresh: list[Due] = []
        self._runs: list[tuple[Due, int, _Run]] = []  # by their first entries, then by age
        self._made = 0  # number of runs created so far
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def next_due_ms(self) -> int | None:
        """None if it is empty."""
        firsts = [*self._fresh[:1], *(run[0] for run in self._runs[:1])]
        return min(firsts)[0] if firsts else None

    def add(self, due_ms: int, ledger_id: int, entry_id: int) -> None:
        self._count += 1
        heappush(self._fresh, (min(due_ms, LAST_MS), ledger_id, entry_id))
        if len(self._fresh) >= RUN_ENTRIES:
            self._make_run()

    def take(self, up_to_ms: int, limit: int) -> list[tuple[int, int]]:
        """Up to `limit` positions that are due at `up_to_ms`, roughly in the order of their
        times.
        """
        taken: list[tuple[int, int]] = []
        while len(taken) < limit and self._count > len(taken):
            if self._runs and not (self._fresh and self._fresh[0] < self._runs[0][0]):
                found = self._take_from_run(up_to_ms, limit - len(taken))
            elif self._fresh[0][0] <= up_to_ms:
                found = [heappop(self._fresh)[1:]]
            else:
                found = []
            if not found:
                break
            taken += found
        self._count -= len(taken)
        return taken

    @property
    def size_bytes(self) -> int:
        """The approximate size."""
        fresh = len(self._fresh)
        return fresh * FRESH_BYTES + (self._count - fresh) * _RUN_BYTES

    def forget_up_to(self, mark: tuple[int, int]) -> None:
        """Forget the positions up to and including `mark`.

        A run has roughly the entries that were added consecutively, so few runs have entries on
        both sides.
        """
        self._fresh = [due for due in self._fresh if due[1:] > mark]
        heapify(self._fresh)
        runs, self._runs = self._runs, []
        for known in runs:
            run = known[2]
            if run.floor > mark:
                heappush(self._runs, known)
            elif run.ceiling > mark:
                self._put_back([due for due in run.rest() if due[1:] > mark])
        self._count = len(self._fresh) + sum(len(run) for _, _, run in self._runs)

    def clear(self) -> None:
        self._fresh, self._runs, self._count = [], [], 0

    def _make_run(self) -> None:
        self._push(_Run(sorted(self._fresh)))
        self._fresh = []

    def _push(self, run: _Run) -> None:
        self._made += 1
        heappush(self._runs, (run.first(), self._made, run))

    def _take_from_run(self, up_to_ms: int, limit: int) -> list[tuple[int, int]]:
        run = self._runs[0][2]
        taken = run.take(up_to_ms, limit)
        if not taken:
            return taken
        heappop(self._runs)
        if len(run) > _LEFTOVER:
            self._push(run)
        else:
            self._put_back(run.rest())
        return taken

    def _put_back(self, dues: list[Due]) -> None:
        """Put back the rest of a run."""
        if len(dues) > _LEFTOVER:
            self._push(_Run(dues))
            return
        self._fresh += dues
        heapify(self._fresh)
        if len(self._fresh) >= RUN_ENTRIES:
            self._make_run()
