"""Wrong terminations."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from managed_ledger.ledger import ManagedLedger
from managed_ledger.position import Position
from pybroker.broker.persistent.termination import TERMINATED
from pybroker.transaction.buffer.log_order.log_order_buffer import LogOrderBuffer


@contextmanager
def end_before_open_transactions() -> Iterator[None]:
    """The answer names the last message readable now, although an open transaction's may follow."""
    right = LogOrderBuffer.last_visible_position

    def last(self: LogOrderBuffer, up_to: Position | None = None) -> Position:
        return right(self)

    with patch.object(LogOrderBuffer, "last_visible_position", last):
        yield


@contextmanager
def termination_not_durable() -> Iterator[None]:
    """A topic's termination is in memory only."""
    right = ManagedLedger.update_properties

    def update(self: ManagedLedger, changes: Mapping[str, str | None]) -> Any:
        return right(self, {key: each for key, each in changes.items() if key != TERMINATED})

    with patch.object(ManagedLedger, "update_properties", update):
        yield


BUGS = {
    "end-before-open-transactions": end_before_open_transactions,
    "termination-not-durable": termination_not_durable,
}
