"""What a member of a share group says of its records, against a model with a state for each."""

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from managed_ledger.position import Position
from pybroker.kafka.errors import KafkaError
from pybroker.kafka.shares.acquired import (
    AckBatch,
    AckType,
    AcquiredEntry,
    AcquiredRecords,
    mask,
    runs,
)

SIZES = (2, 4, 1, 5)  # of the entries; between two of them is an offset that nobody acquired


def acquired() -> AcquiredRecords:
    found, offset = AcquiredRecords(), 1
    for number, size in enumerate(SIZES):
        entry = AcquiredEntry(
            Position(1, number), offset, size, mask(0, size), b"", 1, 0.0, waiting=mask(0, size)
        )
        entry.acquire(size)
        found.add(entry)
        offset += size + 1
    return found


def undecided(records: AcquiredRecords) -> set[int]:
    return {
        each.first_offset + index
        for each in records.entries()
        for start, stop in runs(each.undecided)
        for index in range(start, stop)
    }


def said_of(first: int, types: Sequence[AckType], is_one: bool) -> AckBatch:
    return AckBatch(first, first + len(types) - 1, types[:1] if is_one else types)


BATCHES = st.lists(
    st.builds(
        said_of,
        st.integers(0, 18),
        st.lists(st.sampled_from([AckType.ACCEPT, AckType.RELEASE, AckType.REJECT]), min_size=1),
        st.booleans(),
    ),
    max_size=4,
)


@given(st.lists(BATCHES, max_size=4))
def test_a_request_is_applied_as_a_whole_or_not_at_all(requests: list[list[AckBatch]]) -> None:
    records = acquired()
    model = dict.fromkeys(undecided(records))
    for batches in requests:
        said: dict[int, AckType] = {}
        in_order = all(a.last < b.first for a, b in itertools.pairwise(batches))
        for first, last, types in batches:
            kinds = (
                list(types) if len(types) == last - first + 1 else list(types) * (last - first + 1)
            )
            said |= dict(zip(range(first, last + 1), kinds, strict=True))
        held = undecided(records)
        if in_order and said.keys() <= held:
            records.decide(batches, 0.0, may_renew=False)
            model |= said
        else:
            with pytest.raises(KafkaError):
                records.decide(batches, 0.0, may_renew=False)
        assert undecided(records) == {each for each, kind in model.items() if kind is None}
    for entry in records.entries():
        for index in range(entry.messages):
            kind = model[entry.first_offset + index]
            assert bool(entry.released >> index & 1) is (kind is AckType.RELEASE)
            is_settled = kind in (AckType.ACCEPT, AckType.REJECT)
            assert bool(entry.unacked >> index & 1) is not is_settled


@given(st.integers(0, 1 << 70), st.integers(1, 80))
def test_records_are_handed_out_once_and_in_order(bits: int, most: int) -> None:
    entry = AcquiredEntry(Position(1, 1), 100, 71, bits, b"", 1, 0.0, waiting=bits)
    given_out: list[int] = []
    while entry.waiting:
        parts = runs(entry.acquire(most))
        offsets = [100 + each for start, stop in parts for each in range(start, stop)]
        assert 0 < len(offsets) <= most
        given_out += offsets
    assert given_out == [100 + index for index in range(71) if bits >> index & 1]
    assert entry.undecided == bits


def test_a_request_names_few_parts_of_a_very_large_batch() -> None:
    """Each part costs as much as the batch is long."""
    size = 1_000_000
    entry = AcquiredEntry(
        Position(1, 1), 0, size, mask(0, size), b"", 1, 0.0, waiting=mask(0, size)
    )
    entry.acquire(size)
    records = AcquiredRecords()
    records.add(entry)
    single = [AckBatch(2 * each, 2 * each, [AckType.ACCEPT]) for each in range(100)]
    with pytest.raises(KafkaError, match="together"):
        records.decide(single, 0.0, may_renew=False)
    assert entry.undecided == mask(0, size), "nothing was applied"
    records.decide([AckBatch(0, size - 1, [AckType.ACCEPT])], 0.0, may_renew=False)
    assert entry.is_over


def test_a_record_is_decided_once_and_gaps_are_nobodys() -> None:
    records = acquired()
    accepted = AckBatch(1, 2, [AckType.ACCEPT])
    records.decide([accepted], 0.0, may_renew=False)
    for again in (accepted, AckBatch(2, 2, [AckType.RELEASE])):
        with pytest.raises(KafkaError, match="does not hold"):
            records.decide([again], 0.0, may_renew=False)
    assert records.decide([AckBatch(1, 2, [AckType.GAP])], 0.0, may_renew=False) == []
    (first,) = records.decide([AckBatch(4, 5, [AckType.GAP, AckType.ACCEPT])], 0.0, may_renew=False)
    assert first.first_offset == 4
    assert undecided(records) & {1, 2, 4, 5} == set()
