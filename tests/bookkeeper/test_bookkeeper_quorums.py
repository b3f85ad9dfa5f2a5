"""Which bookies suffice for a proof, for a confirmed entry, and for a ledger."""

import pytest

from managed_ledger.storage.bookkeeper.quorums import Quorums


@pytest.mark.parametrize(
    ("quorums", "answered", "is_covered"),
    [
        ((2, 2, 2), {0}, True),
        ((2, 2, 1), {0}, False),
        ((3, 2, 2), {0}, False),
        ((3, 2, 2), {0, 1}, True),
        ((3, 3, 2), {0}, False),
        ((3, 3, 2), {0, 2}, True),
        ((4, 2, 2), {0, 2}, True),
        ((4, 2, 2), {0, 1}, False),
        ((5, 3, 2), {0, 1, 3}, False),
        ((1, 1, 1), set(), False),
    ],
)
def test_a_ledger_is_fenced_when_no_ack_quorum_is_left(quorums, answered, is_covered):
    assert Quorums(*quorums).covered(answered) == is_covered


@pytest.mark.parametrize(
    ("quorums", "lost", "suffices"),
    [
        ((3, 3, 2), {0}, True),
        ((3, 3, 2), {0, 1}, False),
        ((3, 2, 2), {0}, False),
        ((2, 2, 2), {1}, False),
        ((2, 2, 1), {1}, True),
        ((4, 3, 2), {2}, True),
        ((4, 3, 2), {0, 2}, False),
        ((4, 2, 1), {0, 2}, True),
        ((4, 2, 1), {0, 1}, False),
    ],
)
def test_a_ledger_needs_an_ack_quorum_for_each_entry(quorums, lost, suffices):
    assert Quorums(*quorums).suffices_without(lost) == suffices


def test_fewer_bookies_make_a_smaller_ensemble_never_a_smaller_ack_quorum():
    assert Quorums(3, 3, 2).within(2) == Quorums(2, 2, 2)
    assert Quorums(3, 2, 2).within(9) == Quorums(3, 2, 2)
    assert Quorums(3, 3, 2).within(1) is None
    with pytest.raises(ValueError, match="ack quorum 3"):
        Quorums(2, 2, 3)
