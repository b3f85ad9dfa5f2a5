"""A broker finishes deletions that nobody finishes."""

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import AsyncMock, patch

import pytest
from topics_world import ORDERS, World, run

from pybroker.base.errors import ServiceNotReady
from pybroker.broker.brokers.other_brokers import Reply
from pybroker.broker.deletion.deletions import Doomed
from pybroker.cluster.finishing import PATIENCE_S, Finishing

SHOP: Final = "public/shop"
CARTS: Final = ORDERS._replace(namespace="shop", local="carts/of 2026")
A_WHILE_S: Final = 10 * PATIENCE_S


class Brokers:
    """This broker and others in the list of live brokers, and what this one asks itself."""

    def __init__(self, world: World, place: int) -> None:
        ids = [f"broker-{number}" for number in range(3)]
        self.asked: list[tuple[float, str]] = []
        self.reply = Reply(204)
        live = SimpleNamespace(own_id=ids[place], all=lambda: dict.fromkeys(ids))
        admin = SimpleNamespace(ask_as_a_client=self._ask)
        metadata = world.backend.metadata
        self.finishing = Finishing(world.topics, metadata, live, admin)  # type: ignore[arg-type]

    async def _ask(self, method: str, target: str) -> Reply:
        self.asked.append((asyncio.get_running_loop().time(), f"{method} {target}"))
        return self.reply

    @property
    def targets(self) -> set[str]:
        return {target for _, target in self.asked}


Scenario = Callable[[World, Brokers], Coroutine[Any, Any, None]]


def play(scenario: Scenario, place: int = 0) -> None:
    async def go(world: World) -> None:
        await world.tenants.create_namespace(SHOP, {})
        brokers = Brokers(world, place)
        await scenario(world, brokers)
        await brokers.finishing.close()

    run(go)


def test_a_deletion_of_a_namespace_that_does_not_end_is_requested_again() -> None:
    async def scenario(world: World, brokers: Brokers) -> None:
        brokers.finishing.start()
        await world.tenants.mark_going(SHOP, force=True)
        await asyncio.sleep(PATIENCE_S - 1)
        assert not brokers.asked
        await asyncio.sleep(PATIENCE_S)
        assert brokers.targets == {f"DELETE /admin/v2/namespaces/{SHOP}?onlyDoomed=true"}

    play(scenario)


def test_a_deletion_of_partitions_that_does_not_end_is_requested_again() -> None:
    async def scenario(world: World, brokers: Brokers) -> None:
        brokers.finishing.start()
        await world.tenants.set_partitions(CARTS, 3)
        await world.tenants.set_partitions(ORDERS, 3)
        await world.tenants.doom_partitions(CARTS)
        await asyncio.sleep(2 * PATIENCE_S)
        path = f"persistent/{SHOP}/carts%2Fof%202026/partitions"
        assert brokers.targets == {f"DELETE /admin/v2/{path}?onlyDoomed=true"}

    play(scenario)


def test_a_deletion_that_ends_by_itself_is_left_alone() -> None:
    async def scenario(world: World, brokers: Brokers) -> None:
        brokers.finishing.start()
        await world.tenants.mark_going(SHOP, force=True)
        await asyncio.sleep(PATIENCE_S / 2)
        await world.tenants.unmark(SHOP, forced_too=True)
        await asyncio.sleep(A_WHILE_S)
        assert not brokers.asked and not brokers.finishing._works

    play(scenario)


def test_what_began_before_the_start_is_finished() -> None:
    async def scenario(world: World, brokers: Brokers) -> None:
        await world.tenants.mark_going(SHOP, force=False)
        await world.tenants.set_partitions(ORDERS, 3)
        await world.tenants.doom_partitions(ORDERS)
        brokers.finishing.start()
        await asyncio.sleep(2 * PATIENCE_S)
        assert len(brokers.targets) == 2

    play(scenario)


@pytest.mark.parametrize("place", [1, 2])
def test_each_broker_in_the_list_waits_longer_than_the_one_before(place: int) -> None:
    async def scenario(world: World, brokers: Brokers) -> None:
        brokers.finishing.start()
        await world.tenants.mark_going(SHOP, force=True)
        await asyncio.sleep((1 + place) * PATIENCE_S - 1)
        assert not brokers.asked
        await asyncio.sleep(PATIENCE_S)
        assert brokers.asked

    play(scenario, place)


def test_what_cannot_be_finished_is_tried_again_ever_more_rarely() -> None:
    async def scenario(world: World, brokers: Brokers) -> None:
        brokers.reply = Reply(503, b'{"reason": "a broker does not answer"}')
        brokers.finishing.start()
        await world.tenants.mark_going(SHOP, force=True)
        await asyncio.sleep(200 * PATIENCE_S)
        times_s = [time_s for time_s, _ in brokers.asked]
        pauses = [round((b - a) / PATIENCE_S) for a, b in itertools.pairwise(times_s)]
        assert pauses[:6] == [2, 4, 8, 16, 32, 32]

    play(scenario)


