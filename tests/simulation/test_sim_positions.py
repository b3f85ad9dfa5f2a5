"""The navigator's account: what is surely acknowledged, and what may come again."""

from types import SimpleNamespace

import pytest
from checks.history import Outcome, Read, Txn
from checks.positions import position_violations
from clients.navigator import Epoch, Held

A, B, C = (Read("t", (1, entry_id, -1), f"a/{entry_id}") for entry_id in range(3))


def txn(name, began, **outcome):
    return Txn(name, txn_id=0, began=began, **outcome)


def kinds(epoch, left):
    navigator = SimpleNamespace(epochs=[epoch], epoch=epoch)
    return [
        sentence.partition(":")[0]
        for sentence in position_violations(navigator, [A, B, C], left, [])
    ]


@pytest.mark.parametrize(
    ("reads", "wrong"),
    [
        ([A, B, C], []),  # still to come, or late after the acknowledgement
        ([A, B, C, B], []),
        ([A, B, B, C], ["ACKNOWLEDGEMENT LOST"]),
    ],
)
def test_what_an_abort_gave_back_is_covered_by_what_came_behind_it(reads, wrong):
    aborted = Held(txn("one", 1, abort=Outcome.DONE, abort_heard=2), [B])
    committed = Held(txn("two", 3, commit=Outcome.DONE), [A, B, C], singly=False)
    epoch = Epoch(behind=(-1, -1, -1), reads=reads, txns=[aborted, committed])
    assert kinds(epoch, left=[B]) == wrong


def test_what_nobody_else_held_is_covered():
    committed = Held(txn("two", 3, commit=Outcome.DONE), [A, B, C], singly=False)
    epoch = Epoch(behind=(-1, -1, -1), reads=[A, B, C], txns=[committed])
    assert kinds(epoch, left=[B]) == ["ACKNOWLEDGEMENT LOST"]
