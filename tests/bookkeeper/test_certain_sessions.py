"""How long a ZooKeeper session is certain: from when the latest answered request was sent."""

import asyncio
import random
from types import SimpleNamespace
from unittest.mock import Mock

from managed_ledger.storage.zookeeper.client import ZooKeeper
from managed_ledger.storage.zookeeper.connection import SessionGrant, ZooKeeperConnection
from managed_ledger.storage.zookeeper.jute import JuteWriter
from managed_ledger.storage.zookeeper.operations import OpCode
from managed_ledger.storage.zookeeper.session import SessionState

PING_XID = -2


def answer(xid: int) -> bytes:
    return JuteWriter().i32(xid).i64(0).i32(0).frame()


def test_an_answer_counts_from_when_it_was_asked_for() -> None:
    """The answer may have waited while this process was stopped."""

    async def scenario() -> None:
        connection = ZooKeeperConnection(SessionGrant(1, b"", 3000), Mock(), Mock())
        clock = SimpleNamespace(now=10.0)
        connection._loop = Mock(time=lambda: clock.now)
        connection._transport, connection._asked_s = Mock(), 0.0
        connection.ready.set_result(None)
        assert connection.alive_s < 0
        connection.request(OpCode.SYNC, b"", "/")
        clock.now = 60.0
        connection.data_received(answer(1))
        assert (connection.heard_s, connection.alive_s) == (60.0, 10.0)
        connection._check()  # a ping
        clock.now = 61.0
        connection._check()
        clock.now = 61.5
        connection.data_received(answer(PING_XID))
        assert connection.alive_s == 60.0, "the older of two pings, which may be the one answered"
        clock.now = 62.0
        connection.data_received(answer(PING_XID))
        assert connection.alive_s == 60.0

    asyncio.run(scenario())


def test_a_session_is_certain_for_two_thirds_of_its_timeout() -> None:
    async def scenario() -> None:
        zookeeper = ZooKeeper("localhost:2181", random.Random(0), 3000)
        now_s = asyncio.get_running_loop().time()
        for ago_s, expected in ((0.0, True), (1.9, True), (2.1, False)):
            zookeeper._state = SessionState.CONNECTED
            zookeeper._connection = Mock(alive_s=now_s - ago_s)
            assert zookeeper.is_certain is expected
            zookeeper._state = SessionState.SUSPENDED
            assert not zookeeper.is_certain

    asyncio.run(scenario())
