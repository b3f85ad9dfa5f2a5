"""PREPARE, as seen by one coordinator.

    OPEN ── PREPARE, durable ──▶ PREPARED ── END of the owner or an administrator ──▶ its end

From the answer to PREPARE on, neither a timeout nor a lost connection nor a newer session of its
transactional id ends the transaction; it survives crashes, and moves with its coordinator. Nothing
can be added to it. What was answered before PREPARE is durable: receipts and acknowledgements are.

A prepared transaction holds its readers back until somebody decides. So one that is older than
`max_prepared_age_ms` gets a warning, once, or an abort if the configuration demands that. So does
an open one that was begun without a timeout: Kafka's clients prepare without a word (KIP-939).
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from managed_ledger.prompt import Prompt, fail, prompt
from pybroker.base.errors import InvalidTxnStatus, NotAllowed, PulsarError
from pybroker.base.names import TxnId
from pybroker.base.runtime import Clock
from pybroker.transaction.coordinator.ends.endings import Endings
from pybroker.transaction.coordinator.ends.timeouts import Timeouts
from pybroker.transaction.coordinator.group_commits.group_ends import GroupEnds
from pybroker.transaction.coordinator.live_transaction import TransactionMetadata
from pybroker.transaction.coordinator.log.records import Prepare
from pybroker.transaction.coordinator.metadata_store import Promised, TransactionMetadataStore
from pybroker.transaction.snapshot_log import Done

log = logging.getLogger(__name__)


class Core(NamedTuple):
    """The coordinator's operations that PREPARE needs."""

    check_open: Callable[[], None]
    not_found: Callable[[], PulsarError]
    log_then: Callable[[Prepare, Done], None]


class Preparing:
    def __init__(
        self,
        coordinator_id: int,
        store: TransactionMetadataStore,
        clock: Clock,
        endings: Endings,
        timeouts: Timeouts,
        group_ends: GroupEnds,
        core: Core,
    ) -> None:
        self._coordinator_id = coordinator_id
        self._store = store
        self._clock = clock
        self._limits = store.limits
        self._endings = endings
        self._timeouts = timeouts
        self._group_ends = group_ends
        self._core = core
        self._being_written = Counter[int]()  # PREPAREs by local id
        self.too_old = 0  # transactions that have exceeded the age, since this coordinator opened

    def prepare(
        self, txn_id: TxnId, name: str, principal: str | None, most: int = 0
    ) -> asyncio.Future[TxnId]:
        """Completes when it is durable. `most` prepared transactions of an owner are allowed; 0: no
        limit. Idempotent.

        Raises, or fails with, TransactionNotFound, InvalidTxnStatus (decided, or prepared with
        another name), NotAllowed, TransactionCoordinatorNotFound.
        """
        self._core.check_open()
        local_id = txn_id.least
        try:
            decision = self._store.decide_prepare(local_id, name, principal, self._clock.now_ms())
        except Promised:
            again = partial(self.prepare, txn_id, name, principal, most)
            return self._group_ends.end_when_free(local_id, again)
        except InvalidTxnStatus as refusal:
            return self._endings.refused(local_id, refusal)
        is_first = local_id not in self._store.prepared
        if is_first:
            self._require_room(local_id, most)
            self._timeouts.remove(local_id)
        # A repeated PREPARE is written again: when that is durable, so is the first one.
        durable: Prompt[TxnId] = prompt()
        self._being_written[local_id] += 1
        self._core.log_then(decision, partial(self._written, durable, local_id))
        if is_first:
            self.watch(self._store.transactions[local_id])
        return durable

    def _require_room(self, local_id: int, most: int) -> None:
        if not self._store.prepared.is_counted(local_id):
            self.require_room(self._store.transactions[local_id].owner, most)

    def require_room(self, owner: str | None, most: int) -> None:
        """For another one of the owner, of `most`. Raises NotAllowed."""
        if most and owner is not None and self._store.prepared.of(owner) >= most:
            raise NotAllowed(
                f"{owner} has {most} prepared transactions in coordinator "
                f"{self._coordinator_id}, and may have no more "
                "(maxPreparedTransactionsPerPrincipal): commit or abort some"
            )

    def _written(self, durable: Prompt[TxnId], local_id: int, error: Exception | None) -> None:
        self._being_written -= Counter((local_id,))
        if error is not None:
            fail(durable, self._core.not_found())
        elif not durable.done():
            durable.set_result(TxnId(self._coordinator_id, local_id))

    def is_prepared(self, txn_id: TxnId) -> bool:
        """False also while a crash may undo the PREPARE."""
        return txn_id.least in self._store.prepared and txn_id.least not in self._being_written

    # Age

    def watch(self, transaction: TransactionMetadata) -> None:
        """Look at a transaction that no timeout ends when it gets too old."""
        prepared, most_ms = transaction.prepared, self._limits.max_prepared_age_ms
        if most_ms:
            since_ms = transaction.opened_at_ms if prepared is None else prepared.at_ms
            if transaction.counts_from_ms is not None:  # it may have been prepared after that
                since_ms = max(since_ms, transaction.counts_from_ms)
            age_ms = max(0, self._clock.now_ms() - since_ms)
            self._timeouts.add(transaction.txn_id.least, max(0, most_ms - age_ms))

    def got_too_old(self, transaction: TransactionMetadata) -> bool:
        """Says so. True: it shall be aborted."""
        self.too_old += 1
        prepared = transaction.prepared
        log.warning(
            "Transaction %s%s%s has been %s for more than %d s, and holds its topics' "
            "readers back: %s (preparedTransactionMaxAgeMs)",
            transaction.txn_id,
            f" of {transaction.owner}" if transaction.owner is not None else "",
            f", named {prepared.name!r}," if prepared is not None and prepared.name else "",
            "prepared" if prepared is not None else "open, without a timeout,",
            self._limits.max_prepared_age_ms // 1000,
            "it is aborted"
            if self._limits.abort_old_prepared
            else "its owner must commit or abort it; see `pybroker transactions prepared`",
        )
        return self._limits.abort_old_prepared
