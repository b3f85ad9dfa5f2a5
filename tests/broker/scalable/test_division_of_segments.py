"""Layouts of ordinary topics, and how a layout's segments are divided among consumers."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybroker.base.errors import NotAllowed
from pybroker.base.names import TopicName
from pybroker.broker.scalable.assignment import assigned
from pybroker.broker.scalable.layout import MAX_SEGMENTS, layout_of

ORDERS = TopicName.parse("orders")
HASHES = 65_536


@given(partitions=st.integers(0, MAX_SEGMENTS))
def test_the_segments_cover_all_hashes_once(partitions: int) -> None:
    segments = layout_of(ORDERS, partitions, 1).segments
    assert len(segments) == max(1, partitions)
    assert segments[0].hash_start == 0 and segments[-1].hash_end == HASHES - 1
    for former, following in pairwise(segments):
        assert former.hash_start <= former.hash_end == following.hash_start - 1


def test_a_topic_of_too_many_partitions_has_no_layout() -> None:
    with pytest.raises(NotAllowed, match="use a 4\\.x client"):
        layout_of(ORDERS, MAX_SEGMENTS + 1, 1)


@given(partitions=st.integers(1, 40), names=st.sets(st.text(max_size=3), min_size=1, max_size=50))
def test_each_segment_has_one_consumer_and_none_has_two_more_than_another(
    partitions: int, names: set[str]
) -> None:
    segments = layout_of(ORDERS, partitions, 1).segments
    shares = assigned(segments, names)
    assert shares.keys() == names
    given_out = [segment for share in shares.values() for segment in share]
    assert sorted(given_out) == sorted(segments)
    sizes = [len(share) for share in shares.values()]
    assert max(sizes) - min(sizes) <= 1


@given(names=st.lists(st.text(max_size=3), unique=True, min_size=1, max_size=9))
def test_the_order_in_which_consumers_came_does_not_matter(names: list[str]) -> None:
    segments = layout_of(ORDERS, 7, 1).segments
    assert assigned(segments, names) == assigned(segments, reversed(names))


def test_nobody_gets_anything_of_an_empty_group() -> None:
    assert assigned(layout_of(ORDERS, 3, 1).segments, []) == {}
