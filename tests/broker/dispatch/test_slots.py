"""Key_Shared's records of slots: which consumers hold entries of them, and which entries wait."""

from dispatch_fakes import RecordingSink

from managed_ledger.position import Position
from pybroker.broker.dispatch.slots import SlotsInFlight, WaitingEntries
from pybroker.broker.subscriptions.consumer import Consumer, SubscribeRequest


def at(entry_id: int, ledger_id: int = 0) -> Position:
    return Position(ledger_id, entry_id)


def test_a_slot_is_drained_when_its_last_entry_is_gone() -> None:
    held, consumer = SlotsInFlight(), Consumer(SubscribeRequest(1, "c"), RecordingSink())
    for entry_id in range(4):
        held.add(at(entry_id), entry_id % 2, consumer)
    assert held.remove([at(0), at(9), at(1)]) == []
    assert list(held.held()) == [(0, consumer, 1), (1, consumer, 1)]
    assert held.remove([at(9), at(2)]) == [0]
    assert (held.holder(0), held.holder(1)) == (None, consumer)


def test_after_clearing_nothing_is_known_of_what_was_held() -> None:
    held, consumer = SlotsInFlight(), Consumer(SubscribeRequest(1, "c"), RecordingSink())
    held.add(at(0), 5, consumer)
    held.clear()
    assert (held.holder(5), list(held.held()), held.remove([at(0)])) == (None, [], [])
    held.add(at(1), 5, consumer)
    assert held.remove([at(1)]) == [5]


def test_what_waits_already_does_not_wait_twice() -> None:
    waiting = WaitingEntries()
    assert (waiting.add(at(3), 1), waiting.add(at(3), 1)) == (True, False)
    assert len(waiting) == 1


def test_the_first_that_wait_are_near_one_another() -> None:
    waiting = WaitingEntries()
    for position in (at(9), at(2), at(5), at(1, ledger_id=1), at(6)):
        waiting.add(position, 0)
    assert waiting.first(limit=10, span=4) == [at(2), at(5)]
    assert waiting.first(limit=10, span=5) == [at(2), at(5), at(6)]
    assert waiting.first(limit=2, span=100) == [at(2), at(5)]
    assert waiting.first(limit=10, span=100) == [at(2), at(5), at(6), at(9)]
