"""What a consumer was not handed of the batches that it was."""

import pytest

from pybroker.broker.dispatch import left_out
from pybroker.broker.dispatch.delivery import Delivery
from pybroker.broker.dispatch.left_out import LeftOut

LEDGER, SIZE = 7, 4


def delivery(*entry_ids: int, withheld: dict[int, int] | None = None) -> Delivery:
    """Of batches of which `withheld` is left out, and nothing else."""
    unacked = {entry_id: (0b1111 & ~bits, SIZE) for entry_id, bits in (withheld or {}).items()}
    counts = [unacked[each][0].bit_count() if each in unacked else SIZE for each in entry_ids]
    entries = [b""] * len(entry_ids)
    return Delivery(LEDGER, entry_ids, entries, counts, unacked or None, withheld)


def test_the_latest_delivery_of_a_batch_counts() -> None:
    known = LeftOut()
    known.delivered(delivery(1, 2, 3, withheld={1: 0b0001, 3: 0b1000}))
    assert known.divide([(LEDGER, each) for each in (1, 2, 3)]) == (
        [(LEDGER, 2)],
        [((LEDGER, 1), 0b0001, SIZE), ((LEDGER, 3), 0b1000, SIZE)],
    )
    known.delivered(delivery(1, 2))
    known.delivered(delivery(3, withheld={3: 0b0100}))
    assert [known.of((LEDGER, each)) for each in (1, 2, 3)] == [0, 0, 0b0100]


def test_what_was_cut_off_a_delivery_was_not_delivered() -> None:
    known = LeftOut()
    known.delivered(delivery(1, 2, withheld={1: 0b1, 2: 0b1}).part(0, 1))
    assert [known.of((LEDGER, each)) for each in (1, 2)] == [0b1, 0]


def test_what_is_acknowledged_is_forgotten() -> None:
    known = LeftOut()
    known.delivered(delivery(1, withheld={1: 0b1}))
    known.forget((LEDGER, 1))
    known.forget((LEDGER, 2))
    assert not known


def test_a_bounded_number_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(left_out, "MOST_BATCHES", 2)
    known = LeftOut()
    known.delivered(delivery(1, 2, withheld={1: 0b1, 2: 0b1}))
    known.delivered(delivery(1, 3, withheld={1: 0b10, 3: 0b1}))
    assert [known.of((LEDGER, each)) for each in (1, 2, 3)] == [0b10, 0, 0b1]
