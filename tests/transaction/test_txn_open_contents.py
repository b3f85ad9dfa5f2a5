"""What open transactions hold: both buffers count it, whatever happens to the messages."""

from collections.abc import Callable, Coroutine
from typing import Any
from unittest.mock import patch

import pytest
from aside_world import ABORT, COMMIT, ORDERS, AsideWorld, soon
from txn_world import message
from virtual_loop import run_virtually

from managed_ledger.errors import ManagedLedgerError
from managed_ledger.position import LATEST, Position
from pybroker.base.errors import InvalidTxnStatus
from pybroker.base.names import TxnId
from pybroker.transaction.buffer import open_contents
from pybroker.transaction.buffer.open_contents import (
    Held,
    OpenContents,
    TopicContents,
    held_in,
)
from pybroker.transaction.buffer.transaction_ranges import TransactionRanges

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


def test_what_has_no_bytes_and_what_is_no_message_counts_until_it_is_given_back() -> None:
    broker, topic, txn_id = OpenContents(), TopicContents(), TxnId(0, 0)
    broker.owner_of = lambda _: "alice"
    topic.join(broker, NAMESPACE)
    for messages, size_bytes in (1, 0), (0, 10):
        for _ in range(2):
            topic.add(txn_id, messages, size_bytes)
        topic.add(txn_id, -messages, -size_bytes)
        for held in (broker.in_namespace(NAMESPACE), broker.of_owner("alice"), topic.total):
            assert numbers(held) == (messages, size_bytes)
        assert [(each, numbers(held)) for each, held in topic.transactions()] == [
            (txn_id, (messages, size_bytes))
        ]
        topic.add(txn_id, -messages, -size_bytes)
        assert not topic.transactions() and topic.of(txn_id) is None
        assert not broker._namespaces and not broker._owners, "nobody is remembered for nothing"


def test_a_topic_that_is_forgotten_has_nothing_of_before_to_count() -> None:
    topic = TopicContents()
    topic.of_before = {"orders": Position(3, 5)}
    topic.add(TxnId(0, 0), 1, 10)
    topic.forget()
    assert not topic.of_before and len(topic) == 0 and numbers(topic.total) == (0, 0)


def test_what_is_counted_ends_at_a_position_and_at_the_end_of_the_log() -> None:
    async def test(world: AsideWorld) -> None:
        ledger = await world.ledger(ORDERS)
        for _ in range(5):
            await world.send(None, "a")
        ledger_id = ledger.first_position.ledger_id
        ranges = TransactionRanges()
        ranges.extend(ledger_id, 0, 1)
        ranges.extend(ledger_id, 3, 9)
        with patch.object(open_contents, "_READ_ENTRIES", 2):
            assert await held_in(ledger, ranges, LATEST) == (4, 4 * SIZE)
            assert await held_in(ledger, ranges, Position(ledger_id, 3)) == (3, 3 * SIZE)
            assert await held_in(ledger, ranges, Position(ledger_id, 0)) == (1, SIZE)

    in_world_of(False, test)
