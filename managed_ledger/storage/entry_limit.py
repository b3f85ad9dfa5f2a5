"""The size of the largest entry that the storage takes."""

from collections.abc import Callable


def nobody_minds() -> None:
    """Nothing depends on the limit yet."""


class EntryLimit:
    __slots__ = ("max_bytes", "on_change")

    def __init__(self) -> None:
        self.max_bytes: int | None = None  # of entry and tag together; None: no limit is known
        self.on_change: Callable[[], None] = nobody_minds

    def set(self, max_bytes: int | None) -> None:
        if max_bytes != self.max_bytes:
            self.max_bytes = max_bytes
            self.on_change()
