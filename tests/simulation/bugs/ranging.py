"""Wrong key ranges of Exclusive consumers and readers."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from pybroker.broker.dispatch import single
from pybroker.broker.dispatch.hash_ring import StickyRanges


@contextmanager
def ranges_ignored() -> Iterator[None]:
    """Every consumer gets every key."""
    with patch.object(single, "ranges_of", lambda consumer: None):
        yield


@contextmanager
def ranges_end_early() -> Iterator[None]:
    """The last slot of a range has no owner."""
    right = StickyRanges.owner

    def owner(self: StickyRanges, slot: int) -> Any:
        is_last = any(slot == end for _, end, _ in self.ranges())
        return None if is_last else right(self, slot)

    with patch.object(StickyRanges, "owner", owner):
        yield


BUGS = {
    "ranges-end-early": ranges_end_early,
    "ranges-ignored": ranges_ignored,
}
