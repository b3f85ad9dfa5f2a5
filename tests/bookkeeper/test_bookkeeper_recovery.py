"""Recovery of a ledger while no bookies can replace those that are down."""

import asyncio
import logging
from collections.abc import Iterator
from unittest.mock import patch

import pytest
from sim_ledger import LedgerLife, Told, until
from sim_machines import FIRST_PORT, Machines

from managed_ledger.storage.bookkeeper.errors import RecoveryFailed
from managed_ledger.storage.bookkeeper.protocol import LAST_CONFIRMED, Response
from managed_ledger.storage.bookkeeper.quorums import Quorums
from pybroker.simulation.node import Node
from pybroker.simulation.world import World

BOOKIES = 3
ENTRIES = [b"zero", b"one", b"two"]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Silence the warnings: these tests lose connections on purpose."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


class ThreeBookies(LedgerLife):
    """Three bookies, and a ledger whose writer died after some confirmed entries."""

    def __init__(self, quorums: Quorums) -> None:
        self.quorums = quorums
        self.told = Told()
        Machines.__init__(self, World("recovery"), BOOKIES)

    def write_and_die(self) -> None:
        node = self.node("writer")
        self.world.call(node, self._write_some(node))
        node.crash()

    async def _write_some(self, node: Node) -> None:
        client = await self._connected(node)
        await until(lambda: len(client.bookies.registered) == BOOKIES)
        writer = await client.create()
        self.told.ledger_id = writer.ledger_id
        for payload in ENTRIES:
            confirmed = asyncio.get_running_loop().create_future()
            writer.append(payload, confirmed.set_result)
            assert await confirmed is None

    async def write_while_a_bookie_is_away(self, node: Node) -> str:
        """Returns its successor, in the ledger's last ensemble."""
        client = await self._connected(node)
        await until(lambda: len(client.bookies.registered) == BOOKIES)
        writer = await client.create()
        self.told.ledger_id = writer.ledger_id
        before = writer.metadata.segments[-1].bookies
        for payload in ENTRIES:
            confirmed = asyncio.get_running_loop().create_future()
            writer.append(payload, confirmed.set_result)
            assert await confirmed is None
            self.bookies[_port(before[0])].crash()
        (successor,) = set(writer.metadata.segments[-1].bookies) - set(before)
        self._start_bookie(_port(before[0]))
        return successor

    async def recovered(self, node: Node) -> list[bytes]:
        client = await self._connected(node)
        metadata = await client.recover(self.told.ledger_id)
        return await self.read_all(client, metadata)

    async def recovered_with_a_damaged_last_entry(self, node: Node, at: int) -> list[bytes]:
        """On the bookie `at`, whose answer comes after the others."""
        client = await self._connected(node)
        read = client.bookies.read

        async def damaged_read(
            bookie: str, ledger_id: int, entry_id: int, key: bytes | None = None
        ) -> Response:
            answer = await read(bookie, ledger_id, entry_id, key)
            if _port(bookie) == at and entry_id in (LAST_CONFIRMED, len(ENTRIES) - 1):
                await asyncio.sleep(5.0)
                return answer._replace(body=answer.body[:-1] + b"?")
            return answer

        with patch.object(client.bookies, "read", damaged_read):
            metadata = await client.recover(self.told.ledger_id)
        return await self.read_all(client, metadata)


def _port(bookie: str) -> int:
    return int(bookie.rpartition(":")[2])


@pytest.fixture
def three() -> Iterator[ThreeBookies]:
    life = ThreeBookies(Quorums(3, 3, 2))
    life.write_and_die()
    yield life
    life.world.close()


def test_a_ledger_is_recovered_by_an_ack_quorum_if_no_bookie_can_replace_the_one_that_is_down(
    three,
):
    three.bookies[FIRST_PORT].crash()
    heir = three.node("heir")
    assert three.world.call(heir, three.recovered(heir)) == ENTRIES


def test_less_than_an_ack_quorum_does_not_recover_a_ledger(three):
    """The two bookies left suffice for fencing, but only one of them accepts writes."""
    three.bookies[FIRST_PORT].crash()
    three.disks[FIRST_PORT + 1].is_full = True
    heir = three.node("heir")
    with pytest.raises(RecoveryFailed, match="is on 1 bookies, but must be on 2"):
        three.world.call(heir, three.recovered(heir))


def test_a_bookie_whose_last_entry_is_damaged_is_fenced_whenever_it_answers(
    three: ThreeBookies,
) -> None:
    three.bookies[FIRST_PORT].crash()
    heir, at = three.node("heir"), FIRST_PORT + 1
    assert three.world.call(heir, three.recovered_with_a_damaged_last_entry(heir, at)) == ENTRIES


def test_a_broker_with_another_password_recovers_a_ledger_with_that_of_the_ledger(three):
    heir = three.node("heir")

    async def written_and_recovered():
        client = await three._connected(heir)
        client._password = b"of this client"
        writer = await client.create()
        metadata = await client.recover(three.told.ledger_id)
        assert writer.metadata.password == b"of this client" != metadata.password
        return await three.read_all(client, metadata)

    assert three.world.call(heir, written_and_recovered()) == ENTRIES


def test_a_bookie_that_was_replaced_earlier_replaces_one_that_is_down_if_there_is_no_other() -> (
    None
):
    life = ThreeBookies(Quorums(2, 2, 2))
    node = life.node("writer")
    successor = life.world.call(node, life.write_while_a_bookie_is_away(node))
    node.crash()
    life.bookies[_port(successor)].crash()
    life.world.sleep(5.0)  # until ZooKeeper has noticed
    heir = life.node("heir")
    assert life.world.call(heir, life.recovered(heir)) == ENTRIES
    life.world.close()
