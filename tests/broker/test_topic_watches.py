"""TopicWatches: the topics that a pattern selects, and each change of them, once."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from dispatch_fakes import SteppedClock
from virtual_loop import run_virtually

from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.storage.memory import MemoryBackend
from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.errors import TooManyRequests
from pybroker.base.names import TopicName
from pybroker.broker.namespaces.tenants import NotFound, Tenants
from pybroker.broker.topic_lists.lists import TopicLists
from pybroker.broker.topic_lists.pattern import TopicPattern
from pybroker.broker.topic_lists.watches import TOGETHER_S, Change, TopicWatches

NAMESPACE = "public/default"


class World:
    def __init__(self, backend: MemoryBackend) -> None:
        self.factory = ManagedLedgerFactory(backend, SteppedClock())
        self.tenants = Tenants(backend.metadata, BrokerConfig())
        self.lists = TopicLists(self.factory, backend.metadata, self.tenants)
        self.watches = TopicWatches(self.lists)
        self.heard: list[tuple[list[str], list[str]]] = []
        self.hashes: list[str] = []

    async def create(self, *names: str) -> None:
        for name in names:
            await self.factory.open(TopicName.parse(name).ledger_name)

    async def delete(self, *names: str) -> None:
        for name in names:
            await self.factory.delete(TopicName.parse(name).ledger_name)

    def told(self, change: Change) -> None:
        self.heard.append((locals_of(change.added), locals_of(change.removed)))
        self.hashes.append(change.hash)

    async def watch(self, text: str) -> list[str]:
        pattern = TopicPattern(f"{NAMESPACE}/{text}")
        return locals_of((await self.watches.begin(NAMESPACE, pattern, self.told)).names)

    async def a_moment(self) -> None:
        await asyncio.sleep(2 * TOGETHER_S)


def locals_of(names: Any) -> list[str]:
    return [TopicName.parse(name).local for name in names]


def run(scenario: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def go() -> None:
        backend = MemoryBackend()
        await backend.open()
        world = World(backend)
        await scenario(world)
        await world.watches.close()
        await world.factory.close()
        await backend.close()

    run_virtually(go())


def test_changes_are_told_of_together_and_only_those_that_are_selected() -> None:
    async def scenario(world: World) -> None:
        await world.create("a-1", "b-1")
        assert await world.watch("a-.*") == ["a-1"]
        await world.a_moment()
        await world.create("a-2", "b-2", "a-3")
        await world.delete("a-1", "b-1")
        await world.a_moment()
        assert world.heard == [(["a-2", "a-3"], ["a-1"])]
        now = await world.watches.begin(NAMESPACE, TopicPattern(f"{NAMESPACE}/a-.*"), print)
        assert [now.hash] == world.hashes

    run(scenario)


def test_a_partition_is_selected_by_the_name_of_its_topic() -> None:
    async def scenario(world: World) -> None:
        await world.watch("orders")
        await world.tenants.set_partitions(TopicName.parse("orders"), 2)
        await world.a_moment()
        assert world.heard == [(["orders-partition-0", "orders-partition-1"], [])]

    run(scenario)


def test_what_comes_and_goes_within_a_moment_is_not_told_of() -> None:
    async def scenario(world: World) -> None:
        await world.watch(".*")
        await world.create("a")
        await world.delete("a")
        await world.a_moment()
        assert world.heard == []

    run(scenario)


def test_who_has_ended_hears_nothing_and_nothing_is_kept_of_it() -> None:
    async def scenario(world: World) -> None:
        await world.watch(".*")
        pattern = TopicPattern(f"{NAMESPACE}/.*")
        for _ in range(2):
            world.watches.end(NAMESPACE, pattern, world.told)
        assert not world.watches._feeds
        await world.create("a")
        await world.a_moment()
        assert world.heard == []

    run(scenario)


@pytest.mark.slow
def test_what_changes_while_names_are_looked_at_is_not_missed() -> None:
    async def scenario(world: World) -> None:
        await world.create(*(f"t-{number}" for number in range(2000)))
        await world.watch("none")
        beginning = asyncio.ensure_future(world.watch("t-.*"))
        await asyncio.sleep(0)
        await world.delete("t-1")
        await world.create("t-x")
        selected = set(await beginning)
        await world.a_moment()
        for came, went in world.heard:
            selected = (selected | set(came)) - set(went)
        assert selected == {f"t-{number}" for number in range(2000) if number != 1} | {"t-x"}

    run(scenario)


def test_an_absent_namespace_is_not_found() -> None:
    async def scenario(world: World) -> None:
        with pytest.raises(NotFound):
            await world.watches.begin("public/absent", TopicPattern(".*"), world.told)
        assert not world.watches._feeds

    run(scenario)


def test_a_limited_number_of_patterns_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pybroker.broker.topic_lists.watches.MAX_PATTERNS", 2)

    async def scenario(world: World) -> None:
        await world.watch("a")
        await world.watch("b")
        with pytest.raises(TooManyRequests):
            await world.watch("c")

    run(scenario)


def test_patterns_select_a_limited_number_of_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pybroker.broker.topic_lists.watches.MAX_NAMES", 2)

    async def scenario(world: World) -> None:
        await world.create("a", "b")
        await world.watch(".*")
        with pytest.raises(TooManyRequests):
            await world.watch("c")

    run(scenario)


def test_who_ends_a_watch_while_others_are_told_hears_nothing_more() -> None:
    async def scenario(world: World) -> None:
        pattern = TopicPattern(f"{NAMESPACE}/a-.*")

        def first(change: Change) -> None:
            world.watches.end(NAMESPACE, pattern, world.told)

        await world.watches.begin(NAMESPACE, pattern, first)
        await world.watches.begin(NAMESPACE, pattern, world.told)
        await world.create("a-1")
        await world.a_moment()
        assert not world.heard

    run(scenario)
