"""Notices that messages which a query was still to read have been deleted.

A trigger may leave messages to the next one. A message TTL, a quota or an administrator may delete
them before that, and then the next batch would begin after them without a word. So the first of
them is remembered: a log is deleted from its beginning, so while that message is stored, so are
those after it.
"""

from collections.abc import Mapping

from pybroker.spark.offsets import Position, Span
from pybroker.spark.reading.survey import Survey


class Unread:
    """Of one run of a query."""

    def __init__(self) -> None:
        # By topic, where the last batch ended, and the first message after that.
        self._firsts: dict[str, tuple[Position, Position]] = {}

    def remember(
        self, survey: Survey, spans: Mapping[str, Span], ends: Mapping[str, Position]
    ) -> None:
        """`spans`: what the batch reads; `ends`: the last message of each topic."""
        left = {topic: span.to for topic, span in spans.items() if span.to < ends[topic]}
        firsts = survey.firsts(left) if left else {}
        self._firsts = {topic: (left[topic], first) for topic, first in firsts.items()}

    def has_left(self, topic: str) -> bool:
        """Whether messages of the topic were left to the next batch."""
        return topic in self._firsts

    def lost(self, survey: Survey, starts: Mapping[str, Position]) -> dict[str, Position]:
        """The topics on which messages after their start have been deleted, and the first of those
        messages."""
        known = {
            topic: first
            for topic, (after, first) in self._firsts.items()
            if starts.get(topic) == after
        }
        if not known:
            return {}
        firsts = survey.firsts({topic: starts[topic] for topic in known})
        return {
            topic: first
            for topic, first in known.items()
            if topic not in firsts or firsts[topic] > first
        }
