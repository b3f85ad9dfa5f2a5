"""Ends of transactions on topics whose broker must be found first."""

import asyncio
from typing import Any

import pytest

from pybroker.base.errors import ServiceNotReady
from pybroker.base.names import TxnId
from pybroker.broker.brokers.ownership import BrokerAddress
from pybroker.broker.namespaces.tenants import NotFound
from pybroker.cluster.transactions.participants import SharedParticipants
from pybroker.transaction.coordinator.ends.participants import TransactionEnd
from pybroker.transaction.this_turn import WouldWait
from pybroker.transaction.txn_status import TxnAction

OTHER = BrokerAddress("pulsar://other:6650")


class World:
    """A broker that has no bundle before it has looked for the owner, and another broker."""

    def __init__(self, owner: BrokerAddress | None = None, fails: Exception | None = None) -> None:
        self.owner, self.fails = owner, fails
        self.found = asyncio.Event()
        self.is_taken = self.exists = False
        self.begun: list[tuple[str, int]] = []
        world: Any = self
        self.participants = SharedParticipants(world, world, world)

    # Ownership

    def owns(self, name: Any) -> bool:
        return self.is_taken

    async def owner_of(self, name: Any) -> BrokerAddress | None:
        await self.found.wait()
        if self.fails is not None:
            raise self.fails
        self.is_taken = self.owner is None
        for _ in range(3):  # those that wait continue some turns later
            await asyncio.sleep(0)
        return self.owner

    async def refreshed(self) -> None:
        """Nothing was written."""

    # Participants on this broker

    def end_on_partition(self, end: TransactionEnd, topic: str, not_later: bool = False) -> None:
        if self.exists:
            raise WouldWait
        self.begun.append(("here", end.txn_id.least))

    # Peers

    async def request(self, broker: BrokerAddress, command: Any) -> None:
        assert broker == OTHER
        self.begun.append(("there", command.txnid_least_bits))

    def end(self, local_id: int, not_later: bool = False) -> Any:
        topic = "persistent://public/default/orders"
        end = TransactionEnd(TxnId(0, local_id), TxnAction.COMMIT, 0)
        return self.participants.end_on_partition(end, topic, not_later)


def test_an_end_does_not_overtake_those_that_wait_for_the_topics_bundle_to_be_taken() -> None:
    async def scenario() -> None:
        world = World()
        first, second = world.end(2), world.end(3)
        world.found.set()
        for _ in range(3):
            await asyncio.sleep(0)
        assert world.is_taken
        with pytest.raises(WouldWait):
            world.end(1, not_later=True)
        await asyncio.gather(first, second, world.end(1))
        assert world.begun == [("here", 2), ("here", 3), ("here", 1)]
        assert world.end(4, not_later=True) is None  # at once: nothing waits any more

    asyncio.run(scenario())


def test_ends_are_sent_to_another_broker_in_order() -> None:
    async def scenario() -> None:
        world = World(OTHER)
        ends = [world.end(each) for each in (2, 1, 3)]
        world.found.set()
        await asyncio.gather(*ends)
        assert world.begun == [("there", 2), ("there", 1), ("there", 3)]

    asyncio.run(scenario())


@pytest.mark.parametrize("exists", [True, False])
def test_without_the_namespace_a_transaction_has_ended_if_there_is_no_such_topic(
    exists: bool,
) -> None:
    async def scenario() -> None:
        world = World(fails=NotFound("no namespace"))
        world.exists = exists
        world.found.set()
        (failure,) = await asyncio.gather(world.end(1), return_exceptions=True)
        assert isinstance(failure, WouldWait) is exists

    asyncio.run(scenario())


def test_ends_that_wait_for_the_topics_broker_fail_when_this_one_stops() -> None:
    async def scenario() -> None:
        world = World()
        ends = [world.end(1), world.end(2)]
        await world.participants.close()
        ends.append(world.end(3))
        failures = await asyncio.gather(*ends, return_exceptions=True)
        assert all(isinstance(each, ServiceNotReady) for each in failures)

    asyncio.run(scenario())
