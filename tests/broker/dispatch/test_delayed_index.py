"""The index of delayed entries against a plain list."""

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pybroker.broker.dispatch import delayed_index
from pybroker.broker.dispatch.delayed_index import DelayedIndex

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(-5, 40), st.integers(1, 3)),
        st.tuples(st.just("take"), st.integers(-5, 45), st.integers(1, 12)),
        st.tuples(st.just("clear"), st.just(0), st.just(0)),
        st.tuples(st.just("forget"), st.integers(0, 240), st.integers(0, 4)),
    ),
    max_size=80,
)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(steps=STEPS)
def test_all_that_is_due_comes_out_once_whatever_was_put_in(
    steps: list[tuple[str, int, int]],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delayed_index, "RUN_ENTRIES", 8)
        patch.setattr(delayed_index, "_LEFTOVER", 2)
        index, known, entry_id = DelayedIndex(), set[tuple[int, int, int]](), 0
        for what, time, number in steps:
            if what == "add":
                for _ in range(3):
                    entry_id += 1
                    index.add(time, number, entry_id)
                    known.add((time, number, entry_id))
            elif what == "clear":
                index.clear()
                known.clear()
            elif what == "forget":
                index.forget_up_to((number, time))
                known = {item for item in known if item[1:] > (number, time)}
            else:
                due = {item for item in known if item[0] <= time}
                taken = index.take(time, number)
                assert len(taken) == len(set(taken)) == min(number, len(due))
                gone = {item for item in due if item[1:] in taken}
                assert len(gone) == len(taken)
                known -= gone
            assert len(index) == len(known)
            assert index.next_due_ms == min((item[0] for item in known), default=None)


def test_what_is_due_together_comes_in_the_order_of_the_log() -> None:
    index = DelayedIndex()
    for entry_id in range(20_000):
        index.add(7, 1, entry_id)
    taken = [at for _ in range(20) for at in index.take(7, 1000)]
    assert taken == [(1, entry_id) for entry_id in range(20_000)]


def test_no_more_come_out_than_are_wanted_wherever_they_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(delayed_index, "RUN_ENTRIES", 8)
    index = DelayedIndex()
    for entry_id in range(8):
        index.add(10 + entry_id, 1, entry_id)
    index.add(5, 1, 8)
    assert index.take(100, 2) == [(1, 8), (1, 0)]


def test_what_is_there_twice_comes_out_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delayed_index, "RUN_ENTRIES", 8)
    index = DelayedIndex()
    for _ in range(20):
        index.add(7, 1, 3)
    assert index.take(7, 100) == [(1, 3)] * 20


def test_its_size_is_that_of_its_runs_and_of_its_heap() -> None:
    index = DelayedIndex()
    for entry_id in range(delayed_index.RUN_ENTRIES + 10):
        index.add(7, 1, entry_id)
    assert index.size_bytes == delayed_index.RUN_ENTRIES * 24 + 10 * delayed_index.FRESH_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("spread", [1, 10**9])
def test_an_entry_costs_little_however_times_are_spread(spread: int) -> None:
    count = 40_000
    tracemalloc.start()
    index = DelayedIndex()
    for entry_id in range(count):
        index.add(10**12 + entry_id * 7919 % count * spread, 5, entry_id)
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert size < 60 * count  # 24 bytes each, and a heap of new ones
    assert len(index.take(2**62, count)) == count


def test_what_is_forgotten_leaves_whole_runs_alone_and_its_memory() -> None:
    index = DelayedIndex()
    for entry_id in range(3 * delayed_index.RUN_ENTRIES):
        index.add(10**6 - entry_id, 1, entry_id)
    index.forget_up_to((1, 2 * delayed_index.RUN_ENTRIES - 11))
    assert len(index) == delayed_index.RUN_ENTRIES + 10
    assert index.size_bytes == delayed_index.RUN_ENTRIES * 24 + 10 * delayed_index.FRESH_BYTES
    assert index.take(10**6, 10**6)[-1] == (1, 2 * delayed_index.RUN_ENTRIES - 10)
