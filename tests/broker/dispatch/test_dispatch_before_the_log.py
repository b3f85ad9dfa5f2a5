"""Acknowledgements in a transaction that arrive while the pending-ack log is being opened."""

import asyncio

import pytest
from dispatch_fakes import EXCLUSIVE, FAILOVER, FakeTopic, with_topic
from test_dispatch_transactions import T1, acknowledge

from managed_ledger.position import Position
from pybroker.broker.subscriptions.consumer import SubscriptionType
from pybroker.transaction.pending_acks.records import PendingAck

SINGLE = pytest.mark.parametrize("kind", [EXCLUSIVE, FAILOVER])


@SINGLE
def test_while_the_log_is_being_opened_acknowledgements_keep_their_order(
    kind: SubscriptionType,
) -> None:
    """The one that arrives last does so when the log is open, before those that wait go on."""

    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, _ = await topic.consumer(subscription, kind, 100)
        positions = await topic.publish(4)

        def up_to(position: Position) -> asyncio.Future[None]:
            acks = [PendingAck(position)]
            held = subscription.acknowledge_in_transaction(consumer, T1, acks, True)
            return asyncio.ensure_future(held)

        held = [up_to(position) for position in positions[:3]]
        while subscription.pending_acks is None:  # noqa: ASYNC110  each turn counts
            await asyncio.sleep(0)
        assert not any(each.done() for each in held)
        await asyncio.gather(*held, up_to(positions[3]))

    with_topic(scenario)


@SINGLE
def test_one_whose_client_leaves_before_the_log_is_open_holds_up_nobody(
    kind: SubscriptionType,
) -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, _ = await topic.consumer(subscription, kind, 100)
        first, second = await topic.publish(2)
        gone = subscription.acknowledge_in_transaction(consumer, T1, [PendingAck(first)], True)
        asyncio.ensure_future(gone).cancel()
        await acknowledge(subscription, T1, second, cumulative=True)

    with_topic(scenario)
