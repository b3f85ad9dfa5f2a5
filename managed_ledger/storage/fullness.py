"""What the storage refuses: messages for lack of space, and entries for their size.

The former is logged when it begins and when it ends.
Whether the next message would be refused depends on its size and on what was deleted in the
meantime, and with a quota only a write can tell. So this records when the last write was refused;
messages are tried again a while later.
"""

import logging
import math
from collections.abc import Callable
from typing import Final

log = logging.getLogger(__name__)

TRY_AGAIN_S: Final = 2.0
OVER_AFTER_S: Final = 10.0  # after the last refusal: earlier, refusals may resume


class Fullness:
    def __init__(self) -> None:
        self.refused = 0  # writes refused since the start
        self.free_bytes: int | None = None  # at the last check, if known
        self._why = ""
        self._since_s: float | None = None
        self._last_s = -math.inf
        self._refused_before = 0

    @property
    def is_full(self) -> bool:
        """From the first refusal until some seconds after the last."""
        return self._since_s is not None

    @property
    def reason(self) -> str | None:
        """The reason of the last refusal, while `is_full`."""
        return self._why if self.is_full else None

    def why(self, now_s: float) -> str | None:
        """Why messages are refused now: the reason of a refusal within the last TRY_AGAIN_S; else
        None.
        """
        return self._why if now_s < self._last_s + TRY_AGAIN_S else None

    def refuse(self, why: str, now_s: float) -> None:
        """Count a write that was refused for lack of space."""
        self.refused += 1
        self._why, self._last_s = why, now_s
        if self._since_s is None:
            self._since_s, self._refused_before = now_s, self.refused - 1
            free = "" if self.free_bytes is None else f" ({self.free_bytes:,} bytes free)"
            log.error("messages are refused: %s%s", why, free)

    def has_room(self, now_s: float) -> None:
        """The disk reports room. Ignored until nothing has been refused for OVER_AFTER_S."""
        if self._since_s is not None and now_s - self._last_s >= OVER_AFTER_S:
            log.warning(
                "there is room again: messages are accepted; %d writes were refused within %.0f s",
                self.refused - self._refused_before,
                self._last_s - self._since_s,
            )
            self._since_s = None


def ignore_change() -> None:
    """Nothing depends on the limit yet."""


class EntryLimit:
    __slots__ = ("max_bytes", "on_change")

    def __init__(self) -> None:
        self.max_bytes: int | None = None  # of entry and tag together; None: no limit is known
        self.on_change: Callable[[], None] = ignore_change

    def set(self, max_bytes: int | None) -> None:
        if max_bytes != self.max_bytes:
            self.max_bytes = max_bytes
            self.on_change()
