"""A lost connection removes its consumers and producers.

Very many are removed over several turns. One that is just being added is removed, too.
"""

import asyncio
from collections import deque
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import topics_world
from test_session_life import CONNECT, Connection, run
from virtual_loop import LoopClock

from pybroker.server.connections import session
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.frames import encode_frame

A_TURN = 10


class Everybody:
    """Counts the consumers and producers removed in each turn of the loop."""

    def __init__(self) -> None:
        self.left: list[int] = []
        self.per_turn = [0]
        self.turns = asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self.per_turn.append(0)
        self.turns = asyncio.get_running_loop().call_soon(self._next_turn)

    def leaves(self, number: int) -> None:
        self.left.append(number)
        self.per_turn[-1] += 1

    def consumer(self, number: int) -> Any:
        subscription = SimpleNamespace(remove_consumer=self.leaves)
        return SimpleNamespace(subscription=subscription, consumer=number)

    def producer(self, number: int) -> Any:
        topic = SimpleNamespace(
            tasks=SimpleNamespace(start=lambda work, name: self.leaves(work)),
            producers=SimpleNamespace(remove=lambda producer: producer),
        )
        return SimpleNamespace(topic=topic, producer=number, forget_held=deque().clear)


@pytest.mark.parametrize("count", [3, 50])
def test_no_turn_lets_go_of_more_than_its_share(count: int) -> None:
    async def scenario() -> None:
        connection, everybody = Connection(), Everybody()
        for number in range(count):
            connection.session.consumers[number] = everybody.consumer(number)
            connection.session.producers[number] = everybody.producer(count + number)
        connection.session.connection_lost(None)
        assert connection.session.ended.done() is (2 * count < A_TURN)
        await connection.session.ended
        everybody.turns.cancel()
        assert everybody.left == list(range(2 * count))
        assert max(everybody.per_turn) == min(2 * count, A_TURN)
        assert not connection.session.consumers and not connection.session.producers

    with patch.object(session, "LEAVING_A_TURN", A_TURN):
        run(scenario)


def test_a_consumer_whose_subscription_is_being_created_stays_nowhere() -> None:
    async def scenario(world: topics_world.World) -> None:
        topic = await world.topic()
        created, create = asyncio.Event(), topic.subscription

        async def slowly(*arguments: Any, **named: Any) -> Any:
            await created.wait()
            return await create(*arguments, **named)

        connection = Connection(world.topics)
        connection.session.services = replace(connection.session.services, clock=LoopClock())
        subscribe = pb.CommandSubscribe(
            topic=str(topic.name), subscription="s", consumer_id=1, request_id=1, subType=0
        )
        command = pb.BaseCommand(type=pb.BaseCommand.SUBSCRIBE, subscribe=subscribe)
        with patch.object(type(topic), "subscription", side_effect=slowly):
            connection.receives(CONNECT + encode_frame(command))
            await asyncio.sleep(1)
            connection.session.connection_lost(None)
            created.set()
            await asyncio.sleep(1)
        assert not connection.session.consumers
        assert not topic.subscriptions["s"].consumers

    topics_world.run(scenario)
