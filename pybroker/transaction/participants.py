"""Telling every participant of a transaction how it ended, for as long as it takes.

The coordinator knows participants by name only: `Participants` reaches them, in this broker or in
another. Who does not follow is asked again with a growing pause and shows up in `retries`.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from pybroker.names import TxnId
from pybroker.transaction.metadata_store import TransactionMetadata
from pybroker.transaction.txn_status import TxnAction

_FIRST_RETRY_S: Final = 0.05
_LAST_RETRY_S: Final = 10.0

log = logging.getLogger(__name__)


class Participants(Protocol):
    """Where a transaction wrote and acknowledged. Idempotent; whatever is raised is retried.

    A topic or subscription that was deleted counts as success; one not loaded is loaded.
    """

    async def end_on_partition(
        self, txn_id: TxnId, topic: str, action: TxnAction, low_watermark: int
    ) -> None: ...

    async def end_on_subscription(
        self, txn_id: TxnId, topic: str, subscription: str, action: TxnAction, low_watermark: int
    ) -> None: ...


@dataclass(slots=True)
class Retry:
    """A participant that has not followed yet."""

    txn_id: TxnId
    participant: str
    attempts: int
    last_error: str


class ParticipantEnds:
    def __init__(self, participants: Participants) -> None:
        self._participants = participants
        self._retries: dict[tuple[TxnId, str], Retry] = {}

    def retries(self) -> list[Retry]:
        return list(self._retries.values())

    async def end_everywhere(
        self, transaction: TransactionMetadata, action: TxnAction, low_watermark: int
    ) -> None:
        """In parallel; returns when all have followed. Raises nothing but CancelledError."""
        txn_id = transaction.txn_id
        partition, subscription = (
            self._participants.end_on_partition,
            self._participants.end_on_subscription,
        )
        ends = [
            self._follow(txn_id, topic, partial(partition, txn_id, topic, action, low_watermark))
            for topic in transaction.partitions
        ]
        ends += [
            self._follow(
                txn_id,
                f"{topic}/{name}",
                partial(subscription, txn_id, topic, name, action, low_watermark),
            )
            for topic, name in transaction.subscriptions
        ]
        await asyncio.gather(*ends)

    async def _follow(
        self, txn_id: TxnId, participant: str, end: Callable[[], Awaitable[None]]
    ) -> None:
        delay_s = _FIRST_RETRY_S
        while True:
            try:
                await end()
            except Exception as error:
                self._note(txn_id, participant, error)
            else:
                self._retries.pop((txn_id, participant), None)
                return
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, _LAST_RETRY_S)

    def _note(self, txn_id: TxnId, participant: str, error: Exception) -> None:
        reason = f"{type(error).__name__}: {error}"
        retry = self._retries.setdefault(
            (txn_id, participant), Retry(txn_id, participant, 0, reason)
        )
        if retry.attempts == 0:
            log.warning(
                "Transaction %s: %s has not ended it yet (%s); retrying",
                txn_id,
                participant,
                reason,
            )
        retry.attempts += 1
        retry.last_error = reason
