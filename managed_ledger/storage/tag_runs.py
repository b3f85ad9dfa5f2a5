"""The tags of entries, stored by runs: most entries carry none.

A tag is a few opaque bytes that the writer of an append gives to all of its entries. Tags are kept
beside the payloads, never in them, so no payload can imitate a tag.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Final, NamedTuple


class TagRun(NamedTuple):
    """Entries `first_entry_id` to `last_entry_id`, inclusive, carry `tag`."""

    first_entry_id: int
    last_entry_id: int
    tag: bytes


class TagRuns:
    """By column, in the order of the entries."""

    __slots__ = ("firsts", "lasts", "tags")

    def __init__(self) -> None:
        self.firsts: array[int] = array("Q")
        self.lasts: array[int] = array("Q")
        self.tags: list[bytes] = []

    def __len__(self) -> int:
        return len(self.tags)

    def __iter__(self) -> Iterator[TagRun]:
        return map(TagRun, self.firsts, self.lasts, self.tags)

    def add(self, first: int, last: int, tag: bytes) -> None:
        """Appends a run; merges it with the last one if the tag is the same."""
        if self.tags and self.tags[-1] == tag and self.lasts[-1] == first - 1:
            self.lasts[-1] = last
        else:
            self.firsts.append(first)
            self.lasts.append(last)
            self.tags.append(tag)

    def drop_before(self, entry_id: int) -> None:
        dropped = bisect_left(self.lasts, entry_id)
        del self.firsts[:dropped], self.lasts[:dropped], self.tags[:dropped]
        if self.firsts:
            self.firsts[0] = max(self.firsts[0], entry_id)

    def within(self, first: int, last: int) -> "TagRuns":
        """The runs of entries `first` to `last`, inclusive."""
        span = slice(bisect_left(self.lasts, first), bisect_right(self.firsts, last))
        found = TagRuns()
        found.firsts, found.lasts, found.tags = self.firsts[span], self.lasts[span], self.tags[span]
        if found.tags:
            found.firsts[0] = max(found.firsts[0], first)
            found.lasts[-1] = min(found.lasts[-1], last)
        return found


NO_TAGS: Final = TagRuns()  # shared by all entries without tags; never modified
