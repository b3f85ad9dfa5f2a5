"""Transactions as scripts: steps, and what a reader from the beginning then sees.

begin t          open a transaction (on every topic and on the subscription `sub` of orders)
publish t x a    send message a to topic x in transaction t; t may be `-`: no transaction
ack t a          acknowledge message a of orders on `sub` in transaction t
commit t, abort t
crash            kill the process; the next one starts from what is durable
wait s           let s seconds pass
read x           visible messages of topic x, in order
left             messages of orders that `sub` has not acknowledged
"""

import asyncio

import pytest
from txn_world import ABORT, COMMIT, World, soon
from virtual_loop import run_virtually

from managed_ledger.position import Position
from pybroker.base.errors import PulsarError
from pybroker.base.names import TxnId
from pybroker.transaction.pending_acks.records import PendingAck

SCRIPTS = {
    "nothing shows before the commit": """
        begin t | publish t orders a | read orders ---- (nothing)
        commit t | read orders                     ---- a
    """,
    "all partitions show together": """
        begin t | publish t orders a | publish t copies b | read orders ---- (nothing)
        read copies                                                     ---- (nothing)
        commit t | read orders                                          ---- a
        read copies                                                     ---- b
    """,
    "an open transaction hides what is behind it": """
        publish - orders x | begin t | publish t orders a | publish - orders y
        read orders            ---- x
        abort t | read orders  ---- x y
    """,
    "interleaved transactions in log order": """
        begin s | begin t | publish s orders a | publish t orders b | publish s orders c
        commit t | read orders  ---- (nothing)
        abort s | read orders   ---- b
    """,
    "a crash keeps open what was open": """
        begin t | publish t orders a | crash | read orders ---- (nothing)
        publish t orders b | commit t | read orders        ---- a b
        crash | read orders                                ---- a b
    """,
    "a crash keeps hidden what was aborted": """
        begin t | publish t orders a | publish - orders x | abort t | crash | read orders ---- x
        crash | read orders                                                               ---- x
    """,
    "a crash after a snapshot": """
        begin s | begin t | publish s orders a | publish t orders b | wait 6
        publish s orders c | abort t | crash | read orders ---- (nothing)
        commit s | crash | read orders                     ---- a c
    """,
    "the end may be repeated, the opposite may not": """
        begin t | publish t orders a | commit t | commit t | crash | commit t
        abort t      ---- InvalidTxnStatus
        read orders  ---- a
    """,
    "a late message is refused": """
        begin t | publish t orders a | commit t
        publish t orders late                    ---- InvalidTxnStatus
        publish - orders x | read orders         ---- a x
        crash | read orders                      ---- a x
    """,
    "a transaction times out, also across a crash": """
        begin t | publish t orders a | publish - orders x | wait 40 | crash | wait 25
        read orders  ---- x
        commit t     ---- InvalidTxnStatus
    """,
    "input and output together": """
        publish - orders a | publish - orders b | begin t | ack t a | publish t copies A
        crash | left                            ---- a b
        commit t | left                         ---- b
        read copies                             ---- A
        crash | left                            ---- b
    """,
    "an abort gives the input back": """
        publish - orders a | begin t | ack t a | publish t copies A | begin u
        ack u a         ---- TransactionConflict
        abort t | left  ---- a
        ack u a | commit u | left ---- (nothing)
        read copies     ---- (nothing)
    """,
}


class Player:
    def __init__(self, world: World) -> None:
        self.world = world
        self.transactions: dict[str, TxnId | None] = {"-": None}
        self.positions: dict[str, Position] = {}

    async def play(self, line: str) -> str:
        said: list[str] = []
        for step in line.split("|"):
            verb, *words = step.split()
            try:
                said = await getattr(self, f"do_{verb}")(*words) or []
            except PulsarError as error:
                said = [type(error).__name__]
        return " ".join(said) or "(nothing)"

    def _id(self, name: str) -> TxnId:
        txn_id = self.transactions[name]
        assert txn_id is not None
        return txn_id

    async def do_begin(self, name: str) -> None:
        txn_id = await self.world.begin_on(*map(topic, ("orders", "copies")))
        await self.world.add_subscription(txn_id)
        self.transactions[name] = txn_id

    async def do_publish(self, name: str, local: str, payload: str) -> None:
        await self.world.cursor("sub")
        at = await self.world.send(self.transactions[name], payload, topic=topic(local))
        self.positions[payload] = at

    async def do_ack(self, name: str, payload: str) -> None:
        acks = await self.world.acks()
        await acks.acknowledge(self._id(name), [PendingAck(self.positions[payload])])

    async def do_commit(self, name: str) -> None:
        await self.world.end(self._id(name), COMMIT)

    async def do_abort(self, name: str) -> None:
        await self.world.end(self._id(name), ABORT)

    async def do_crash(self) -> None:
        self.world = await self.world.crashed()
        await self.world.acks()
        await soon()

    async def do_wait(self, seconds: str) -> None:
        await asyncio.sleep(int(seconds))

    async def do_read(self, local: str) -> list[str]:
        return await self.world.read(topic(local))

    async def do_left(self) -> list[str]:
        cursor = await self.world.cursor("sub")
        visible = await self.world.read()
        return [text for text in visible if not cursor.is_deleted(self.positions[text])]


def topic(local: str) -> str:
    return f"persistent://public/default/{local}"


@pytest.mark.parametrize("name", SCRIPTS)
def test_script(name: str) -> None:
    async def life() -> None:
        player = Player(await World().start())
        for line in SCRIPTS[name].strip().splitlines():
            steps, _, expected = line.partition("----")
            said = await player.play(steps)
            if expected:
                assert said == expected.strip(), f"{name}: {steps.strip()}"

    run_virtually(life())
