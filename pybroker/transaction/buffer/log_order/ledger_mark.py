"""The ledger properties that tell recovery to look for transactions, and from which position.

They are queued before the first transactional entry. If writing them fails, the entries queued
after them may still be in the log, so the next attempt names the same position as the first.
"""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial

from managed_ledger.ledger import ManagedLedger
from managed_ledger.ledger_metadata import ledgers_key
from managed_ledger.position import Position
from managed_ledger.storage.backend import MetadataStore
from pybroker.base.names import SNAPSHOT_TOPIC
from pybroker.transaction.buffer.transactional_entries import (
    SINCE,
    TAGGED_SINCE,
    parse_position,
    position_text,
)


class LedgerMark:
    """The mark of one topic, from its first transaction on."""

    __slots__ = ("_ledger", "_plain_up_to", "is_durable")

    def __init__(self, ledger: ManagedLedger) -> None:
        self._ledger = ledger
        self.is_durable = SINCE in ledger.properties
        self._plain_up_to: Position | None = None  # set once the mark was requested

    def require(self, failed: Callable[[], None]) -> None:
        """Write the mark, before later appends, unless it exists or is being written.

        `failed` is called if a write fails. This object does not store it: a reference cycle with
        the buffer would leave the topic to the garbage collector.
        """
        if self.is_durable or SINCE in self._ledger.properties_to_come:  # and has not failed
            return
        # If an earlier write failed on a full disk, messages may have been added to the log since.
        self._plain_up_to = self._plain_up_to or self._ledger.last_confirmed
        since = position_text(self._plain_up_to)
        write = partial(self._write, {SINCE: since, TAGGED_SINCE: since}, failed)
        write()
        self._ledger.call_ahead_of_held(write)  # this write may succeed even if the other failed

    async def durable(self) -> None:
        """Make the mark durable. Raises ManagedLedgerError."""
        if not self.is_durable:
            since = position_text(self._plain_up_to or self._ledger.last_confirmed)
            self._plain_up_to = parse_position(since)
            await self._ledger.update_properties({SINCE: since, TAGGED_SINCE: since})
            self.is_durable = True

    def _write(self, mark: Mapping[str, str], failed: Callable[[], None]) -> None:
        if not mark.items() <= self._ledger.properties_to_come.items():
            done = partial(self._written, failed)
            self._ledger.update_properties(mark).add_done_callback(done)

    def _written(self, failed: Callable[[], None], written: "asyncio.Future[None]") -> None:
        if written.cancelled() or written.exception() is not None:
            failed()
        else:
            self.is_durable = True


def may_have_foreign_transactions(ledger: ManagedLedger, metadata: MetadataStore) -> bool:
    """Whether the topic may contain transactions of Apache Pulsar's broker. That broker sets no
    mark, but before a namespace's first transactional message it creates a system topic for
    snapshots.
    """
    if not ledger.ledgers() and ledger.last_confirmed.entry_id < 0:
        return False
    namespace, _, local = ledger.name.partition("/persistent/")
    if local.startswith(SNAPSHOT_TOPIC):
        return False
    topic = ledgers_key(f"{namespace}/persistent/{SNAPSHOT_TOPIC}")
    return metadata.get(topic) is not None or bool(metadata.keys(f"{topic}-partition-"))
