"""The steps of a broker during a test, as one timeline for the report of a failure.

    with pybroker.testing.broker() as broker, Story(broker) as story:
        ...
        print(story.text())

Events are recorded in a bounded queue, and formatted only on request.
"""

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Self

from pybroker.faults.passing import Passing
from pybroker.faults.points import STEPS
from pybroker.testing.running_broker import RunningBroker
from pybroker.testing.story_text import Line, line, short_topic, since

MOST_LINES: Final = 300
_MOST_OPEN: Final = 1000  # transactions that are followed
_MOST_ENTRIES: Final = 3  # shown of a delivery
_ENTRY_BYTES: Final = 2048  # of each entry; the rest may be huge
_MOST_POSITIONS: Final = 1000
_SHOWN_AT_END: Final = 20

PUBLISHED: Final = "publish.after_append"
DELIVERED: Final = "deliver.before"
ACKNOWLEDGED: Final = "acknowledge.after"
BEGUN: Final = "transaction.log.begin.after"
COMPLETED: Final = "transaction.completed.after"
DECIDED: Final = "transaction.decided.after"

# Names of the points in the story. Other points appear only at a refusal or a fault.
TOLD: Final[Mapping[str, str]] = {
    "connect.after": "connected",
    "producer.open.after": "producer",
    "producer.close.after": "closed",
    "subscribe.after": "subscribed",
    "consumer.close.after": "closed",
    "unsubscribe.after": "unsubscribed",
    "seek.after": "sought",
    "redeliver.before": "redeliver",
    PUBLISHED: "published",
    DELIVERED: "delivered",
    ACKNOWLEDGED: "acknowledged",
    BEGUN: "begun",
    DECIDED: "will end",
    COMPLETED: "ended",
}


# Faults that leave a step undone. An acknowledgement outside transactions is only in memory.
_UNDOES: Final[Mapping[str, frozenset[str]]] = {
    DELIVERED: frozenset({"crash", "drop", "cut"}),
    ACKNOWLEDGED: frozenset({"crash"}),
}
# The points after a command show whether it was refused.
_WATCHED: Final = TOLD.keys() | {
    step.point_after for step in STEPS.values() if step.after and step.name != "ping"
}


class _Event(NamedTuple):
    """An event of the broker itself, or of its clock."""

    at_s: float
    text: str


@dataclass(slots=True)
class _Open:
    """The contents of an open transaction."""

    since_s: float
    published: dict[str, int] = field(default_factory=dict)  # messages, by topic
    acknowledged: dict[str, int] = field(default_factory=dict)  # by topic and subscription

    def __str__(self) -> str:
        parts = [f"{count} published to {where}" for where, count in self.published.items()]
        parts += [f"{count} acknowledged on {where}" for where, count in self.acknowledged.items()]
        return ", ".join(parts[:_SHOWN_AT_END]) or "nothing in it"


