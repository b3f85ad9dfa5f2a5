"""Real bookies and ZooKeeper that die, hang and come back."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
from bookkeeper_client import append, appending, client_of, payloads_of
from servers import Cluster

from managed_ledger.storage.bookkeeper.bookies import BookieLimits
from managed_ledger.storage.bookkeeper.client import BookKeeper
from managed_ledger.storage.bookkeeper.errors import LedgerFenced
from managed_ledger.storage.bookkeeper.quorums import Quorums
from managed_ledger.storage.bookkeeper.writer import LedgerWriter

pytestmark = [pytest.mark.slow, pytest.mark.java]

LIMITS = BookieLimits(add_timeout_s=2.0, read_timeout_s=2.0, quarantine_s=3.0)
PATIENCE_S = 60
PAYLOADS = [b"%d" % number for number in range(100)]


def position(cluster: Cluster, writer: LedgerWriter, place: int) -> int:
    """The number of the bookie at this position of the ensemble."""
    names = [f"127.0.0.1:{bookie.port}" for bookie in cluster.bookies]
    return names.index(writer.metadata.segments[-1].bookies[place])


async def registered(client: BookKeeper, count: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while len(client.bookies.available()) != count:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


def while_writing(cluster: Cluster, happens: Callable[[int], None]) -> None:
    """Append 2,000 entries while something happens to a bookie; all are confirmed and read back."""

    async def scenario() -> None:
        address = cluster.zookeeper_address
        async with client_of(address, Quorums(2, 2, 2), LIMITS) as client:
            await registered(client, 3)
            writer = await client.create()
            payloads = [b"%d" % number for number in range(2000)]
            outcomes = appending(writer, payloads[:500])
            await outcomes[10]
            await asyncio.to_thread(happens, position(cluster, writer, 1))
            for first in range(500, 2000, 100):
                outcomes += appending(writer, payloads[first : first + 100])
                await outcomes[-1]
            await asyncio.gather(*outcomes)
            assert len(writer.metadata.segments) == 2
        async with client_of(address, Quorums(2, 2, 2), LIMITS) as other:
            metadata = await other.recover(writer.ledger_id)
            assert await payloads_of(other, writer.ledger_id, metadata) == payloads

    asyncio.run(scenario())


def test_a_bookie_that_is_killed_is_replaced_and_nothing_is_lost(cluster):
    killed = []

    def kill(number: int) -> None:
        killed.append(cluster.bookies[number])
        cluster.bookies[number].kill()

    while_writing(cluster, kill)
    cluster.start_again(killed[0])


def test_a_bookie_that_hangs_is_replaced_and_nothing_is_lost(cluster):
    frozen = []

    def freeze(number: int) -> None:
        frozen.append(cluster.bookies[number])
        cluster.bookies[number].freeze()

    try:
        while_writing(cluster, freeze)
    finally:
        frozen[0].thaw()


def test_a_ledger_that_auto_recovery_heals_while_it_is_written_is_not_fenced():
    # On servers of its own: auto-recovery tries one ledger after the other, and pauses after each
    # that needs all three bookies.
    with Cluster() as cluster:
        asyncio.run(_is_healed_while_it_is_written(cluster))


async def _is_healed_while_it_is_written(cluster: Cluster) -> None:
    limits = replace(LIMITS, quarantine_s=0.1)
    async with client_of(cluster.zookeeper_address, Quorums(2, 2, 2), limits) as client:
        await registered(client, 3)
        writer = await client.create()
        await append(writer, *PAYLOADS)
        await asyncio.to_thread(cluster.bookies[position(cluster, writer, 1)].kill)
        await append(writer, b"on another")
        # Auto-recovery fences a ledger whose last segment has lost a bookie. So it starts when the
        # writer has replaced the bookie and ZooKeeper has forgotten it.
        await registered(client, 2)
        auto_recovery = cluster.start_auto_recovery()
        try:
            async with asyncio.timeout(PATIENCE_S):
                while (await client.store.get(writer.ledger_id)).version < 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
        except TimeoutError:
            pytest.fail(auto_recovery.log)
        await append(writer, b"still")
        closed = await writer.close()
        healed, newest = closed.segments
        assert healed.bookies == newest.bookies
        found = await payloads_of(client, writer.ledger_id, closed)
        assert found == [*PAYLOADS, b"on another", b"still"]


def test_recovery_fences_a_writer_that_lives_on(cluster):
    async def scenario() -> None:
        address = cluster.zookeeper_address
        async with (
            client_of(address, Quorums(3, 3, 2), LIMITS) as zombie,
            client_of(address, Quorums(3, 3, 2), LIMITS, seed=2) as heir,
        ):
            await registered(zombie, 3)
            for _ in range(10):
                writer = await zombie.create()
                await append(writer, b"first")
                late = appending(writer, [b"%d" % number for number in range(100)])
                metadata = await heir.recover(writer.ledger_id)
                late += appending(writer, [b"too late"])
                outcomes = await asyncio.gather(*late, return_exceptions=True)
                confirmed = sum(outcome is None for outcome in outcomes)
                assert metadata.last_entry_id >= confirmed
                assert isinstance(outcomes[-1], LedgerFenced)
                with pytest.raises(LedgerFenced):
                    await writer.close()

    asyncio.run(scenario())


def test_writing_goes_on_while_zookeeper_is_down(cluster):
    async def scenario() -> None:
        address = cluster.zookeeper_address
        async with client_of(
            address, Quorums(3, 3, 2), LIMITS, session_timeout_ms=30_000
        ) as client:
            await registered(client, 3)
            writer = await client.create()
            await append(writer, b"before")
            await asyncio.to_thread(cluster.zookeeper.kill)
            await append(writer, b"without")
            await asyncio.to_thread(cluster.start_again, cluster.zookeeper)
            await append(writer, b"after")
            closed = await writer.close()
            assert await payloads_of(client, writer.ledger_id, closed) == [
                b"before", b"without", b"after",
            ]  # fmt: skip

    asyncio.run(scenario())
