"""A full disk is logged once, and once when there is room again."""

import asyncio
import errno
import logging

import pytest
from at_once import AtOnce
from faulty_disk import FaultyDisk
from virtual_loop import LoopClock, run_virtually

from managed_ledger.errors import StorageFull
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.storage.embedded.journal import EmbeddedBackend
from managed_ledger.storage.fullness import OVER_AFTER_S, TRY_AGAIN_S, Fullness

MB = 1024 * 1024
NAME = "managed_ledger.storage.fullness"


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The levels and first words of the lines logged since the last call."""
    lines = [(r.levelname, r.getMessage().split(":")[0]) for r in caplog.records if r.name == NAME]
    caplog.clear()
    return [f"{level} {words}" for level, words in lines]


def test_a_disk_that_fills_up_is_said_once_and_so_is_its_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        free = 1000 * MB
        disk.free = lambda: free
        backend = EmbeddedBackend(disk, LoopClock(), executor=AtOnce())
        await backend.open()
        factory = ManagedLedgerFactory(backend, LoopClock())
        ledger = await factory.open("log")
        await ledger.append_one(b"before")
        assert (backend.refusal(), factory.fullness.is_full) == (None, False)
        free = 15 * MB
        for _ in range(30):
            with pytest.raises(StorageFull):
                await ledger.append_one(b"refused")
            assert "delete topics" in str(backend.refusal())
            await asyncio.sleep(0.5)
        assert said(caplog) == ["ERROR messages are refused"]
        assert (factory.fullness.refused, factory.fullness.free_bytes) == (30, free)
        free = 1000 * MB
        await asyncio.sleep(TRY_AGAIN_S)
        assert backend.refusal() is None, "the next one is tried"
        await ledger.append_one(b"after")
        assert factory.fullness.is_full, "it may begin again at any moment"
        await asyncio.sleep(OVER_AFTER_S)
        assert not factory.fullness.is_full
        assert said(caplog) == ["WARNING there is room again"]
        await factory.close()
        await backend.close()

    with caplog.at_level(logging.WARNING, NAME):
        run_virtually(scenario())


def test_a_write_that_a_quota_refuses_counts_though_the_disk_has_room(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def over_quota(operation: str, name: str) -> None:
        if operation == "write" and name.startswith("journal/"):
            raise OSError(errno.EDQUOT, "Disk quota exceeded", name)

    async def scenario() -> None:
        disk = FaultyDisk()
        backend = EmbeddedBackend(disk, LoopClock(), executor=AtOnce())
        await backend.open()
        ledger = await ManagedLedgerFactory(backend, LoopClock()).open("log")
        disk.fault = over_quota
        with pytest.raises(StorageFull):
            await ledger.append_one(b"refused")
        assert "Disk quota exceeded" in str(backend.refusal())
        assert said(caplog) == ["ERROR messages are refused"]

    with caplog.at_level(logging.WARNING, NAME):
        run_virtually(scenario())


def test_while_it_is_refused_again_and_again_it_is_not_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fullness = Fullness()
    with caplog.at_level(logging.WARNING, NAME):
        for second in range(100):
            fullness.refuse("full", second)
            fullness.has_room(second + 0.5)
        assert said(caplog) == ["ERROR messages are refused"]
        fullness.has_room(99 + OVER_AFTER_S)
        assert "100 writes were refused within 99 s" in caplog.text
        fullness.refuse("full", 200)
        assert said(caplog) == ["WARNING there is room again", "ERROR messages are refused"]
    assert fullness.refused == 101
