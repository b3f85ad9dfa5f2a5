"""Long answers are described, and written as JSON, over several turns of the loop."""

import asyncio
import json
from typing import Any
from unittest.mock import Mock, patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybroker.admin import long_json
from pybroker.admin.long_json import json_of_answer, pieces_of
from pybroker.admin.routes.transaction import TransactionRoutes
from pybroker.base import runtime
from pybroker.base.names import TxnId
from pybroker.base.runtime import Pace
from pybroker.transaction.coordinator.live_transaction import TransactionMetadata

PLAIN = st.none() | st.booleans() | st.integers() | st.text(max_size=3)
VALUES = st.recursive(
    PLAIN,
    lambda parts: st.lists(parts, max_size=6) | st.dictionaries(st.text(max_size=3), parts),
    max_leaves=40,
)


@pytest.mark.slow
@given(VALUES)
def test_it_is_the_same_json_in_pieces_as_in_one(value: Any) -> None:
    with patch.object(long_json, "_MANY", 1):
        assert json.loads("".join(pieces_of(value, 3))) == value


def test_a_short_answer_is_one_piece() -> None:
    value = {"topics": ["a", "b"], "count": 2}
    assert list(pieces_of(value, 3)) == ['{"topics":["a","b"],"count":2}']


@pytest.mark.parametrize("wrap", [lambda rows: rows, lambda rows: {"of": {"all": rows}}])
def test_no_piece_has_more_than_one_of_many_rows(wrap: Any) -> None:
    rows = [{"row": number} for number in range(1000)]
    assert max(piece.count("row") for piece in pieces_of(wrap(rows), 3)) == 1


def test_others_have_the_loop_while_a_long_answer_is_written() -> None:
    async def turns_meanwhile() -> int:
        writing = asyncio.create_task(json_of_answer(list(range(1000))))
        turns = 0
        while not writing.done():
            turns += 1
            await asyncio.sleep(0)
        assert json.loads(await writing) == list(range(1000))
        return turns

    with patch.object(long_json, "_PIECES_A_TURN", 10):
        assert asyncio.run(turns_meanwhile()) >= 100


@pytest.mark.parametrize("value", [float("nan"), [0.0] * 100 + [float("inf")], "\ud800"])
def test_what_json_cannot_say_is_refused(value: Any) -> None:
    with pytest.raises(ValueError):
        asyncio.run(json_of_answer(value))


def test_the_participants_of_a_transaction_are_described_some_in_a_turn() -> None:
    asked: list[str] = []
    per_turn: list[int] = []

    async def get(topic: str) -> None:
        asked.append(topic)

    async def own_turn() -> None:
        per_turn.append(len(asked) - sum(per_turn))

    async def described() -> Any:
        topics = [f"topic-{number}" for number in range(100)]
        transaction = TransactionMetadata(TxnId(0, 1), 1000, 0, None)
        transaction.partitions = dict.fromkeys(topics)
        transaction.subscriptions = {(topic, "sub"): None for topic in topics}
        routes = TransactionRoutes(Mock())
        routes._topics = Mock(get=get)
        with patch.object(runtime, "own_turn", own_turn):
            return await routes._described(transaction, Pace(10))

    found = asyncio.run(described())
    assert len(found["producedPartitions"]) == len(found["ackedPartitions"]) == 100
    assert per_turn == [10] * 20
