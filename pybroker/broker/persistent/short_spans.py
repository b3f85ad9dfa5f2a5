"""Short spans for ASK_TOPICS: everything between two positions of a topic, if it is small.

Differs: official clients need a consumer for this. Reading a little from each of thousands of
topics would spend most time on opening and closing consumers. The result is exactly what a reader
would get: decided messages, without markers, aborted messages and broker entry metadata. If
anything is unusual (a damaged entry, an end position that no longer holds a message, a dispatch
rate, too much data), nothing is returned, and the client must use a reader.
"""

from dataclasses import dataclass, field
from typing import Final

from managed_ledger.errors import DamagedEntries
from managed_ledger.position import Position
from managed_ledger.storage.backend import EntryRun
from pybroker.broker.client_topics import may_be_stamped
from pybroker.broker.persistent.entry_metadata import plain
from pybroker.broker.persistent.topic import Topic
from pybroker.broker.policies.limits import check_type
from pybroker.broker.policies.table import SUBSCRIPTION_DISPATCH_RATE
from pybroker.broker.subscriptions.consumer import SubscriptionType

MOST_ENTRIES: Final = 256  # per topic, including hidden ones
MOST_BYTES: Final = 1024 * 1024  # per command


@dataclass(slots=True)
class HandedOver:
    """`is_whole` is None if the entries did not fit into the room left by earlier topics."""

    is_whole: bool | None
    entries: list[tuple[Position, bytes]] = field(default_factory=list)


class Allowance:
    """The bytes that one command may return."""

    def __init__(self, size_bytes: int = 0) -> None:
        self.left = min(size_bytes, MOST_BYTES)
        self._is_untouched = True

    def take(self, size_bytes: int) -> None:
        self.left -= size_bytes
        self._is_untouched = False

    def too_little(self) -> HandedOver:
        """The answer for a topic that does not fit. If others preceded it, the client may ask for
        it first the next time, so later topics get nothing now.
        """
        if self._is_untouched:
            return HandedOver(False)
        self.left = 0
        return HandedOver(None)


async def hand_over(
    topic: Topic, after: Position, to: Position, allowance: Allowance
) -> HandedOver:
    """What a reader that begins after `after` would get up to the message at `to`. Raises
    NotAllowed if readers are not allowed on the topic.
    """
    check_type(topic, SubscriptionType.EXCLUSIVE)
    if allowance.left <= 0:
        return HandedOver(None)
    ledger = topic.ledger
    if (
        _has_a_rate(topic)
        or to > topic.buffer.last_visible_position()
        or ledger.count_between(after, to) > MOST_ENTRIES
    ):
        return HandedOver(False)
    entries: list[tuple[Position, bytes]] = []
    size_bytes, reached = 0, after
    while reached < to:
        try:
            run = await _next_run(topic, reached.after, to, allowance.left - size_bytes)
        except DamagedEntries:
            return HandedOver(False)  # a reader will report the damage, with its position
        if run is None:
            return HandedOver(False)
        reached = Position(run.ledger_id, run.first_entry_id + len(run.entries) - 1)
        size_bytes += sum(map(len, run.entries))
        if size_bytes > allowance.left:
            return allowance.too_little()
        entries += await _visible(topic, run)
    if not entries or entries[-1][0] != to:
        return HandedOver(False)
    allowance.take(size_bytes)
    return HandedOver(True, entries)


async def _next_run(
    topic: Topic, first: Position, to: Position, size_bytes: int
) -> EntryRun | None:
    run = topic.ledger.read_cached(first, to, MOST_ENTRIES, size_bytes)
    return run or await topic.ledger.read(first, to, MOST_ENTRIES, size_bytes)


async def _visible(topic: Topic, run: EntryRun) -> list[tuple[Position, bytes]]:
    if topic.ledger.interceptor is not None:
        run = await topic.ledger.interceptor.shown(run)
    ledger_id, first, hidden = run.ledger_id, run.first_entry_id, topic.hidden
    entries = plain(run.entries) if may_be_stamped(topic) else run.entries
    found = [(Position(ledger_id, first + at), entry) for at, entry in enumerate(entries)]
    return [each for each in found if not hidden.contains(each[0])] if hidden else found


def _has_a_rate(topic: Topic) -> bool:
    if topic.dispatch_throttle is not None:
        return True
    rate = topic.policies[SUBSCRIPTION_DISPATCH_RATE]
    return any(
        rate[name] > 0 for name in ("dispatchThrottlingRateInMsg", "dispatchThrottlingRateInByte")
    )
