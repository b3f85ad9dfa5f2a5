"""An acknowledgement of very many messages in a transaction is parsed over several turns."""

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from pybroker.server import on_acknowledge
from pybroker.transaction.pending_acks.records import PendingAck
from pybroker.wire import pulsar_api_pb2 as pb

A_TURN = 10


def naming(count: int, in_parts: bool) -> pb.CommandAck:
    command = pb.CommandAck(ack_type=pb.CommandAck.Individual, txnid_least_bits=1)
    for entry_id in range(count):
        named = command.message_id.add(ledgerId=1, entryId=entry_id)
        if in_parts:
            named.ack_set.append(0b01)
    return command


class Subscription:
    def __init__(self) -> None:
        self.held: list[PendingAck] = []

    def acknowledge_in_transaction(
        self, consumer: Any, txn_id: Any, acks: list[PendingAck], cumulative: bool, covered: Any
    ) -> Any:
        assert not self.held, "all at once"
        self.held += acks
        return asyncio.sleep(0)


@pytest.mark.parametrize("in_parts", [False, True])
def test_no_turn_takes_more_than_its_share_apart(in_parts: bool) -> None:
    subscription, gathered, per_turn = Subscription(), [0], [0]

    async def message_count(_: Any) -> int:
        return 2

    right = on_acknowledge.pending_ack

    async def pending_ack(*arguments: Any) -> PendingAck:
        gathered[0] += 1
        per_turn[-1] += 1
        return await right(*arguments)

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        slot: Any = SimpleNamespace(
            topic=SimpleNamespace(message_count=message_count),
            subscription=subscription,
            consumer=None,
        )

        def next_turn() -> None:
            per_turn.append(0)
            handles.append(loop.call_soon(next_turn))

        handles = [loop.call_soon(next_turn)]
        await on_acknowledge._ack_in_turns(slot, naming(100, in_parts))
        handles[-1].cancel()

    with (
        patch.object(on_acknowledge, "IDS_A_TURN", A_TURN),
        patch.object(on_acknowledge, "pending_ack", pending_ack),
    ):
        asyncio.run(scenario())
    assert [ack.position.entry_id for ack in subscription.held] == list(range(100))
    assert gathered == [100] and max(per_turn) == A_TURN


@pytest.mark.parametrize(
    ("count", "in_parts", "takes_turns"), [(10, False, False), (11, False, True), (1, True, True)]
)
def test_few_whole_ones_are_held_at_once(count: int, in_parts: bool, takes_turns: bool) -> None:
    with patch.object(on_acknowledge, "IDS_A_TURN", A_TURN):
        assert on_acknowledge._takes_turns(naming(count, in_parts)) is takes_turns
