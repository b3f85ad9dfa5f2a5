"""On a full disk, deletions are decided and carried out; only a name may not be free at once."""

import asyncio
from typing import Any

import pytest
from test_deletions import ORDERS, OTHER, PARTITIONS, Life, run
from test_deletions_in_the_way import Removal

from managed_ledger.errors import StorageFull
from pybroker.base.errors import ServiceNotReady, TopicNotFound
from pybroker.base.names import TopicName
from pybroker.broker.deletion import deletions
from pybroker.broker.deletion.deletions import Doomed

NO_ROOM = StorageFull("no room")


class Offsets:
    """What Kafka's groups have committed: to forget it needs room."""

    def __init__(self, life: Life, has_room: bool = False) -> None:
        self.has_room = has_room
        self.forgotten: list[TopicName] = []
        life.topics.deletions.also_forget(self._forget)

    async def _forget(self, topic: TopicName) -> None:
        if not self.has_room:
            raise NO_ROOM
        self.forgotten.append(topic)


def test_it_is_decided() -> None:
    async def scenario(life: Life) -> None:
        await life.fill(ORDERS)
        put, made_room = life.metadata.put, []

        def noted(*what: Any, **options: Any) -> Any:
            made_room.append(options.get("makes_room"))
            return put(*what, **options)

        life.metadata.put = noted  # type: ignore[method-assign]
        await life.topics.delete(ORDERS)
        assert made_room[0]

    run(scenario)


def test_one_that_finds_no_room_is_tried_again_a_second_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sleep, slept = asyncio.sleep, list[float]()

    def noted(delay_s: float) -> Any:
        slept.append(delay_s)
        return sleep(0)

    async def scenario(life: Life) -> None:
        await life.fill(ORDERS)
        removal = Removal(life, "remove_topic")
        removal.may_go_on.set()
        removal.failures = [NO_ROOM, StorageFull("still none")]
        with monkeypatch.context() as patched:
            patched.setattr(deletions.asyncio, "sleep", noted)
            await life.topics.delete(ORDERS)
        assert slept.count(1.0) == 2  # other tasks may sleep, too
        assert removal.tries == 3
        assert life.traces(ORDERS) == []

    run(scenario)


def test_grants_go_with_their_topic_when_next_to_nothing_is_left() -> None:
    async def scenario(life: Life) -> None:
        await life.fill(ORDERS)
        await life.topics.permissions.grant_on_topic(ORDERS, "role", ["produce"])
        life.backend._disk.free = lambda: 100_000  # type: ignore[attr-defined]
        with pytest.raises(StorageFull):
            await life.topics.permissions.grant_on_topic(OTHER, "role", ["produce"])
        async with asyncio.timeout(5):
            await life.topics.delete(ORDERS)
        assert not life.topics.permissions.grants(ORDERS.namespace_name).topics

    run(scenario)


def test_it_does_not_wait_until_kafkas_groups_can_forget_it() -> None:
    """It waited for room that only deletions make (seed 150002859)."""

    async def scenario(life: Life) -> None:
        await life.fill(ORDERS)
        Offsets(life)
        async with asyncio.timeout(5):
            await life.topics.delete(ORDERS)
        assert life.traces(ORDERS) == [Doomed(ORDERS).key]
        with pytest.raises(TopicNotFound):
            await life.topics.delete(ORDERS)

    run(scenario)


def test_a_name_is_not_free_before_kafkas_groups_have_forgotten_it() -> None:
    """They would go on in the next topic where they had been in this one."""

    async def scenario(life: Life) -> None:
        await life.fill(ORDERS)
        offsets = Offsets(life)
        await life.topics.delete(ORDERS)
        with pytest.raises(ServiceNotReady, match="cannot be used again: no room"):
            await life.topics.get(ORDERS, create=True)
        offsets.has_room = True
        assert await life.topics.get(ORDERS, create=True) is not None
        assert offsets.forgotten == [ORDERS]
        assert not life.topics.deletions.concerns(ORDERS)

    run(scenario)


def test_a_name_becomes_free_though_nobody_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deletions, "_RETRY_OFFSETS_S", 0.0)

    async def scenario(life: Life) -> None:
        await life.topics.create_partitioned(ORDERS, PARTITIONS)
        offsets = Offsets(life)
        await life.topics.delete_partitioned(ORDERS)
        with pytest.raises(TopicNotFound):
            await life.topics.delete_partitioned(ORDERS)
        offsets.has_room = True
        async with asyncio.timeout(5):
            await life.topics.deletions._tasks.ended()
        assert not life.topics.deletions.concerns(ORDERS)
        assert offsets.forgotten == [ORDERS]

    run(scenario)


def test_many_who_want_a_name_that_is_not_free_leave_one_later_try() -> None:
    async def scenario(life: Life) -> None:
        await life.fill(ORDERS)
        Offsets(life)
        await life.topics.delete(ORDERS)
        for _ in range(3):
            with pytest.raises(ServiceNotReady):
                await life.topics.get(ORDERS, create=True)
        await asyncio.sleep(0)
        assert len(life.topics.deletions._tasks) == 1

    run(scenario)


def test_a_broker_starts_though_kafkas_groups_cannot_forget_what_was_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(deletions, "_RETRY_OFFSETS_S", 0.0)

    async def scenario(life: Life) -> None:
        await life.fill(ORDERS)
        offsets = Offsets(life)
        await life.metadata.put(Doomed(ORDERS).key, Doomed(ORDERS).encode())
        await life.topics.deletions.finish_all()
        assert life.traces(ORDERS) == [Doomed(ORDERS).key]
        offsets.has_room = True
        async with asyncio.timeout(5):
            await life.topics.deletions._tasks.ended()
        assert life.traces(ORDERS) == []

    run(scenario)