class Story:
    """Records the story of one broker, from now on or from the last `begin`. As a context manager,
    it ends with the block.
    """

    def __init__(self, broker: RunningBroker) -> None:
        self._broker = broker
        self._moments: deque[Line | _Event] = deque(maxlen=MOST_LINES)
        self._open: dict[str, _Open] = {}
        self._noted = 0
        self._began_s = 0.0
        self.begin()
        self._observation = broker.faults.observe(self._passed, _WATCHED)
        broker.changed += (self._changed,)
        broker.clock.moved += (self._advanced,)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin(self) -> None:
        """Forgets the recorded events, for the next test. Open transactions stay known."""
        self._moments.clear()
        self._noted = 0
        self._began_s = self._now_s()

    def close(self) -> None:
        """Stops recording. Idempotent."""
        self._observation.remove()
        broker = self._broker
        broker.changed = tuple(each for each in broker.changed if each != self._changed)
        moved = broker.clock.moved
        broker.clock.moved = tuple(each for each in moved if each != self._advanced)

    # -- recording, on the broker's loop unless stated otherwise

    def _now_s(self) -> float:
        return time.monotonic() + self._broker.clock.offset_s

    def _passed(self, passing: Passing) -> None:
        point = passing.point
        if point not in TOLD and not passing.struck and not passing.error:
            return
        at_s = self._now_s()
        self._note(
            Line(
                at_s,
                point,
                passing.topic,
                passing.subscription,
                passing.producer,
                passing.transaction,
                passing.connection,
                tuple(passing.positions[:_MOST_POSITIONS]),
                tuple((each[:_ENTRY_BYTES], len(each)) for each in passing.entries[:_MOST_ENTRIES]),
                passing.detail,
                passing.error,
                passing.struck,
            )
        )
        if passing.transaction and not passing.error:
            self._follow(passing, at_s)

    def _follow(self, passing: Passing, at_s: float) -> None:
        found = self._open.get(passing.transaction)
        if passing.point == COMPLETED:
            self._open.pop(passing.transaction, None)
            return
        if passing.point == BEGUN and len(self._open) < _MOST_OPEN:
            self._open[passing.transaction] = _Open(at_s)
        elif found is not None and passing.point == PUBLISHED:
            topic = short_topic(passing.topic)
            found.published[topic] = found.published.get(topic, 0) + passing.messages
        elif found is not None and passing.point == ACKNOWLEDGED:
            where = f"{short_topic(passing.topic)} / {passing.subscription}"
            found.acknowledged[where] = found.acknowledged.get(where, 0) + len(passing.positions)

    def _changed(self, what: str) -> None:
        """Called on any thread when the broker has started or ended."""
        self._note(_Event(self._now_s(), f"the broker {what}"))

    def _advanced(self, seconds: float) -> None:
        """Called on any thread before the clock is advanced."""
        self._note(_Event(self._now_s(), f"the clock is advanced by {since(seconds).strip()}"))

    def _note(self, moment: Line | _Event) -> None:
        self._noted += 1
        self._moments.append(moment)

    # -- formatting, on any thread

    def text(self) -> str:
        """The story; empty if nothing happened."""
        moments = self._moments.copy()
        if not moments:
            return ""
        lines = []
        if (left_out := self._noted - len(moments)) > 0:
            lines.append(f"({left_out} earlier steps are left out)")
        for each in moments:
            told = line(each, TOLD) if isinstance(each, Line) else f"--- {each.text} ---"
            lines.append(f"{since(each.at_s - self._began_s)}  {told}")
        lines += self._open_at_the_end()
        lines += _unacknowledged([each for each in moments if isinstance(each, Line)])
        return "\n".join(lines)

    def _open_at_the_end(self) -> list[str]:
        found = list(self._open.copy().items())
        lines = [
            f"still open: transaction {txn}, begun at {since(each.since_s - self._began_s).strip()}"
            f": {each}"
            for txn, each in found[:_SHOWN_AT_END]
        ]
        if len(found) > _SHOWN_AT_END:
            lines.append(f"still open: {len(found) - _SHOWN_AT_END} more transactions")
        return lines


def _unacknowledged(lines: list[Line]) -> list[str]:
    """By subscription, the positions that were delivered but not acknowledged, or only in an
    aborted transaction.
    """
    left: dict[tuple[str, str], dict[tuple[int, int], None]] = {}
    aborted = {
        each.transaction for each in lines if each.point == COMPLETED and each.detail != "commit"
    }
    for each in lines:
        if each.error or each.transaction in aborted or each.struck in _UNDOES.get(each.point, ()):
            continue
        positions = left.setdefault((each.topic, each.subscription), {})
        if each.point == DELIVERED:
            positions.update(dict.fromkeys(each.positions))
        elif each.point == ACKNOWLEDGED and each.detail == "cumulative" and each.positions:
            last = max(each.positions)
            for covered in [position for position in positions if position <= last]:
                del positions[covered]
        elif each.point == ACKNOWLEDGED:
            for position in each.positions:
                positions.pop(position, None)
    return [
        f"delivered and not acknowledged: {short_topic(topic)} / {subscription}: "
        + " ".join(f"{ledger}:{entry}" for ledger, entry in list(positions)[:_SHOWN_AT_END])
        + (f" and {len(positions) - _SHOWN_AT_END} more" * (len(positions) > _SHOWN_AT_END))
        for (topic, subscription), positions in left.items()
        if positions
    ]
