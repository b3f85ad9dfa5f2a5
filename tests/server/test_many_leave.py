"""A connection with very many consumers and producers is lost: they leave some in a turn."""

import asyncio
from collections import deque
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from test_session_life import Connection, run

from pybroker.server import session

A_TURN = 10


class Everybody:
    """Counts who leaves in each turn of the loop."""

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
