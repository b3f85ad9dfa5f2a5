"""How long a compacted log keeps the messages that delete a key.

A reader that knows a key, and is behind when a compaction drops both the key and its deletion,
would keep the key for ever. So a deletion stays for a time after the first compaction that included
it, and then until every durable subscription has passed it.

A compacted log does not say when its entries were first compacted. That is told by spans of
positions, which are few: compactions that follow each other soon share one.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from managed_ledger.position import EARLIEST, LATEST, Position

PROPERTY: Final = "compactionTombstones"  # a property of the topic's managed ledger
_SPANS: Final = 20  # for the whole retention: a deletion may stay longer by a twentieth


@dataclass(frozen=True, slots=True)
class Compacted:
    """A span of positions, from the previous one's end up to `horizon`: a first compaction included
    it between these times.
    """

    horizon: Position
    first_ms: int
    last_ms: int


@dataclass(frozen=True, slots=True)
class Tombstones:
    """Those of one compacted log."""

    generation: int
    count: int = 0
    dropped_to: Position = EARLIEST  # there are none up to here
    compacted: tuple[Compacted, ...] = ()

    def may_drop_to(self, now_ms: int, retention_s: int, passed: Iterable[Position]) -> Position:
        """Up to this position the next compaction need not keep them. `passed`: where durable
        subscriptions are. A negative retention keeps them for ever, 0 not even once.
        """
        due = [each.horizon for each in self.compacted if _is_due(each, now_ms, retention_s)]
        if retention_s == 0:
            due.append(LATEST)
        return max(self.dropped_to, min([max(due, default=EARLIEST), *passed]))

    def after(
        self,
        generation: int,
        horizon: Position,
        dropped_to: Position,
        now_ms: int,
        retention_s: int,
    ) -> "Tombstones":
        """Those of the next log, which dropped them up to `dropped_to`; still to be counted."""
        due = [each for each in self.compacted if _is_due(each, now_ms, retention_s)]
        rest = [each for each in self.compacted if each not in due]
        spans = [each for each in (*due[-1:], *rest) if each.horizon > dropped_to]
        since_ms = now_ms - max(0, retention_s) * 1000 // _SPANS
        if spans and (spans[-1].first_ms > since_ms or retention_s < 0):
            spans[-1] = replace(spans[-1], horizon=horizon, last_ms=now_ms)
        else:
            spans.append(Compacted(horizon, now_ms, now_ms))
        return Tombstones(generation, dropped_to=dropped_to, compacted=tuple(spans))

    def encode(self) -> str:
        spans = [[*each.horizon, each.first_ms, each.last_ms] for each in self.compacted]
        return json.dumps(
            {
                "generation": self.generation,
                "count": self.count,
                "droppedTo": self.dropped_to,
                "compacted": spans,
            }
        )


def _is_due(span: Compacted, now_ms: int, retention_s: int) -> bool:
    return retention_s >= 0 and span.last_ms + retention_s * 1000 <= now_ms


def tombstones_of(properties: Mapping[str, str], generation: int) -> Tombstones:
    """Those of the compacted log of this generation. A log by an earlier version has none."""
    found: Any = json.loads(properties.get(PROPERTY, "{}"))
    if found.get("generation") != generation:
        return Tombstones(generation)
    spans = (
        Compacted(Position(ledger_id, entry_id), first_ms, last_ms)
        for ledger_id, entry_id, first_ms, last_ms in found["compacted"]
    )
    return Tombstones(generation, found["count"], Position(*found["droppedTo"]), tuple(spans))
