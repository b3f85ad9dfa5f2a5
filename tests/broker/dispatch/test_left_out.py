"""What was left out of a batch when a consumer received it."""

import pytest

from managed_ledger.position import Position
from pybroker.broker.dispatch import left_out
from pybroker.broker.dispatch.delivery import Delivery
from pybroker.broker.dispatch.left_out import LeftOut
from pybroker.transaction.pending_acks.records import PendingAck

LEDGER, SIZE = 7, 4


def delivery(*entry_ids: int, withheld: dict[int, int] | None = None) -> Delivery:
    """A delivery of whole batches, except for the messages in `withheld`: entry id to bits."""
    unacked = {entry_id: (0b1111 & ~bits, SIZE) for entry_id, bits in (withheld or {}).items()}
    counts = [unacked[each][0].bit_count() if each in unacked else SIZE for each in entry_ids]
    entries = [b""] * len(entry_ids)
    return Delivery(LEDGER, entry_ids, entries, counts, unacked or None, withheld)


def late(entry_id: int, before: int, now: int) -> Delivery:
    """A delivery of what an abort gave back of a batch."""
    return Delivery(
        LEDGER,
        [entry_id],
        [b""],
        [now.bit_count()],
        {entry_id: (now, SIZE)},
        None,
        {entry_id: before},
    )


def whole(known: LeftOut, entry_id: int) -> int:
    """The bits that remain when a batch is acknowledged as a whole."""
    _, parts = known.divide([(LEDGER, entry_id)])
    return parts[0][1] if parts else 0


def test_the_latest_delivery_of_a_batch_counts_once_those_before_are_acknowledged() -> None:
    known = LeftOut()
    known.delivered(delivery(1, 2, 3, withheld={1: 0b0001, 3: 0b1000}))
    assert known.divide([(LEDGER, each) for each in (1, 2, 3)]) == (
        [(LEDGER, 2)],
        [((LEDGER, 1), 0b0001, SIZE), ((LEDGER, 3), 0b1000, SIZE)],
    )
    known.delivered(delivery(1, 2))
    known.delivered(delivery(3, withheld={3: 0b0100}))
    assert [known.of((LEDGER, each)) for each in (1, 2, 3)] == [0, 0, 0b0100]


def test_an_acknowledgement_of_the_whole_counts_for_what_is_in_all_deliveries_that_are_owed() -> (
    None
):
    known = LeftOut()
    known.delivered(delivery(1, withheld={1: 0b0001}))
    known.delivered(delivery(1, withheld={1: 0b1000}))
    known.delivered(delivery(1))
    assert [whole(known, 1) for _ in range(4)] == [0b1001, 0b1001, 0, 0]


@pytest.mark.parametrize("positions", [None, [(LEDGER, 1), (LEDGER, 2)]])
def test_what_was_asked_for_again_is_owed_once(positions: list[tuple[int, int]] | None) -> None:
    known = LeftOut()
    known.delivered(delivery(1, withheld={1: 0b0001}))
    known.asked_again(positions)
    known.delivered(delivery(1, withheld={1: 0b1000}))
    assert whole(known, 1) == 0b1000
    known.asked_again([(LEDGER, 2)])
    known.delivered(delivery(1))
    assert not known


def test_what_an_abort_gives_back_is_owed_as_before() -> None:
    """It counted for all that was ever given: messages were lost (seed 170008835)."""
    known, position = LeftOut(), Position(LEDGER, 1)
    known.delivered(late(1, before=0b1111, now=0b0010))
    known.taken([PendingAck(position, 0b1011, SIZE), PendingAck(position, 0b1101, SIZE)])
    known.given_back(position, 0b0110)
    assert whole(known, 1) == 0b1101, "the client has processed one of the two deliveries"
    assert whole(known, 1) == 0, "and the other one"


@pytest.mark.parametrize("positions", [None, [(LEDGER, 1)]])
def test_until_it_comes_again_an_acknowledgement_refers_to_what_was_delivered(
    positions: list[tuple[int, int]] | None,
) -> None:
    """It counted for all that was ever given: a message was lost (seed 170008020)."""
    known = LeftOut()
    known.delivered(late(1, before=0b1111, now=0b0001))
    known.asked_again(positions)
    assert whole(known, 1) == 0b1110
    known.delivered(late(1, before=0b1111, now=0b0100))
    assert whole(known, 1) == 0b1011, "nothing else was delivered since"


@pytest.mark.parametrize(
    ("still_unacked", "owed"), [(None, False), (0b0001, False), (0b0010, True)]
)
def test_what_a_transaction_has_acknowledged_is_not_owed_beside_the_next_delivery(
    still_unacked: int | None, owed: bool
) -> None:
    known, position = LeftOut(), Position(LEDGER, 1)
    known.delivered(delivery(1, withheld={1: 0b0001}))
    known.taken([PendingAck(position, still_unacked, SIZE), PendingAck(position.after)])
    known.delivered(delivery(1))
    assert bool(known) is owed


def test_a_delivery_that_is_acknowledged_by_index_is_owed_no_more() -> None:
    known = LeftOut()
    known.delivered(delivery(1, withheld={1: 0b0001}))
    known.delivered(delivery(1))
    known.named((LEDGER, 1), 0b0101)
    known.named((LEDGER, 1), 0b0001)
    known.named((LEDGER, 2), 0b0001)
    assert whole(known, 1) == 0


def test_a_limited_number_of_deliveries_of_a_batch_is_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(left_out, "MOST_DELIVERIES", 2)
    known = LeftOut()
    for _ in range(4):
        known.delivered(delivery(1, withheld={1: 0b0001}))
    assert known._batches[LEDGER, 1].owed == [0b1110, 0b1110]


def test_who_has_acknowledged_all_of_a_delivery_owes_the_next_one_only() -> None:
    """For instance message by message."""
    known = LeftOut()
    known.delivered(delivery(1, withheld={1: 0b0001}))
    late = Delivery(LEDGER, [1], [b""], [1], {1: (0b0001, SIZE)})
    known.delivered(late)
    assert whole(known, 1) == 0


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


def test_of_many_batches_those_that_are_acknowledged_are_forgotten() -> None:
    known, acknowledged = LeftOut(), set[Position]()
    for entry_id in range(2000):
        known.delivered(delivery(entry_id, withheld={entry_id: 0b1}))
        acknowledged.add(Position(LEDGER, entry_id - 2))
        known.prune(acknowledged.__contains__)
    assert 2 <= len(known._batches) < 200
    assert [known.of((LEDGER, each)) for each in (0, 1998, 1999)] == [0, 0b1, 0b1]


def test_a_bounded_number_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(left_out, "MOST_BATCHES", 2)
    known = LeftOut()
    known.delivered(delivery(1, 2, withheld={1: 0b1, 2: 0b1}))
    known.delivered(delivery(1, 3, withheld={1: 0b10, 3: 0b1}))
    assert [known.of((LEDGER, each)) for each in (1, 2, 3)] == [0b10, 0, 0b1]
