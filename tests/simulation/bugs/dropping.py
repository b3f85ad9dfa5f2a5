"""Wrong expiry and eviction."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from pybroker.broker.policies import expiry
from pybroker.broker.subscriptions.subscription import Subscription


@contextmanager
def dropped_past_max_read_position() -> Iterator[None]:
    """Messages of open transactions are dropped along with those before them."""

    async def drop(topic: Any, subscription: Subscription, up_to: Any, *_: Any) -> int:
        subscription.cursor.mark_delete(up_to)
        await subscription.cursor.flush()
        return 0

    with patch.object(expiry, "drop", drop):
        yield


@contextmanager
def everything_expires() -> Iterator[None]:
    """One expired message takes all others along, even newer ones."""

    async def found(ledger: Any, timestamp_ms: int, after: Any = None) -> Any:
        return ledger.last_confirmed.after

    with patch.object(expiry, "first_published_at", found):
        yield


@contextmanager
def what_comes_meanwhile_expires() -> Iterator[None]:
    """If every message is old enough, those published during the search are dropped, too."""
    right = expiry.first_published_at

    async def found(ledger: Any, timestamp_ms: int, after: Any) -> Any:
        behind = ledger.next_position(ledger.last_confirmed)
        place = await right(ledger, timestamp_ms, after)
        return place if place < behind else ledger.next_position(ledger.last_confirmed)

    with patch.object(expiry, "first_published_at", found):
        yield


BUGS = {
    "dropped-past-max-read-position": dropped_past_max_read_position,
    "everything-expires": everything_expires,
    "what-comes-meanwhile-expires": what_comes_meanwhile_expires,
}