def test_a_broker_that_cannot_ask_tries_again() -> None:
    async def scenario(world: World, brokers: Brokers) -> None:
        asking = AsyncMock(side_effect=[ServiceNotReady("no connection"), Reply(204)])
        brokers.finishing._admin.ask_as_a_client = asking  # type: ignore[method-assign]
        brokers.finishing.start()
        await world.tenants.mark_going(SHOP, force=True)
        await asyncio.sleep(A_WHILE_S / 2)
        assert asking.await_count == 2

    play(scenario)


def test_topics_of_a_namespace_that_is_being_deleted_are_left_to_that_deletion() -> None:
    async def scenario(world: World, brokers: Brokers) -> None:
        brokers.finishing.start()
        await world.tenants.set_partitions(CARTS, 3)
        await world.tenants.doom_partitions(CARTS)
        await world.tenants.mark_going(SHOP, force=True)
        await asyncio.sleep(2 * PATIENCE_S)
        assert brokers.targets == {f"DELETE /admin/v2/namespaces/{SHOP}?onlyDoomed=true"}

    play(scenario)


def test_a_tombstone_is_carried_out_by_the_broker_that_serves_the_topic() -> None:
    async def scenario(world: World, brokers: Brokers) -> None:
        await world.topic()
        await world.topics.unload(ORDERS)
        brokers.finishing.start()
        await world.backend.metadata.put(Doomed(ORDERS).key, Doomed(ORDERS).encode())
        await asyncio.sleep(2 * PATIENCE_S)
        assert world.backend.metadata.get(Doomed(ORDERS).key) is None
        assert not world.exists()

    play(scenario)


def test_a_tombstone_of_another_brokers_topic_is_only_looked_up() -> None:
    async def scenario(world: World, brokers: Brokers) -> None:
        ownership: Any = SimpleNamespace(owns=lambda name: False, owner_of=AsyncMock())
        world.topics.ownership = ownership
        brokers.finishing.start()
        await world.backend.metadata.put(Doomed(ORDERS).key, Doomed(ORDERS).encode())
        await asyncio.sleep(2 * PATIENCE_S)
        ownership.owner_of.assert_awaited_once_with(ORDERS)
        assert world.backend.metadata.get(Doomed(ORDERS).key) is not None

    play(scenario)


def test_a_tombstone_of_a_namespace_that_is_gone_is_carried_out_by_any_broker() -> None:
    """Nobody serves its topics any more."""

    async def scenario(world: World, brokers: Brokers) -> None:
        ownership: Any = SimpleNamespace(owns=lambda name: False)
        world.topics.ownership = ownership
        await world.tenants.delete_namespace(SHOP)
        brokers.finishing.start()
        await world.backend.metadata.put(Doomed(CARTS).key, Doomed(CARTS).encode())
        await asyncio.sleep(2 * PATIENCE_S)
        assert world.backend.metadata.get(Doomed(CARTS).key) is None

    play(scenario)


@pytest.mark.parametrize("value", [b"{}", b"[[], 0, null]", Doomed(ORDERS, 2, None).encode()])
def test_a_tombstone_that_cannot_be_read_hinders_no_other(
    caplog: pytest.LogCaptureFixture, value: bytes
) -> None:
    async def scenario(world: World, brokers: Brokers) -> None:
        metadata, unreadable = world.backend.metadata, Doomed(CARTS).key
        brokers.finishing.start()
        await metadata.put("/deletions/nameless", b"{}")
        await metadata.put(unreadable, value)
        await metadata.put(Doomed(ORDERS).key, Doomed(ORDERS).encode())
        await asyncio.sleep(2 * PATIENCE_S)
        assert metadata.keys("/deletions/") == ["/deletions/nameless", unreadable]
        world.topics.deletions.finish_of(lambda topic: True)
        assert caplog.text.count("does not name a topic") == 2
        assert caplog.text.count("cannot be read") == 2

    play(scenario)


def test_a_mistake_in_one_deletion_does_not_end_the_work(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(world: World, brokers: Brokers) -> None:
        asking = AsyncMock(side_effect=[RuntimeError("a mistake"), Reply(204)])
        brokers.finishing._admin.ask_as_a_client = asking  # type: ignore[method-assign]
        brokers.finishing.start()
        await world.tenants.mark_going(SHOP, force=True)
        await asyncio.sleep(A_WHILE_S / 2)
        assert asking.await_count == 2
        assert "a mistake" in caplog.text

    play(scenario)


def test_of_many_tombstones_each_is_read_a_few_times_only() -> None:
    async def scenario(world: World, brokers: Brokers) -> None:
        many = [Doomed(ORDERS._replace(local=f"orders-{number}")) for number in range(100)]
        for doomed in many:
            await world.backend.metadata.put(doomed.key, doomed.encode())
        with patch.object(Doomed, "decode", side_effect=Doomed.decode) as read:
            brokers.finishing.start()
            await asyncio.sleep(2 * PATIENCE_S)
        assert not world.backend.metadata.keys("/deletions/")
        assert read.call_count <= 3 * len(many)

    play(scenario)


def test_what_begins_after_the_end_is_not_watched() -> None:
    async def scenario(world: World, brokers: Brokers) -> None:
        brokers.finishing.start()
        await brokers.finishing.close()
        await world.tenants.mark_going(SHOP, force=True)
        await asyncio.sleep(A_WHILE_S)
        assert not brokers.asked

    play(scenario)
