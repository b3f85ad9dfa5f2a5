"""What open transactions hold, as both buffers count it, whatever becomes of the messages."""

from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from aside_world import ABORT, COMMIT, ORDERS, AsideWorld, soon
from txn_world import message
from virtual_loop import run_virtually

from managed_ledger.errors import ManagedLedgerError
from pybroker.base.errors import InvalidTxnStatus
from pybroker.base.names import TxnId
from pybroker.transaction.buffer.open_contents import Held, OpenContents, TopicContents

NAMESPACE = "public/default"
SIZE = len(message("a"))
ORDERS_OF = pytest.mark.parametrize("in_commit_order", [False, True], ids=["log", "commit"])

Test = Callable[[AsideWorld], Coroutine[Any, Any, None]]


def in_world_of(in_commit_order: bool, test: Test) -> None:
    async def life() -> None:
        world = AsideWorld()
        world.in_commit_order = in_commit_order
        await test(await world.start())

    run_virtually(life())


async def joined(world: AsideWorld) -> OpenContents:
    contents = OpenContents()
    (await world.buffer()).contents.join(contents, NAMESPACE)
    return contents


def numbers(held: Held) -> tuple[int, int]:
    return held.messages, held.size_bytes


@ORDERS_OF
def test_what_is_open_counts_until_its_end(in_commit_order: bool) -> None:
    async def test(world: AsideWorld) -> None:
        contents = await joined(world)
        first, second = await world.begin_on(ORDERS), await world.begin_on(ORDERS)
        await world.send(first, "a", "a")
        await world.send(second, "a")
        assert numbers(contents.in_namespace(NAMESPACE)) == (3, 3 * SIZE)
        await world.end(first, COMMIT)
        assert numbers(contents.in_namespace(NAMESPACE)) == (1, SIZE)
        await world.end(second, ABORT)
        assert numbers(contents.in_namespace(NAMESPACE)) == (0, 0)
        assert len((await world.buffer()).contents) == 0

    in_world_of(in_commit_order, test)


@ORDERS_OF
def test_what_is_refused_or_fails_counts_nothing(in_commit_order: bool) -> None:
    async def test(world: AsideWorld) -> None:
        contents = await joined(world)
        txn_id = await world.begin()
        with pytest.raises(InvalidTxnStatus):
            await world.send(txn_id, "not added")
        await world.add(txn_id, ORDERS)
        await world.send(txn_id, "a")
        world.storage.full = True
        with pytest.raises(ManagedLedgerError):
            await world.send(txn_id, "b")
        assert numbers(contents.in_namespace(NAMESPACE)) == (1, SIZE)

    in_world_of(in_commit_order, test)


@ORDERS_OF
def test_what_was_held_before_a_crash_is_counted_once_when_somebody_asks(
    in_commit_order: bool,
) -> None:
    async def test(world: AsideWorld) -> None:
        open_one, ended = await world.begin_on(ORDERS), await world.begin_on(ORDERS)
        for txn_id in (open_one, ended, open_one):
            await world.send(txn_id, "a")
        world = await again(world)
        contents, buffer = await joined(world), await world.buffer()
        await world.send(open_one, "a")
        assert numbers(contents.in_namespace(NAMESPACE)) == (1, SIZE)
        await world.end(ended, COMMIT)
        for _ in range(2):
            await buffer.count_what_was_before(world.log_of(buffer))
            assert numbers(contents.in_namespace(NAMESPACE)) == (3, 3 * SIZE)
        await world.end(open_one, ABORT)
        assert numbers(buffer.contents.total) == (0, 0)

    async def again(world: AsideWorld) -> AsideWorld:
        copy = AsideWorld(world.storage.durable_copy())
        copy.in_commit_order = in_commit_order
        await copy.start()
        return copy

    in_world_of(in_commit_order, test)


@ORDERS_OF
def test_an_unloaded_topic_holds_nothing(in_commit_order: bool) -> None:
    async def test(world: AsideWorld) -> None:
        contents = await joined(world)
        txn_id = await world.begin_on(ORDERS)
        await world.send(txn_id, "a")
        await (await world.buffer()).close()
        await soon()
        assert numbers(contents.in_namespace(NAMESPACE)) == (0, 0)

    in_world_of(in_commit_order, test)


def test_a_principal_s_topics_count_together() -> None:
    broker = OpenContents()
    broker.owner_of = lambda txn_id: "alice" if txn_id.least else None
    topics = [TopicContents(), TopicContents()]
    for number, topic in enumerate(topics):
        topic.join(broker, f"public/{number}")
        for least in (0, 1):
            topic.add(TxnId(0, least), 1, 10)
    assert numbers(broker.of_owner("alice")) == (2, 20)
    assert numbers(broker.in_namespace("public/1")) == (2, 20)
    topics[1].forget()
    assert numbers(broker.of_owner("alice")) == (1, 10)
    assert numbers(broker.in_namespace("public/1")) == (0, 0)
    topics[0].ended(TxnId(0, 1))
    topics[0].ended(TxnId(0, 1))
    assert numbers(broker.of_owner("alice")) == (0, 0)
