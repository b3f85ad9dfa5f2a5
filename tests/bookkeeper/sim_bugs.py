"""Incorrect clients, each with one bug that loses entries or reports two ends of a ledger."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from unittest.mock import patch

from managed_ledger import rollover
from managed_ledger.appender import Appender
from managed_ledger.errors import LedgerEnded, ManagedLedgerError
from managed_ledger.storage.bookkeeper import protocol, recovery, writer
from managed_ledger.storage.bookkeeper.backend import BookKeeperBackend
from managed_ledger.storage.bookkeeper.bookies import Bookies
from managed_ledger.storage.bookkeeper.connection import BookieConnection
from managed_ledger.storage.bookkeeper.errors import BookieFailed
from managed_ledger.storage.bookkeeper.ledger_store import LedgerStore
from managed_ledger.storage.bookkeeper.metadata_record import LedgerMetadata
from managed_ledger.storage.bookkeeper.protocol import Code, Operation, Response
from managed_ledger.storage.bookkeeper.quorums import Quorums
from managed_ledger.storage.zookeeper.operations import ANY_VERSION

Bug = Callable[[], Any]  # a context manager


def recovery_add_on_the_normal_path() -> Any:
    right = protocol.add_prefix

    def prefix(master_key: bytes, body_bytes: int, first: int = 0) -> bytes:
        return right(master_key, body_bytes, protocol.head(Operation.ADD, protocol.RECOVERY_ADD))

    return patch.object(protocol, "add_prefix", prefix)


def no_entry_by_timeout() -> Any:
    read = Bookies.read

    async def impatient(
        self: Bookies, bookie: str, ledger_id: int, entry_id: int, fence_with: bytes | None = None
    ) -> Response:
        try:
            return await read(self, bookie, ledger_id, entry_id, fence_with)
        except BookieFailed:
            return Response(Operation.READ, Code.NO_ENTRY, ledger_id, entry_id, b"")

    return patch.object(Bookies, "read", impatient)


def metadata_without_compare_and_set() -> Any:
    change = LedgerStore.set

    async def blind(
        self: LedgerStore, ledger_id: int, metadata: LedgerMetadata, version: int
    ) -> int:
        return await change(self, ledger_id, metadata, ANY_VERSION)

    return patch.object(LedgerStore, "set", blind)


def reading_without_a_fence() -> Any:
    read = BookieConnection.read

    def unfenced(
        self: BookieConnection,
        ledger_id: int,
        entry_id: int,
        answered: Any,
        fence_with: bytes | None = None,
    ) -> None:
        read(self, ledger_id, entry_id, answered)

    return patch.object(BookieConnection, "read", unfenced)


def one_denial_is_enough() -> Any:
    return patch.object(Quorums, "denials", property(lambda self: 1))


def entries_read_where_they_are_to_be_written() -> Any:
    change = recovery._Recovery._replace

    def replaced(self: Any, first: int, failed: list[str], lost: set[str]) -> int:
        count = change(self, first, failed, lost)
        self._written = self._metadata
        return count

    return patch.object(recovery._Recovery, "_replace", replaced)


def nothing_is_written_again() -> Any:
    async def believed(self: Any, entries: Any) -> None:
        await asyncio.sleep(0)

    return patch.object(recovery._Recovery, "_write_again", believed)


def copies_of_recovered_entries_not_counted() -> Any:
    once = recovery._Recovery._write_once

    async def uncounted(self: Any, entries: Any) -> tuple[list[str], int]:
        failed, _ = await once(self, entries)
        return failed, self._quorums.write

    return patch.object(recovery._Recovery, "_write_once", uncounted)


BUGS: Final[dict[str, Bug]] = {
    bug.__name__: bug
    for bug in (
        recovery_add_on_the_normal_path,
        no_entry_by_timeout,
        metadata_without_compare_and_set,
        reading_without_a_fence,
        one_denial_is_enough,
        entries_read_where_they_are_to_be_written,
        nothing_is_written_again,
        copies_of_recovered_entries_not_counted,
    )
}


def failures_told_before_the_ledger_is_closed() -> Any:
    async def hasty(self: writer.LedgerWriter, why: ManagedLedgerError) -> None:
        self._end(LedgerEnded("lost a bookie"))

    return patch.object(writer.LedgerWriter, "_end_early", hasty)


def appends_that_do_not_wait_for_properties() -> Any:
    return patch.object(BookKeeperBackend, "is_ordered", True)


def full_ledgers_left_open() -> Any:
    async def left(self: BookKeeperBackend, ledger_id: int) -> None:
        await asyncio.sleep(0)

    return patch.object(BookKeeperBackend, "close_ledger", left)


def no_ledger_after_one_that_ended() -> Any:
    return patch.object(rollover.Rollover, "when_troubled", lambda self, ended: None)


@contextmanager
def what_ended_is_appended_again_unseen() -> Iterator[None]:
    """The old ledger is not closed, so its end is unknown: an append that seems to have failed may
    be in it, and its next recovery may find it.
    """
    close = BookKeeperBackend.close_ledger

    async def trusting(self: BookKeeperBackend, ledger_id: int) -> None:
        if not isinstance(self._writers[ledger_id].ended, LedgerEnded):
            await close(self, ledger_id)

    with (
        failures_told_before_the_ledger_is_closed(),
        patch.object(BookKeeperBackend, "close_ledger", trusting),
    ):
        yield


def what_ended_is_appended_again_out_of_order() -> Any:
    """The first append is repeated last."""
    fail = Appender._fail_pending

    def disordered(self: Appender, error: Exception) -> None:
        fail(self, error)
        self._held.rotate(-1)

    return patch.object(Appender, "_fail_pending", disordered)


@contextmanager
def a_fence_taken_for_a_certain_failure() -> Iterator[None]:
    """Nor is the ledger's state checked in ZooKeeper: another broker recovers the ledger and finds
    entries that are also appended again.
    """
    close = BookKeeperBackend.close_ledger

    async def trusting(self: BookKeeperBackend, ledger_id: int) -> None:
        if self._writers[ledger_id].ended is None:
            await close(self, ledger_id)

    def certain(self: writer.LedgerWriter) -> LedgerEnded:
        return LedgerEnded(f"ended: {self.ended}")

    with (
        patch.object(writer.LedgerWriter, "_refusal", certain),
        patch.object(BookKeeperBackend, "close_ledger", trusting),
    ):
        yield


MANAGED_BUGS: Final[dict[str, Bug]] = {
    bug.__name__: bug
    for bug in (
        appends_that_do_not_wait_for_properties,
        full_ledgers_left_open,
        no_ledger_after_one_that_ended,
        what_ended_is_appended_again_out_of_order,
        what_ended_is_appended_again_unseen,
        a_fence_taken_for_a_certain_failure,
    )
}
