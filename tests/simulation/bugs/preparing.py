"""Prepared transactions that are ended by others than their owners."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from pybroker.client.connection import connection
from pybroker.client.errors import from_wire
from pybroker.transaction.coordinator import coordinator
from pybroker.transaction.coordinator.ends.timeouts import Timeouts
from pybroker.transaction.coordinator.metadata_store import TransactionMetadataStore
from pybroker.transaction.coordinator.preparing import Preparing
from pybroker.transaction.coordinator.sessions import fencing
from pybroker.transaction.txn_status import TxnStatus


@contextmanager
def timeout_ends_prepared_ones() -> Iterator[None]:
    """The timeout of a transaction still runs when it is prepared."""
    remove, watching = Timeouts.remove, [False]
    prepare = Preparing.prepare

    def keeping(self: Timeouts, local_id: int) -> None:
        if not watching[0]:
            remove(self, local_id)

    def prepare_only(self: Preparing, *arguments: Any) -> Any:
        watching[0] = True
        try:
            return prepare(self, *arguments)
        finally:
            watching[0] = False

    with ExitStack() as changes:
        changes.enter_context(patch.object(Timeouts, "remove", keeping))
        changes.enter_context(patch.object(Preparing, "prepare", prepare_only))
        changes.enter_context(patch.object(Preparing, "watch", lambda self, transaction: None))
        changes.enter_context(
            patch.object(Preparing, "got_too_old", lambda self, transaction: True)
        )
        yield


@contextmanager
def prepared_forgotten_at_recovery() -> Iterator[None]:
    """A coordinator that recovers does not read PREPARE: the transaction is open again."""
    right = TransactionMetadataStore._apply_prepare

    def apply(self: TransactionMetadataStore, local_id: int, record: Any) -> None:
        if not self._replaying:
            right(self, local_id, record)

    with patch.object(TransactionMetadataStore, "_apply_prepare", apply):
        yield


@contextmanager
def newer_session_aborts_prepared_ones() -> Iterator[None]:
    """A newer session of a transactional id ends everything of the older ones."""
    right = fencing._end

    def older(coordinators: Any, newest: Any) -> list[Any]:
        return [
            (each, transaction)
            for each in coordinators.served()
            for transaction in each.bound_to(newest.id)
            if transaction.session.epoch < newest.epoch
        ]

    def end(its: Any, transaction: Any) -> Any:
        if transaction.status is TxnStatus.PREPARED:
            return [its.abort(transaction.txn_id, "a newer session")]
        return right(its, transaction)

    with (
        patch.object(fencing, "_older", older),
        patch.object(fencing, "_end", end),
        patch.object(coordinator, "NOT_OF_PREPARED", frozenset()),
    ):
        yield


@contextmanager
def prepared_ended_to_find_out() -> Iterator[None]:
    """A client that asks how another transaction has ended takes a prepared one for ended."""

    def refusal(body: Any) -> Any:
        return from_wire(body.error, body.message)

    with patch.object(connection, "refusal", refusal):
        yield


BUGS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "timeout-ends-prepared-ones": timeout_ends_prepared_ones,
    "prepared-forgotten-at-recovery": prepared_forgotten_at_recovery,
    "newer-session-aborts-prepared-ones": newer_session_aborts_prepared_ones,
    "prepared-ended-to-find-out": prepared_ended_to_find_out,
}
