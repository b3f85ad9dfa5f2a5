"""The ledger properties that tell recovery to look for transactions, and from where.

They are queued ahead of the first transactional entry. If writing them fails, the entries behind
them may be in the log all the same, so the position that they name stays the first one asked for.
"""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial

from managed_ledger.ledger import ManagedLedger
from managed_ledger.position import Position
from pybroker.transaction.transactional_entries import SINCE, TAGGED_SINCE, position_text


class LedgerMark:
    """One topic's, from its first transaction on. `failed` is called when a write fails."""

    __slots__ = ("_failed", "_is_durable", "_ledger", "_plain_up_to")

    def __init__(self, ledger: ManagedLedger, failed: Callable[[], None]) -> None:
        self._ledger, self._failed = ledger, failed
        self._is_durable = SINCE in ledger.properties
        self._plain_up_to: Position | None = None  # known once the mark was asked for

    def require(self) -> None:
        """Write the mark unless it is there or on its way: it takes effect before later appends."""
        if self._is_durable or SINCE in self._ledger.properties_to_come:  # and has not failed
            return
        # Where that failed on a full disk, messages may have come to the log since all the same.
        self._plain_up_to = self._plain_up_to or self._ledger.last_confirmed
        since = position_text(self._plain_up_to)
        write = partial(self._write, {SINCE: since, TAGGED_SINCE: since})
        write()
        self._ledger.call_ahead_of_held(write)  # which may get there though this did not

    def _write(self, mark: Mapping[str, str]) -> None:
        if not mark.items() <= self._ledger.properties_to_come.items():
            self._ledger.update_properties(mark).add_done_callback(self._written)

    def _written(self, written: "asyncio.Future[None]") -> None:
        if written.cancelled() or written.exception() is not None:
            self._failed()
        else:
            self._is_durable = True
