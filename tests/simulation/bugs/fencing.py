"""Wrong sessions of transactional ids."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from pybroker.server.transactions import fencing, transactional_sessions
from pybroker.server.transactions.held_ids import Claim
from pybroker.transaction.coordinator.sessions.transactional_ids import TransactionalIds


@contextmanager
def epoch_not_checked() -> Iterator[None]:
    """A client that reconnects with an older epoch is taken for a newer session."""
    with patch.object(Claim, "was_fenced", lambda claim, known: False):
        yield


@contextmanager
def epoch_not_durable() -> Iterator[None]:
    """A newer session is granted without storing its epoch."""

    async def write(self: TransactionalIds, transactional_id: Any, record: Any) -> None:
        await asyncio.sleep(0)
        self._known[transactional_id] = record

    with patch.object(TransactionalIds, "_write", write):
        yield


@contextmanager
def fenced_ones_left_open() -> Iterator[None]:
    """A newer session closes the producers of the older one, but does not end its transactions."""

    async def end_older(coordinators: Any, newest: Any) -> int:
        await asyncio.sleep(0)
        return 0

    with ExitStack() as changes:
        changes.enter_context(patch.object(transactional_sessions, "end_older", end_older))
        changes.enter_context(patch.object(fencing, "require_current", lambda *_: None))
        yield


BUGS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "epoch-not-checked": epoch_not_checked,
    "epoch-not-durable": epoch_not_durable,
    "fenced-ones-left-open": fenced_ones_left_open,
}
