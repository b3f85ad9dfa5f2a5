"""Expiry and eviction gone wrong."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from pybroker.broker.policies import expiry
from pybroker.broker.subscription import Subscription


@contextmanager
def dropped_past_max_read_position() -> Iterator[None]:
    """What an open transaction wrote goes with what stands before it."""

    async def drop(topic: Any, subscription: Subscription, up_to: Any, *_: Any) -> int:
        subscription.cursor.mark_delete(up_to)
        await subscription.cursor.flush()
        return 0

    with patch.object(expiry, "drop", drop):
        yield


@contextmanager
def everything_expires() -> Iterator[None]:
    """One message that is old enough takes all others along, the young ones too."""

    async def found(ledger: Any, timestamp_ms: int, after: Any = None) -> Any:
        return ledger.last_confirmed.after

    with patch.object(expiry, "first_published_at", found):
        yield


@contextmanager
def what_comes_meanwhile_expires() -> Iterator[None]:
    """Where all is old enough, what is published during the search goes with it."""
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
