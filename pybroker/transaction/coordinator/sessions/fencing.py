"""Ends the transactions that older sessions of a transactional id have left.

Open transactions are aborted; decided ones are waited for. When this returns, no transaction of an
older session can change what consumers see, except prepared ones: their owner decides, in whatever
session. Source: KIP-98, "InitPidRequest"; KIP-939.
"""

import asyncio
import logging
from typing import Final

from pybroker.base.errors import PulsarError
from pybroker.base.names import TxnId
from pybroker.base.runtime import Pace
from pybroker.transaction.coordinator.coordinator import TransactionCoordinator
from pybroker.transaction.coordinator.coordinators import Coordinators
from pybroker.transaction.coordinator.ends.timeline import DecidedBy
from pybroker.transaction.coordinator.live_transaction import TransactionMetadata
from pybroker.transaction.coordinator.sessions.transactional_ids import SessionRef, why_fenced
from pybroker.transaction.txn_status import ACTION_OF_STATUS, TxnStatus

_RETRY_S: Final = 0.1  # while a coordinator is reopening
_ENDED_A_TURN: Final = 50

Older = tuple[TransactionCoordinator, TransactionMetadata]

log = logging.getLogger(__name__)


async def end_older(coordinators: Coordinators, newest: SessionRef) -> int:
    """Returns once no session before `newest` has a live transaction in a coordinator of this
    broker; the result is the number of transactions that it aborted.
    """
    aborted = 0
    while True:
        older = _older(coordinators, newest)
        if not older and coordinators.are_all_open:
            return aborted
        ending: list[asyncio.Future[TxnId]] = []
        pace = Pace(_ENDED_A_TURN)
        for coordinator, transaction in older:
            aborted += transaction.status is TxnStatus.OPEN
            ending += _end(coordinator, transaction)
            await pace.step()
        ended = await asyncio.gather(*ending, return_exceptions=True)
        failed = any(isinstance(each, Exception) for each in ended)
        if failed or not older or len(ended) < len(older):
            await asyncio.sleep(_RETRY_S)


def _older(coordinators: Coordinators, newest: SessionRef) -> list[Older]:
    return [
        (coordinator, transaction)
        for coordinator in coordinators.served()
        for transaction in coordinator.bound_to(newest.id)
        if transaction.session is not None
        and transaction.session.epoch < newest.epoch
        and not coordinator.preparing.is_prepared(transaction.txn_id)
    ]


def _end(
    coordinator: TransactionCoordinator, transaction: TransactionMetadata
) -> list[asyncio.Future[TxnId]]:
    """Empty if the transaction has ended, or if its coordinator has failed: the successor has the
    transaction too.
    """
    txn_id, session = transaction.txn_id, transaction.session
    if session is None or coordinator.metadata(txn_id) is not transaction:
        return []
    try:
        if transaction.status is TxnStatus.PREPARED:
            return []  # its PREPARE is being written, and may fail
        if transaction.status is TxnStatus.OPEN:
            return [coordinator.abort(txn_id, why_fenced(session), DecidedBy.FENCING)]
        return [coordinator.end(txn_id, ACTION_OF_STATUS[transaction.status], None)]
    except PulsarError as error:
        log.info("Transaction %s of a fenced session will be ended later: %s", txn_id, error)
        return []
