"""A skip settles what consumers hold before its position, and leaves the rest with them."""

from typing import Any

import pytest
from dispatch_fakes import KEY_SHARED, SHARED, FakeTopic, with_topic

from managed_ledger.position import Position
from pybroker.broker.dispatch.delivery import Delivery
from pybroker.broker.dispatch.slots import SlotsInFlight
from pybroker.broker.subscriptions.consumer import SubscriptionType, UnackedEntries


@pytest.mark.parametrize("mark", [(0, 9), (1, -1), (1, 0), (1, 2), (1, 4), (2, 0), (3, 0)])
def test_what_is_before_the_mark_is_settled_and_what_is_behind_it_stays(
    mark: tuple[int, int],
) -> None:
    unacked, slots, holder = UnackedEntries(), SlotsInFlight(), object()
    held = [(ledger_id, entry_id) for ledger_id in (1, 2) for entry_id in range(5)]
    for ledger_id in (1, 2):
        delivery = Delivery(ledger_id, list(range(5)), [b""] * 5, [2] * 5)
        unacked.add(delivery, 10)
    for number, position in enumerate(held):
        slots.add(position, number % 3, holder)  # type: ignore[arg-type]
    left = [at for at in held if at > mark]
    unacked.forget_up_to(mark)
    still = [at for at in held if unacked.among(at[0], {at[1]})]
    assert (unacked.messages, still) == (2 * len(left), left)
    drained = slots.remove_up_to(mark)
    kept = {number % 3 for number, at in enumerate(held) if at > mark}
    assert set(drained) == {0, 1, 2} - kept
    assert {slot for slot, _, _ in slots.held()} == kept
    assert sum(count for _, _, count in slots.held()) == len(left)


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
def test_who_was_blocked_by_what_is_skipped_goes_on(kind: SubscriptionType) -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, sink = await topic.consumer(subscription, kind, 100)
        await topic.publish(10)
        assert sink.take() == list(range(4))
        dispatcher: Any = subscription.dispatch.dispatcher
        assert consumer.blocked
        await subscription.skip_to(Position(topic.ledger.last_confirmed.ledger_id, 3))
        await topic.changed()
        assert sink.take() == [4, 5, 6, 7]
        assert dispatcher._unacked == consumer.unacked.messages == 4

    with_topic(scenario, max_unacked_messages_per_consumer=4)
