"""Bookies with ids of their own: their addresses are those that they register."""

import pytest
from sim_bookie import endpoint
from sim_ledger import LedgerLife
from simulated_storage import make_backend, process, run  # noqa: F401

from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.position import LATEST
from managed_ledger.storage.bookkeeper.errors import BookieFailed
from managed_ledger.storage.bookkeeper.registration import registered_address
from pybroker.simulation.world import SimulatedClock

REGISTERED = endpoint("0.0.0.0", 8080, b"http") + endpoint("10.0.0.123", 3181)


@pytest.fixture
def life():
    life = LedgerLife(0)
    yield life
    life.world.close()


def name_bookies(life):
    for number, (port, disk) in enumerate(life.disks.items()):
        disk.bookie_id = f"bk-{number}"
        life.crash_bookie(port, False, 0.1)
    life.world.sleep(10)


def test_entries_are_stored_and_read_again_where_bookies_have_moved(
    life,
    run,  # noqa: F811
    make_backend,  # noqa: F811
):
    name_bookies(life)

    async def stored():
        backend = make_backend()
        await backend.open()
        factory = ManagedLedgerFactory(backend, SimulatedClock(life.world))
        ledger = await factory.open("a/b/c/d")
        for number in range(10):
            await ledger.append_one(b"%d" % number)
        await factory.close()
        await backend.close()

    async def read_again():
        backend = make_backend()
        await backend.open()
        factory = ManagedLedgerFactory(backend, SimulatedClock(life.world))
        ledger = await factory.open("a/b/c/d")
        found = await ledger.read(ledger.first_position, LATEST, 100, 1 << 20)
        await ledger.append_one(b"10")
        await factory.close()
        await backend.close()
        return found.entries

    run(stored())
    moved = {port + 100: disk for port, disk in life.disks.items()}
    for node in life.bookies.values():
        node.crash()
    life.disks, life.bookies = moved, {}
    for port in moved:
        life._start_bookie(port)
    life.world.sleep(10)
    assert run(read_again()) == [b"%d" % number for number in range(10)]


def test_a_bookie_that_takes_no_writes_is_found_too(life, run, make_backend):  # noqa: F811
    async def scenario():
        backend = make_backend()
        await backend.open()
        client = backend._client
        node = endpoint("10.0.0.9", 7001)
        await client.store.zookeeper.create("/ledgers/available/readonly/old-1", node)
        assert await client.bookies._address("old-1") == ("10.0.0.9", 7001)
        assert await client.bookies._address("10.0.0.1:3181") == ("10.0.0.1", 3181)
        with pytest.raises(BookieFailed, match="it is not registered"):
            await client.bookies._address("old-2")
        await backend.close()

    run(scenario())


def test_the_endpoint_of_the_bookies_own_protocol_counts():
    assert registered_address(REGISTERED) == ("10.0.0.123", 3181)
    for nothing in (b"", b"\x00", b"{}", REGISTERED[:50]):
        assert registered_address(nothing) is None
