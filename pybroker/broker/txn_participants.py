"""Ends transactions on the topics and subscriptions of this broker, for the coordinators."""

from typing import Protocol

from pybroker.broker.topic import Topic
from pybroker.names import TxnId
from pybroker.transaction.txn_status import TxnAction


class LoadsTopics(Protocol):
    async def get(self, name: str) -> Topic | None:
        """Loaded if it was not; None: it does not exist."""
        ...


class LocalParticipants:
    """Implements transaction.participants.Participants."""

    def __init__(self, topics: LoadsTopics) -> None:
        self._topics = topics

    async def end_on_partition(
        self, txn_id: TxnId, topic: str, action: TxnAction, low_watermark: int
    ) -> None:
        """A topic that was deleted took its messages along: nothing is left to end."""
        loaded = await self._topics.get(topic)
        if loaded is not None:
            await loaded.end_transaction(txn_id, action, low_watermark)

    async def end_on_subscription(
        self, txn_id: TxnId, topic: str, subscription: str, action: TxnAction, low_watermark: int
    ) -> None:
        loaded = await self._topics.get(topic)
        found = None if loaded is None else loaded.subscriptions.get(subscription)
        if found is not None:
            await found.end_transaction(txn_id, action, low_watermark)
