"""The ZooKeeper client in the simulated world: the session's states, watches, lost answers."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from sim_ledger import LedgerLife, until
from sim_zookeeper import ADDRESS, PORT

from managed_ledger.storage.zookeeper.client import ZooKeeper
from managed_ledger.storage.zookeeper.errors import (
    BadVersionError,
    ConnectionLoss,
    NodeExists,
    NoNode,
    NotEmpty,
    SessionExpired,
    TooManyWaiting,
    ZooKeeperError,
)
from managed_ledger.storage.zookeeper.operations import (
    Check,
    Create,
    Delete,
    EventType,
    Node,
    SetData,
)
from managed_ledger.storage.zookeeper.session import SessionState

TIMEOUT_MS = 3000
Session = Callable[[], Coroutine[Any, Any, ZooKeeper]]


@pytest.fixture(params=range(3))
def life(request: Any) -> Iterator[LedgerLife]:
    life = LedgerLife(request.param)
    yield life
    life.world.close()


@pytest.fixture
def run(life: LedgerLife) -> Callable[[Coroutine[Any, Any, Any]], Any]:
    process = life.node("client")
    return lambda scenario: life.world.call(process, scenario)


@pytest.fixture
def session(life: LedgerLife) -> Session:
    async def opened() -> ZooKeeper:
        zookeeper = ZooKeeper(ADDRESS, life.world.stream("session"), TIMEOUT_MS)
        await zookeeper.open()
        return zookeeper

    return opened


def cut(life: LedgerLife, zookeeper: ZooKeeper) -> None:
    connection = zookeeper._connection
    assert connection is not None and connection._transport is not None
    connection._transport.break_off(ConnectionResetError("cut"))


def test_nodes_are_created_changed_and_deleted_by_version(run, session):
    async def scenario():
        zookeeper = await session()
        assert await zookeeper.create("/a", b"one") == "/a"
        assert await zookeeper.get("/a") == Node(b"one", 0, 0)
        assert await zookeeper.set("/a", b"two", 0) == 1
        with pytest.raises(BadVersionError):
            await zookeeper.set("/a", b"three", 0)
        with pytest.raises(NodeExists):
            await zookeeper.create("/a", b"")
        with pytest.raises(NoNode):
            await zookeeper.create("/b/c", b"")
        await zookeeper.create("/a/b", b"")
        assert await zookeeper.children("/a") == ["b"]
        with pytest.raises(NotEmpty):
            await zookeeper.delete("/a")
        with pytest.raises(NoNode):
            await zookeeper.get("/c")

    run(scenario())


def test_a_transaction_is_all_or_nothing(run, session):
    async def scenario():
        zookeeper = await session()
        await zookeeper.create("/a", b"")
        with pytest.raises(BadVersionError):
            await zookeeper.multi([Create("/b", b""), SetData("/a", b"x"), Check("/a", 0)])
        with pytest.raises(NoNode):
            await zookeeper.get("/b")
        made = [Create("/b", b""), SetData("/a", b"x", 0), Check("/a", 1), Delete("/b")]
        assert await zookeeper.multi(made) == [0, 1, -1, -1]
        assert (await zookeeper.get("/a")).value == b"x"

    run(scenario())


def test_ephemeral_nodes_end_with_their_session_and_numbers_grow(run, session):
    async def scenario():
        owner, other = await session(), await session()
        await owner.create("/a", b"")
        path = await owner.create("/a/n-", b"", ephemeral=True, sequential=True)
        assert path == "/a/n-0000000000"
        assert (await other.get(path)).ephemeral_owner == owner.session_id
        await owner.close()
        assert await other.children("/a") == []
        assert await other.create("/a/n-", b"", sequential=True) == "/a/n-0000000001"

    run(scenario())


def test_a_cut_connection_keeps_the_session_and_watches_are_told_to_look_again(life, run, session):
    async def scenario():
        zookeeper = await session()
        states, events = [], []
        zookeeper.on_state(states.append)
        await zookeeper.create("/a", b"")
        await zookeeper.watch("/a", True, lambda *event: events.append(event))
        before = zookeeper.session_id
        cut(life, zookeeper)
        await until(lambda: zookeeper.state is SessionState.SUSPENDED)
        await zookeeper.create("/a/b", b"")
        assert zookeeper.session_id == before
        assert states == [SessionState.SUSPENDED, SessionState.CONNECTED]
        await until(lambda: len(events) == 2)
        assert events == [(EventType.RESYNC, "/a"), (EventType.CREATED, "/a/b")]

    run(scenario())


def test_a_change_under_way_when_the_connection_breaks_has_no_known_outcome(life, run, session):
    async def scenario():
        zookeeper = await session()
        changing = asyncio.ensure_future(zookeeper.create("/a", b""))
        reading = asyncio.ensure_future(zookeeper.children("/ledgers"))
        await asyncio.sleep(0)
        cut(life, zookeeper)
        with pytest.raises(ConnectionLoss):
            await changing
        assert await reading  # reads are repeated

    run(scenario())


def test_a_repeated_read_waits_for_the_next_connection(life, run, session):
    """Otherwise it would get the broken connection again and again, and nothing else would run."""

    async def scenario():
        zookeeper = await session()
        assert zookeeper._connection is not None
        zookeeper._connection.end(ConnectionLoss("broken"))
        assert await asyncio.wait_for(zookeeper.children("/ledgers"), 5)

    run(scenario())


def test_what_finds_too_many_waiting_fails_at_once_unless_it_must_know(
    life, run, session, monkeypatch
):
    async def scenario():
        zookeeper = await session()
        await zookeeper.create("/a", b"value")
        monkeypatch.setattr("managed_ledger.storage.zookeeper.client.MAX_WAITING", 0)
        cut(life, zookeeper)
        await until(lambda: zookeeper.state is SessionState.SUSPENDED)
        with pytest.raises(TooManyWaiting):
            await zookeeper.get("/a")
        with pytest.raises(TooManyWaiting):
            await zookeeper.set("/a", b"other")
        assert (await zookeeper.get("/a", insist=True)).value == b"value"

    run(scenario())


def test_a_session_that_zookeeper_forgot_is_expired(life, run, session):
    async def scenario():
        zookeeper = await session()
        life.tree.sessions.pop(zookeeper.session_id)
        cut(life, zookeeper)
        await until(lambda: zookeeper.state is SessionState.EXPIRED)
        with pytest.raises(SessionExpired):
            await zookeeper.get("/ledgers")
        await zookeeper.close()
        assert zookeeper.state is SessionState.CLOSED

    run(scenario())


def test_without_zookeeper_for_the_timeout_the_session_counts_as_expired(life, run, session):
    async def scenario():
        zookeeper = await session()
        life.zookeeper.crash(silently=True)
        waiting = asyncio.ensure_future(zookeeper.get("/ledgers"))
        started = asyncio.get_running_loop().time()
        with pytest.raises(SessionExpired):
            await waiting
        assert asyncio.get_running_loop().time() - started < 3 * TIMEOUT_MS / 1000

    run(scenario())


def test_waiting_for_a_first_connection_is_limited(life, run):
    async def scenario():
        zookeeper = ZooKeeper(f"127.0.0.1:{PORT + 1}", life.world.stream("nobody"), TIMEOUT_MS)
        with pytest.raises(ZooKeeperError, match="metadataStoreUrl"):
            await zookeeper.open(2.0)
        assert zookeeper.state is SessionState.CLOSED

    run(scenario())


@pytest.mark.parametrize("servers", ["", "host", "host:", ":1", "host:port", "a:1,,b:2"])
def test_a_list_of_servers_that_is_none_is_refused(servers, run):
    async def scenario():
        with pytest.raises(ValueError, match="host:port"):
            ZooKeeper(servers, None)

    run(scenario())
