"""Wrong truncations."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from bugs.believing import nothing
from managed_ledger.position import Position
from pybroker.broker.deduplication.deduplication import Deduplication
from pybroker.broker.subscriptions.subscription import Subscription


@contextmanager
def truncation_takes_what_is_open() -> Iterator[None]:
    """Messages of open transactions are deleted, and those after them."""

    async def skip_to(self: Subscription, position: Position) -> None:
        self.cursor.mark_delete(self._topic.ledger.last_confirmed)
        await self.cursor.flush()

    with patch.object(Subscription, "skip_to", skip_to):
        yield


@contextmanager
def truncation_stops_at_deduplication() -> Iterator[None]:
    """Entries that deduplication would read after a restart stay."""
    with patch.object(Deduplication, "catch_up", nothing):
        yield


BUGS = {
    "truncation-stops-at-deduplication": truncation_stops_at_deduplication,
    "truncation-takes-what-is-open": truncation_takes_what_is_open,
}
