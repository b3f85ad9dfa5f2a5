"""So many messages, and so many bytes, in a period: a bucket of tokens each.

Something may pass while there are tokens of both kinds; what passes may overdraw them, as a batch
does, and is paid for by waiting. A full bucket holds one period's tokens.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

UNLIMITED: Final = 2**31 - 1


class Bucket:
    __slots__ = ("_filled_at_s", "_limit", "_per_s", "_tokens")

    def __init__(self, limit: int, period_s: float) -> None:
        self._limit = limit
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

    def wait_s(self) -> float:
        """Until there is a token."""
        return max(0.0, (1 - self.tokens()) / self._per_s)


class Throttle:
    __slots__ = ("_bytes", "_messages", "limits", "refused")

    def __init__(self, messages: int, size_bytes: int, period_s: float = 1.0) -> None:
        """Of limits of 0 or less, nothing is limited."""
        self.limits = messages, size_bytes, period_s
        self.refused = 0  # how often something had to wait
        self._messages = Bucket(messages, period_s) if messages > 0 else None
        self._bytes = Bucket(size_bytes, period_s) if size_bytes > 0 else None

    def messages_left(self) -> int:
        """How many may pass now; 0 also where bytes are short."""
        if self._bytes is not None and self._bytes.tokens() < 1:
            return 0
        return UNLIMITED if self._messages is None else max(0, int(self._messages.tokens()))

    def bytes_left(self) -> int:
        return UNLIMITED if self._bytes is None else max(0, int(self._bytes.tokens()))

    def spend(self, messages: int, size_bytes: int) -> None:
        if self._messages is not None:
            self._messages.spend(messages)
        if self._bytes is not None:
            self._bytes.spend(size_bytes)

    def take(self, entries: Sequence[bytes], message_counts: Sequence[int]) -> int:
        """Pay for as many of the entries as may pass now; returns their number."""
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
        """Until something may pass again."""
        buckets = (bucket for bucket in (self._messages, self._bytes) if bucket is not None)
        return max((bucket.wait_s() for bucket in buckets), default=0.0)


def throttle(
    now: Throttle | None, messages: int, size_bytes: int, period_s: float = 1.0
) -> Throttle | None:
    """One with these limits: the same, if it has them, so that what was overdrawn stays so; None
    where nothing is limited.
    """
    limits = max(0, messages), max(0, size_bytes), period_s
    if not (limits[0] or limits[1]):
        return None
    return now if now is not None and now.limits == limits else Throttle(*limits)
