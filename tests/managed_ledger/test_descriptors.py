"""Without free file descriptors writes are refused and later resume; nothing is lost or fatal."""

import asyncio
import errno
import os
import subprocess
import sys

import pytest
from bare_ledgers import make_ledger
from faulty_disk import FaultyDisk, failing

from managed_ledger.errors import NoDescriptors
from managed_ledger.storage.embedded.journal import EmbeddedBackend
from managed_ledger.storage.embedded.spare_descriptors import SpareDescriptors


async def append(backend: EmbeddedBackend, ledger: int, number: int) -> Exception | None:
    done = asyncio.get_running_loop().create_future()
    first = backend._state.ledgers[ledger].queued_entries
    backend.append(ledger, first, [b"%d" % number * 100], [1], done.set_result)
    return await done


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
@pytest.mark.parametrize(
    "operation",
    [
        ("create", "journal/"),
        ("sync_folder", "journal"),
        ("create", "ledgers/"),
        ("open", "ledgers/"),
        ("sync_folder", "ledgers"),
        ("create", "metadata/"),
        ("sync_folder", "metadata"),
    ],
)
def test_where_no_descriptor_is_left_writes_wait_or_are_refused_and_go_on(
    run, clock, operation, number
):
    async def scenario():
        disk = FaultyDisk()
        fatal: list[Exception] = []
        backend = EmbeddedBackend(
            disk, clock, on_fatal=fatal.append, journal_max_bytes=300, max_old_journals=1
        )
        await backend.open()
        ledger = await make_ledger(backend)
        written = []
        disk.fault = failing(number, operation)
        for entry in range(12):
            error = await append(backend, ledger, entry)
            assert error is None or isinstance(error, NoDescriptors)
            written += [entry] if error is None else []
        assert len(written) < 12
        disk.fault = lambda operation, name: None
        backend._checkpoints._progress.clear()
        backend._checkpoints.wake()
        await backend._checkpoints._progress.wait()
        for entry in range(12, 24):
            assert await append(backend, ledger, entry) is None
            written.append(entry)
        assert fatal == []
        await backend.close()
        restarted = EmbeddedBackend(FaultyDisk(disk.contents()), clock)
        await restarted.open()
        found: list[bytes] = []
        while len(found) < len(written):
            found += (await restarted.read(ledger, len(found), 99, 100, 1 << 20)).entries
        assert found == [b"%d" % entry * 100 for entry in written]
        await restarted.close()

    run(scenario())


def test_a_read_without_a_descriptor_succeeds_later(run, clock):
    async def scenario():
        disk = FaultyDisk()
        backend = EmbeddedBackend(disk, clock)
        await backend.open()
        ledger = await make_ledger(backend)
        await append(backend, ledger, 7)
        await backend.close()
        disk = FaultyDisk(disk.contents())
        backend = EmbeddedBackend(disk, clock)
        await backend.open()
        disk.fault = failing(errno.EMFILE, ("open", "ledgers/"))
        with pytest.raises(NoDescriptors, match="ulimit"):
            await backend.read(ledger, 0, 0, 1, 1)
        disk.fault = lambda operation, name: None
        assert (await backend.read(ledger, 0, 0, 1, 1)).entries == [b"7" * 100]
        await backend.close()

    run(scenario())


def test_spare_descriptors_are_given_up_one_by_one_and_taken_back():
    spare = SpareDescriptors(3)
    spare.refill()
    refusals = [OSError(errno.EMFILE, "none")] * 2

    def opening() -> str:
        if refusals:
            raise refusals.pop()
        return "open"

    assert spare.opened(opening) == "open"
    assert len(spare._spare) == 1
    spare.refill()
    assert len(spare._spare) == 3
    refusals += [OSError(errno.EMFILE, "none")] * 9
    with pytest.raises(OSError, match="none"):
        spare.opened(opening)
    spare.close()


STORE_WITHOUT_DESCRIPTORS = """
import asyncio, os, resource, sys
from managed_ledger.storage.embedded.journal import EmbeddedBackend
from managed_ledger.storage.embedded.os_disk import OsDisk

class Clock:
    now_ms = monotonic_s = lambda self: 0

async def store():
    backend = EmbeddedBackend(OsDisk(sys.argv[1]), Clock(), journal_max_bytes=20_000)
    await backend.open()
    ledger = backend.new_ledger_id()
    await backend.metadata.put("made", b"", new_ledger_id=ledger)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    taken = []
    try:
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass
    for number in range(20):
        done = asyncio.get_running_loop().create_future()
        backend.append(ledger, number, [b"x" * 10_000], [1], done.set_result)
        assert await done is None
    assert len((await backend.read(ledger, 0, 19, 1, 1)).entries) == 1
    await backend.close()
    print("stored", backend._writer.generation)

asyncio.run(store())
"""


def test_the_storage_works_when_all_descriptors_but_its_own_are_taken(tmp_path):
    command = [sys.executable, "-c", STORE_WITHOUT_DESCRIPTORS, str(tmp_path / "data")]
    said = subprocess.run(command, capture_output=True, text=True, cwd=os.getcwd(), check=False)
    assert said.stderr == ""
    assert said.stdout.startswith("stored")
    assert int(said.stdout.split()[1]) > 5
