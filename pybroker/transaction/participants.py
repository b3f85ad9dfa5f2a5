"""Telling every participant of a transaction how it ended, for as long as it takes.

The coordinator knows participants by name only: `Participants` reaches them, in this broker or in
another. Who does not follow is asked again with a growing pause and shows up in `retries`. What can
never follow counts as ended: it holds nothing of the transaction, and waiting for it would keep the
others' books open for ever.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, Protocol

from pybroker.names import TxnId
from pybroker.transaction.metadata_store import TransactionMetadata
from pybroker.transaction.txn_status import TxnAction

_FIRST_RETRY_S: Final = 0.05
_LAST_RETRY_S: Final = 10.0
_GIVEN_UP_KEPT: Final = 100

log = logging.getLogger(__name__)


class CannotParticipate(Exception):
    """What was added to a transaction is nothing that could ever hold a part of it."""


class Participants(Protocol):
    """Where a transaction wrote and acknowledged. Idempotent; what is raised is retried, all but
    CannotParticipate.

    A topic or subscription that was deleted counts as success; one not loaded is loaded.
    """

    async def end_on_partition(
        self, txn_id: TxnId, topic: str, action: TxnAction, low_watermark: int
    ) -> None: ...

    async def end_on_subscription(
        self, txn_id: TxnId, topic: str, subscription: str, action: TxnAction, low_watermark: int
    ) -> None: ...


class Participant(NamedTuple):
    topic: str
    subscription: str | None = None  # None: the topic itself

    def __str__(self) -> str:
        suffix = "" if self.subscription is None else f", subscription {self.subscription}"
        return f"{self.topic}{suffix}"


@dataclass(slots=True)
class Retry:
    """A participant that has not followed yet, or (given up) never can."""

    txn_id: TxnId
    participant: Participant
    attempts: int
    last_error: str


class ParticipantEnds:
    def __init__(self, participants: Participants) -> None:
        self._participants = participants
        self._retries: dict[tuple[TxnId, Participant], Retry] = {}
        self._given_up: deque[Retry] = deque(maxlen=_GIVEN_UP_KEPT)

    def retries(self) -> list[Retry]:
        return list(self._retries.values())

    def given_up(self) -> list[Retry]:
        """The latest ones."""
        return list(self._given_up)

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
            self._follow(
                txn_id,
                Participant(topic),
                partial(partition, txn_id, topic, action, low_watermark),
            )
            for topic in transaction.partitions
        ]
        ends += [
            self._follow(
                txn_id,
                Participant(topic, name),
                partial(subscription, txn_id, topic, name, action, low_watermark),
            )
            for topic, name in transaction.subscriptions
        ]
        await asyncio.gather(*ends)

    async def _follow(
        self, txn_id: TxnId, participant: Participant, end: Callable[[], Awaitable[None]]
    ) -> None:
        delay_s = _FIRST_RETRY_S
        while True:
            try:
                await end()
            except CannotParticipate as error:
                self._give_up(txn_id, participant, error)
                return
            except Exception as error:
                self._note(txn_id, participant, error)
            else:
                self._retries.pop((txn_id, participant), None)
                return
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, _LAST_RETRY_S)

    def _give_up(self, txn_id: TxnId, participant: Participant, error: Exception) -> None:
        log.error("Transaction %s ends without %s: %s", txn_id, participant, error)
        self._given_up.append(Retry(txn_id, participant, 1, str(error)))

    def _note(self, txn_id: TxnId, participant: Participant, error: Exception) -> None:
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
