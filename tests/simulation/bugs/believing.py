"""Wrong trust in clients, and confused names."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch
from urllib.parse import quote

from managed_ledger.position import EARLIEST, LATEST
from pybroker.base.names import PENDING_ACK_LOGS, TopicName
from pybroker.broker.deletion import topic_storage
from pybroker.broker.subscriptions import transactional_acks
from pybroker.broker.transactions import txn_participants
from pybroker.server.transactions import on_transaction
from pybroker.transaction.buffer.transactional_entries import UntaggedSpan
from pybroker.transaction.pending_acks import store


async def nothing(*_: Any) -> None:
    """Skips the step."""


@contextmanager
def pending_ack_logs_share_a_name() -> Iterator[None]:
    """Topic and subscription are joined by a dash that either of them may contain."""

    def joined(topic: TopicName, subscription: str) -> str:
        both = f"{topic.ledger_name}-{subscription}"
        return f"{PENDING_ACK_LOGS}{quote(both, safe='')}/log"

    with ExitStack() as patches:
        for module in (topic_storage, transactional_acks, store):
            patches.enter_context(patch.object(module, "pending_ack_log", joined))
        strays = patch.object(topic_storage.TopicStorage, "remove_strays", nothing)
        patches.enter_context(strays)
        yield


@contextmanager
def metadata_believed_at_recovery() -> Iterator[None]:
    """Plain messages are believed to belong to a transaction, or to be its marker, if they claim
    so.
    """

    def of(properties: Any) -> UntaggedSpan:
        return UntaggedSpan(EARLIEST, LATEST)

    with patch.object(UntaggedSpan, "of", of):
        yield


@contextmanager
def end_believed_from_anybody() -> Iterator[None]:
    """END_TXN_ON_PARTITION and END_TXN_ON_SUBSCRIPTION do not check the decision."""
    with patch.object(on_transaction, "require_decided", lambda *_: False):
        yield


@contextmanager
def impossible_participants() -> Iterator[None]:
    """Impossible participants may be added, and are asked forever to end."""

    def added(_: Any, topic: str) -> str:
        return str(TopicName.parse(topic))

    with (
        patch.object(on_transaction, "partition_to_add", added),
        patch.object(txn_participants, "CannotParticipate", RuntimeError),
    ):
        yield


BUGS = {
    "pending-ack-logs-share-a-name": pending_ack_logs_share_a_name,
    "metadata-believed-at-recovery": metadata_believed_at_recovery,
    "end-believed-from-anybody": end_believed_from_anybody,
    "impossible-participants": impossible_participants,
}
