"""Sessions of transactional ids fenced by other brokers: this broker's part of older sessions."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast
from unittest.mock import Mock, patch

import pytest
from txn_sessions_world import Connection, claim, epoch
from txn_world import World, in_world

from pybroker.base.errors import ProducerFenced, ServiceNotReady
from pybroker.server.connections.connection import Connection as ServedConnection
from pybroker.server.publishing.sends import Sends
from pybroker.server.transactions import fencing
from pybroker.server.transactions.transactional_sessions import TransactionalSessions
from pybroker.transaction.coordinator.sessions.transactional_ids import (
    Overtaken,
    SessionRef,
    TransactionalIds,
)


class AloneInTheCluster:
    """Implements RemoteFencing. The tests write the other brokers' records themselves."""

    def __init__(self) -> None:
        self.is_certain = True

    async def caught_up(self) -> None: ...
    async def all_can_fence(self) -> None: ...

    async def fence(
        self,
        newest: SessionRef,
        here: Callable[[SessionRef], Awaitable[tuple[int, set[int]]]],
        waits_for: Callable[[str], None],
    ) -> int:
        return (await here(newest))[0]


class Shared:
    """This broker's sessions, and the transactional ids as another broker knows them."""

    def __init__(self, world: World) -> None:
        ids = world.coordinators.ids
        self.ids, self.remote = ids, AloneInTheCluster()
        self.others = TransactionalIds(ids._metadata, ids._clock, world.config)
        for each in (ids, self.others):
            each.load()
        world.coordinators.remote_fencing = self.remote
        self.sessions = TransactionalSessions(world.coordinators)
        self._may_write = asyncio.Event()

    def recording(self, connection: Connection, name: str) -> "asyncio.Future[Any]":
        """Joins with a newer session. Its record is written when `overtaken` is called."""

        async def begin(*_: object) -> SessionRef:
            await self._may_write.wait()
            raise Overtaken("another broker was first")

        writing = patch.object(self.ids, "begin", begin)
        writing.start()
        joining = asyncio.ensure_future(self.sessions.join(connection, claim(name)))
        self._stop_writing = writing.stop
        return joining

    def overtaken(self) -> None:
        self._stop_writing()
        self._may_write.set()


@in_world
async def test_a_session_that_is_being_recorded_does_not_hide_the_older_one(world: World) -> None:
    """This broker reports that older sessions left nothing, and another one grants the third."""
    shared = Shared(world)
    first = await shared.sessions.join(Connection(), claim("first"))
    joining = shared.recording(Connection(), "second")
    await asyncio.sleep(0.1)
    await shared.others.begin(claim().id, claim("third").session)
    await shared.sessions.fence(claim().id, 2)
    assert first.is_fenced
    shared.overtaken()
    assert epoch(await joining) == 3
    await shared.sessions.close()


@in_world
async def test_an_older_session_is_let_go_while_a_newer_one_is_being_recorded(
    world: World,
) -> None:
    shared = Shared(world)
    first = await shared.sessions.join(Connection(), claim("first"))
    joining = shared.recording(Connection(), "second")
    await asyncio.sleep(0.1)
    shared.remote.is_certain = False
    shared.sessions.release_all()
    shared.remote.is_certain = True
    assert not shared.sessions.may_publish(first)
    shared.overtaken()
    assert epoch(await joining) == 2
    await shared.sessions.close()


@in_world
async def test_a_connection_whose_session_was_let_go_begins_transactions_of_no_session(
    world: World,
) -> None:
    """Its client may have no producer left there that would reconnect."""
    shared, connection = Shared(world), Connection()
    await shared.sessions.join(connection, claim("first"))
    shared.sessions.release_all()
    assert fencing.session_of_new(cast(ServedConnection, connection), None) is None
    again = await shared.sessions.join(connection, claim("first"))
    assert connection.sessions == {claim().id: again}
    await shared.sessions.close()


@in_world
async def test_a_producer_whose_session_was_let_go_is_told_which(world: World) -> None:
    shared, connection, told = Shared(world), Connection(), list[str]()
    connection.close_producer = lambda producer, reason: told.append(reason)  # type: ignore[method-assign]
    connection.producers[1] = Sends(Mock(), Mock(), Mock(properties={}))
    connection.producers[1].transactional_session = await shared.sessions.join(
        connection, claim("first")
    )
    shared.sessions.release_all()
    await asyncio.sleep(0.1)
    (reason,) = told
    assert reason.startswith("Transactional id 'x': this broker is stopping, or has no connection")
    await shared.sessions.close()


@in_world
async def test_a_client_of_an_older_session_hears_that_another_broker_has_fenced_it(
    world: World,
) -> None:
    shared, connection = Shared(world), Connection()
    await shared.sessions.join(connection, claim("first"))
    await shared.others.begin(claim().id, claim("second").session)
    assert shared.sessions.granted(connection, claim("first")) is None
    with pytest.raises(ProducerFenced):
        await shared.sessions.join(connection, claim("first"))
    shared.remote.is_certain = False
    with pytest.raises(ServiceNotReady, match="no connection to ZooKeeper"):
        await shared.sessions.join(Connection(), claim("third"))
    await shared.sessions.close()
