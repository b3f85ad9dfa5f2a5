"""The lives of a subscription's clients in its pending-ack log: see pybroker.broker.dispatch.lives.

A life is stored when its client subscribes, before the first delivery, and when its taints change,
before the acknowledgement or end that taints it.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Protocol

from managed_ledger.prompt import Prompt, prompt
from pybroker.base.names import TxnId
from pybroker.base.runtime import do_nothing
from pybroker.transaction.pending_acks.records import LifeRecord
from pybroker.transaction.pending_acks.store import PendingAckStore


class Life(Protocol):
    """See pybroker.broker.dispatch.lives."""

    stored: bool
    recorded: bool

    @property
    def record(self) -> LifeRecord: ...


class LifeLog:
    """`stored` is called after a record was added to the log."""

    def __init__(self, store: PendingAckStore, stored: Callable[[], object]) -> None:
        self.restored: dict[int, LifeRecord] = {}  # by number
        # Whether a consumer has subscribed since the latest cumulative acknowledgement, as far as
        # the log tells: a snapshot has the lives last.
        self.came_since = False
        self.closed = False
        self._store = store
        self._stored = stored

    def close(self) -> None:
        """Store nothing any more."""
        self.closed, self._stored = True, do_nothing

    def replay(self, record: LifeRecord) -> None:
        known = self.restored.pop(record.number, None)
        if known is None or known.request_id != record.request_id or known == record:
            self.came_since = True  # otherwise its taints have changed, or its epoch
        if not record.is_gone:
            self.restored[record.number] = record

    def replay_abort(self, txn_id: TxnId) -> None:
        for life in list(self.restored.values()):
            left = tuple(taint for taint in life.taints if taint[0] != txn_id)
            if len(left) < len(life.taints):
                self.restored[life.number] = replace(life, taints=left)

    def note(self, life: Life, is_gone: bool = False) -> asyncio.Future[None]:
        """Store the life as it is now, or that it will not return: durable before what is logged
        later. If that fails, it is stored with the next acknowledgement. The future never fails.
        """
        noted: Prompt[None] = prompt()
        if self.closed:
            noted.set_result(None)
            return noted
        life.stored = life.recorded = True
        record = replace(life.record, is_gone=is_gone)
        self._store.append(record, partial(self._logged, life, noted))
        self._stored()
        return noted

    def _logged(self, life: Life, noted: asyncio.Future[None], error: Exception | None) -> None:
        life.stored = life.stored and error is None
        if not noted.done():
            noted.set_result(None)
