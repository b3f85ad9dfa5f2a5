"""Ledgers that begin while too few bookies are available, and what their metadata promise."""

import logging

import pytest
from sim_ledger import LIMITS, SESSION_MS, LedgerLife
from sim_zookeeper import ADDRESS

from managed_ledger.errors import CorruptStorage
from managed_ledger.storage.bookkeeper.client import BookKeeper
from managed_ledger.storage.bookkeeper.copies import is_missing, with_copies
from managed_ledger.storage.bookkeeper.metadata_record import LedgerMetadata, Segment
from managed_ledger.storage.bookkeeper.quorums import Quorums
from managed_ledger.storage.bookkeeper.reader import LedgerReader
from managed_ledger.storage.zookeeper.client import ZooKeeper
from pybroker.simulation.world import SimulatedClock

WANTED = Quorums(3, 3, 2)
LISTED = "/ledgers/underreplication/ledgers"


class Cluster:
    """Three bookies, of which one is away from the beginning."""

    def __init__(self):
        self.life = LedgerLife(0)
        self.world = self.life.world
        self.world.sleep(5)
        assert len(self.life.disks) == 3
        self.node = self.life.node("broker")
        self.away = next(iter(self.life.disks))
        self.life.crash_bookie(self.away, False, 60)
        self.world.sleep(20)

    def run(self, work):
        async def connected():
            rng = self.world.stream("broker")
            zookeeper = ZooKeeper(ADDRESS, rng, SESSION_MS)
            await zookeeper.open(600)
            clock = SimulatedClock(self.world)
            client = BookKeeper(zookeeper, clock, rng, WANTED, limits=LIMITS)
            await client.open()
            try:
                return await work(client)
            finally:
                await client.close()
                await zookeeper.close()

        return self.world.call(self.node, connected())


@pytest.fixture
def cluster():
    cluster = Cluster()
    yield cluster
    cluster.world.close()


async def written(client):
    writer = await client.create()
    assert writer.lacks_copies
    for number in range(5):
        writer.append(b"%d" % number, None if number < 4 else lambda error: None)
    return writer


async def read(client, ledger_id, metadata):
    reader, found = LedgerReader(ledger_id, metadata, client.bookies), []
    while len(found) <= metadata.last_entry_id:
        some = await reader.read(len(found), metadata.last_entry_id, 1000)
        found += [body.payload for body in some]
    return found


@pytest.mark.parametrize("dies", [False, True])
def test_a_closed_ledger_promises_the_copies_that_are_wanted(cluster, dies, caplog):
    cluster.life.tree.make(LISTED)

    async def scenario(client):
        writer = await written(client)
        if dies:
            while writer.last_confirmed < 4:
                await client.bookies.look_at(client.bookies.available(), writer.ledger_id)
            writer.abandon()
            closed = await client.recover(writer.ledger_id)
        else:
            closed = await writer.close()
        assert closed.quorums == WANTED
        (segment,) = closed.segments
        assert [is_missing(each) for each in segment.bookies] == [False, False, True]
        assert await read(client, writer.ledger_id, closed) == [b"%d" % n for n in range(5)]
        return writer.ledger_id, segment.bookies[-1]

    with caplog.at_level(logging.WARNING):
        ledger_id, place = cluster.run(scenario)
    assert "new ledgers have 2 copies of each entry instead of 3" in caplog.text
    listed = cluster.life.tree.nodes[f"{LISTED}/0000/0000/0000/{ledger_id:04x}/urL{ledger_id:010}"]
    assert listed.value == f'replica: "{place}"\n'.encode()


def test_nothing_is_listed_where_auto_recovery_never_ran(cluster):
    async def scenario(client):
        return (await (await written(client)).close()).quorums

    assert cluster.run(scenario) == WANTED
    assert not any(path.startswith("/ledgers/underreplication") for path in cluster.life.tree.nodes)


def test_an_entry_that_no_bookie_has_is_lost_for_certain(cluster):
    async def scenario(client):
        writer = await written(client)
        closed = await writer.close()
        with pytest.raises(CorruptStorage, match="no bookie has entry 7"):
            await LedgerReader(writer.ledger_id, closed, client.bookies)._read_one(7)

    cluster.run(scenario)


@pytest.mark.parametrize(
    ("written", "wanted", "promised"),
    [
        ((2, 2, 2), (5, 3, 2), (3, 3, 2)),
        ((1, 1, 1), (3, 3, 1), (3, 3, 1)),
        ((2, 2, 2), (3, 2, 2), (2, 2, 2)),  # it was only less wide
        ((3, 2, 2), (4, 3, 2), (3, 2, 2)),  # a striped ledger cannot be changed
        ((3, 3, 2), (3, 3, 2), (3, 3, 2)),
    ],
)
def test_only_missing_copies_of_a_ledger_that_is_not_striped_get_places(written, wanted, promised):
    bookies = tuple("abc"[: written[0]])
    segments = Segment(0, bookies), Segment(3, bookies[::-1])
    ledger = LedgerMetadata(Quorums(*written), segments).closed(8, 9)
    found = with_copies(ledger, Quorums(*wanted))
    assert found.quorums == Quorums(*promised)
    assert all(len(set(each.bookies)) == promised[0] for each in found.segments)
    empty = LedgerMetadata(Quorums(*written), segments[:1]).closed(-1, 0)
    assert with_copies(empty, Quorums(*wanted)) is empty
