"""Answers of the broker that a run needs repeatedly, kept to leave the CPU to the pipeline."""

import time
from collections.abc import Callable
from typing import Final, Generic, TypeVar

_AGAIN_AFTER_S: Final = 0.5  # some changes to an answer do not pass the proxy

Answer = TypeVar("Answer")


class Asked(Generic[Answer]):
    """An answer of `ask`, which is called again when the pipeline may have changed the answer."""

    def __init__(self, ask: Callable[[], Answer]) -> None:
        self._ask = ask
        self._answer: Answer | None = None
        self._asked_s = 0.0

    def answer(self, moved_s: float) -> Answer:
        """`moved_s` is the monotonic time of the last request that passed the proxy."""
        now_s = time.monotonic()
        if self._answer is None or self._asked_s <= max(moved_s, now_s - _AGAIN_AFTER_S):
            self._answer, self._asked_s = self._ask(), now_s
        return self._answer
