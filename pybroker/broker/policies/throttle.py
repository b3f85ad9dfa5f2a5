"""Rate limits on messages and bytes per period: one token bucket each.

An entry may pass while both buckets have tokens. A batch may overdraw them; then later entries wait
longer. A full bucket holds one period's tokens. Limits may be relative to the incoming rate: then a
bucket also holds as many tokens as messages or bytes came in during the last period.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

UNLIMITED: Final = 2**31 - 1
_SHORTEST_WAIT_S: Final = 0.001
CameIn = Callable[[], tuple[int, int]]  # numbers of messages and bytes so far


class Bucket:
    __slots__ = ("_filled_at_s", "_least", "_limit", "_per_s", "_period_s", "_tokens")

    def __init__(self, limit: int, period_s: float) -> None:
        self._least = self._limit = float(limit)
        self._period_s = period_s
        self._per_s = limit / period_s
        self._tokens = float(limit)
        self._filled_at_s = asyncio.get_running_loop().time()

    def tokens(self) -> float:
        now_s = asyncio.get_running_loop().time()
        gained = (now_s - self._filled_at_s) * self._per_s
        self._tokens = min(self._limit, self._tokens + gained)
        self._filled_at_s = now_s
        return self._tokens

    def spend(self, tokens: int) -> None:
        self._tokens -= tokens

    def add_to_limit(self, per_s: float) -> None:
        """Allow `per_s` per second in addition to the least limit."""
        self.tokens()
        self._limit = self._least + per_s * self._period_s
        self._per_s = self._limit / self._period_s

    def wait_s(self) -> float:
        """Seconds until there is a token: 0, or at least a measurable time."""
        missing = 1 - self.tokens()
        return max(_SHORTEST_WAIT_S, missing / self._per_s) if missing > 0 else 0.0


class Throttle:
    __slots__ = ("_bytes", "_messages", "_relative_to", "limits", "refused")

    def __init__(
        self,
        messages: int,
        size_bytes: int,
        period_s: float = 1.0,
        came_in: CameIn | None = None,
    ) -> None:
        """0 or less means no limit. With `came_in`, limits are relative to its rate."""
        self.limits = messages, size_bytes, period_s, came_in is not None
        self._relative_to = None if came_in is None else _Intake(came_in, period_s)
        self.refused = 0  # how often an entry had to wait
        self._messages = Bucket(messages, period_s) if messages > 0 else None
        self._bytes = Bucket(size_bytes, period_s) if size_bytes > 0 else None

    def messages_left(self) -> int:
        """How many messages may pass now; 0 also if bytes are exhausted."""
        self._follow_intake()
        if self._bytes is not None and self._bytes.tokens() < 1:
            return 0
        return UNLIMITED if self._messages is None else max(0, int(self._messages.tokens()))

    def _follow_intake(self) -> None:
        rates = None if self._relative_to is None else self._relative_to.measured()
        if rates is not None:
            for bucket, per_s in zip((self._messages, self._bytes), rates, strict=True):
                if bucket is not None:
                    bucket.add_to_limit(per_s)

    def bytes_left(self) -> int:
        return UNLIMITED if self._bytes is None else max(0, int(self._bytes.tokens()))

    def spend(self, messages: int, size_bytes: int) -> None:
        if self._messages is not None:
            self._messages.spend(messages)
        if self._bytes is not None:
            self._bytes.spend(size_bytes)

    def take(self, entries: Sequence[bytes], message_counts: Sequence[int]) -> int:
        """Pay for as many entries as may pass now; returns their number."""
        messages, size_bytes = self.messages_left(), self.bytes_left()
        passed = 0
        for entry, count in zip(entries, message_counts, strict=True):
            if messages <= 0 or size_bytes <= 0:
                self.refused += 1
                break
            messages -= count
            size_bytes -= len(entry)
            self.spend(count, len(entry))
            passed += 1
        return passed

    def wait_s(self) -> float:
        """Seconds until entries may pass again."""
        buckets = (bucket for bucket in (self._messages, self._bytes) if bucket is not None)
        return max((bucket.wait_s() for bucket in buckets), default=0.0)


class _Intake:
    """The rate of incoming data, measured on request, at most once a period."""

    __slots__ = ("_at_s", "_came_in", "_counts", "_period_s")

    def __init__(self, came_in: CameIn, period_s: float) -> None:
        self._came_in = came_in
        self._period_s = period_s
        self._counts = came_in()
        self._at_s = asyncio.get_running_loop().time()

    def measured(self) -> tuple[float, float] | None:
        """Messages and bytes per second since the last measurement; None if that was too recent."""
        now_s = asyncio.get_running_loop().time()
        passed_s = now_s - self._at_s
        if passed_s < self._period_s:
            return None
        (messages, size_bytes), (before, bytes_before) = self._came_in(), self._counts
        self._counts, self._at_s = (messages, size_bytes), now_s
        return (messages - before) / passed_s, (size_bytes - bytes_before) / passed_s


def throttle(
    now: Throttle | None,
    messages: int,
    size_bytes: int,
    period_s: float = 1.0,
    came_in: CameIn | None = None,
) -> Throttle | None:
    """A throttle with these limits: the present one if it has them, so that its overdraft is kept;
    None if nothing is limited.
    """
    limits = max(0, messages), max(0, size_bytes), period_s
    if not (limits[0] or limits[1]):
        return None
    if now is not None and now.limits == (*limits, came_in is not None):
        return now
    return Throttle(*limits, came_in)
