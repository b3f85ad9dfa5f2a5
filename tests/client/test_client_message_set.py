"""Sets of messages against sets of their places."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pybroker.client.consuming.message_set import MessageSet

ENTRIES = 12
SIZE = 3  # of a batch; odd entries are batches

PLACES = [
    (ledger, entry, index, SIZE if entry % 2 else 0)
    for ledger in (1, 2)
    for entry in range(ENTRIES)
    for index in (range(SIZE) if entry % 2 else [-1])
]
some = st.sets(st.sampled_from(PLACES))


def contents(messages: MessageSet) -> set[Any]:
    return {place for place in PLACES if place in messages}


@given(some, some, st.sampled_from(PLACES))
def test_it_holds_what_a_set_of_places_holds(left: Any, right: Any, place: Any) -> None:
    one, other = MessageSet.of(left), MessageSet.of(right)
    assert contents(one) == left
    assert contents(one.both(other)) == left & right
    assert contents(one.up_to(place)) == {each for each in left if each[:3] <= place[:3]}
    one.discard_all(other)
    assert contents(one) == left - right
    one.add_all(other)
    assert contents(one) == left | right
    assert bool(one) == bool(left | right)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 4)), max_size=8))
def test_runs_that_overlap_are_not_added_and_neighbours_are_joined(added: Any) -> None:
    messages, expected = MessageSet(), set[int]()
    for first, more in added:
        entries = set(range(first, first + more + 1))
        assert messages.add_run(1, first, first + more) == expected.isdisjoint(entries)
        if expected.isdisjoint(entries):
            expected |= entries
    assert {entry for entry in range(30) if (1, entry, -1, 0) in messages} == expected
    assert messages.size == sum(entry - 1 not in expected for entry in expected)
