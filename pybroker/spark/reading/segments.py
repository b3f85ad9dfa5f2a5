"""The segments of scalable topics (topic://), which come and go while a stream reads them.

A segment is a topic of its own. Its successors have higher numbers, and ranges of hashes that meet
its range. The broker deletes a sealed segment when every subscription has read it, the query's too.
"""

from collections.abc import Iterable, Mapping

from pybroker.base.names import SEGMENT, TopicName
from pybroker.spark.offsets import Position, Span


def without_deleted(gone: Iterable[str], there: Iterable[str]) -> list[str]:
    """The topics of `gone` that are missed: not segments of a topic of which others are there."""
    topics = {TopicName.parse(each).partitioned_name for each in there if _is_segment(each)}
    return [
        each
        for each in gone
        if not (_is_segment(each) and TopicName.parse(each).partitioned_name in topics)
    ]


def held_back(spans: Mapping[str, Span], ends: Mapping[str, Position]) -> dict[str, Span]:
    """The spans, without messages of segments whose predecessors are not read to their ends: so the
    messages of a key do not come in an earlier batch than those before them.
    """
    unfinished = [
        TopicName.parse(topic)
        for topic, span in spans.items()
        if _is_segment(topic) and span.to < ends[topic]
    ]
    if not unfinished:
        return dict(spans)
    return {
        topic: Span(span.after, span.after) if _comes_after(topic, unfinished) else span
        for topic, span in spans.items()
    }


def _is_segment(topic: str) -> bool:
    return topic.startswith(f"{SEGMENT}://")


def _comes_after(topic: str, others: Iterable[TopicName]) -> bool:
    if not _is_segment(topic):
        return False
    name = TopicName.parse(topic)
    return any(
        other.partitioned_name == name.partitioned_name
        and other.segment_id < name.segment_id
        and _meet(_range(other), _range(name))
        for other in others
    )


def _range(segment: TopicName) -> tuple[int, int]:
    start, end, _ = segment.local.rpartition("/")[2].split("-")
    return int(start, 16), int(end, 16)


def _meet(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] <= other[1] and other[0] <= one[1]
