"""An acknowledgement of very many messages in a transaction is parsed over several turns."""

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from pybroker.base.errors import ConsumerNotFound
from pybroker.server.consuming import on_acknowledge
from pybroker.transaction.pending_acks.records import PendingAck
from pybroker.wire import pulsar_api_pb2 as pb

A_TURN = 10


def naming(count: int, in_parts: bool) -> pb.CommandAck:
    kind = pb.CommandAck.Individual
    command = pb.CommandAck(consumer_id=0, ack_type=kind, txnid_least_bits=1)
    for entry_id in range(count):
        named = command.message_id.add(ledgerId=1, entryId=entry_id)
        if in_parts:
            named.ack_set.append(0b01)
    return command


class World:
    """A consumer's slot and its connection."""

    def __init__(self, known: int | None = 2) -> None:
        self.held: list[PendingAck] = []
        self.slot: Any = SimpleNamespace(
            topic=SimpleNamespace(
                message_count=self.message_count, known_message_count=lambda _: known
            ),
            subscription=SimpleNamespace(acknowledge_in_transaction=self.hold, name="s"),
            consumer=SimpleNamespace(consumer_id=0),
        )
        self.session: Any = SimpleNamespace(
            consumers={0: self.slot},
            requests=SimpleNamespace(answer_later=lambda *_: None),
            services=SimpleNamespace(
                coordinators=SimpleNamespace(joining=SimpleNamespace(are_any=False))
            ),
        )

    async def message_count(self, _: Any) -> int:
        return 2

    def hold(
        self, consumer: Any, txn_id: Any, acks: list[PendingAck], cumulative: bool, covered: Any
    ) -> None:
        assert not self.held, "all at once"
        self.held += acks


@pytest.mark.parametrize("in_parts", [False, True])
def test_no_turn_takes_more_than_its_share_apart(in_parts: bool) -> None:
    world, gathered, per_turn = World(), [0], [0]
    right = on_acknowledge.pending_ack

    async def pending_ack(*arguments: Any) -> PendingAck:
        gathered[0] += 1
        per_turn[-1] += 1
        return await right(*arguments)

    async def scenario() -> None:
        loop = asyncio.get_running_loop()

        def next_turn() -> None:
            per_turn.append(0)
            handles.append(loop.call_soon(next_turn))

        handles = [loop.call_soon(next_turn)]
        rest = on_acknowledge.ack(world.session, naming(100, in_parts))
        assert rest is not None
        await rest
        handles[-1].cancel()

    with (
        patch.object(on_acknowledge, "IDS_A_TURN", A_TURN),
        patch.object(on_acknowledge, "pending_ack", pending_ack),
    ):
        asyncio.run(scenario())
    assert [ack.position.entry_id for ack in world.held] == list(range(100))
    assert gathered == [100] and max(per_turn) == A_TURN


@pytest.mark.parametrize(
    ("count", "in_parts", "known", "at_once"),
    [
        (10, False, None, True),
        (11, False, None, False),
        (10, True, 2, True),
        (1, True, None, False),
        (2, True, on_acknowledge.BITS_A_TURN, False),
    ],
)
def test_few_are_held_at_once_unless_one_must_be_looked_up(
    count: int, in_parts: bool, known: int | None, at_once: bool
) -> None:
    world = World(known)
    with patch.object(on_acknowledge, "IDS_A_TURN", A_TURN):
        rest = on_acknowledge.ack(world.session, naming(count, in_parts))
    assert (rest is None) is at_once
    assert len(world.held) == (count if at_once else 0)
    if rest is not None:
        rest.close()


@pytest.mark.parametrize("stays", [True, False])
def test_a_consumer_that_has_gone_meanwhile_holds_nothing(stays: bool) -> None:
    """A seek in between changes what is acknowledged."""
    world = World(None)
    rest = on_acknowledge.ack(world.session, naming(1, True))
    assert rest is not None
    if stays:
        asyncio.run(rest)
    else:
        world.session.consumers.clear()
        with pytest.raises(ConsumerNotFound):
            asyncio.run(rest)
    assert bool(world.held) is stays
