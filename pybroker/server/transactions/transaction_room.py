"""Limits the contents of open transactions; checked at each transactional SEND.

Excess messages are refused with the error that official clients report to the publishing
application; its transaction then cannot commit as intended, and its abort makes room.
"""

from collections.abc import Iterator

from pybroker.base.errors import NotAllowed
from pybroker.base.names import TxnId
from pybroker.broker.client_topics import ServedTopic
from pybroker.broker.persistent.publishing import PublishRun
from pybroker.broker.persistent.topic import Topic
from pybroker.broker.policies.transaction_limits import ContentLimits, Room, content_limits
from pybroker.server.connections.connection import Connection
from pybroker.server.transactions.transaction_share import is_exempt
from pybroker.transaction.buffer.open_contents import Held

_OF_POLICY = "the policy transactionLimits"
_OF_PRINCIPAL = "maxOpenTransactionMessagesPerPrincipal and maxOpenTransactionBytesPerPrincipal"


def room_for(
    session: Connection, topic: ServedTopic, txn_id: TxnId, run: PublishRun
) -> tuple[int, NotAllowed | None]:
    """How many of the run's first entries fit, and the error for the others."""
    count = len(run.entries)
    if not isinstance(topic, Topic):
        return count, None
    limits = topic.policies.made(content_limits)
    if limits is None or is_exempt(session):
        return count, None
    contents = topic.buffer.contents
    if contents.of_before:
        topic.tasks.start(topic.buffer.count_what_was_before(topic.ledger), "count")
    accounts = list(_accounts(session, topic, txn_id, limits))
    messages, size_bytes = sum(run.message_counts), sum(map(len, run.entries))
    if _excess(accounts, messages, size_bytes) is None:
        return count, None
    messages = size_bytes = 0
    for index, entry in enumerate(run.entries):
        messages, size_bytes = messages + run.message_counts[index], size_bytes + len(entry)
        if (excess := _excess(accounts, messages, size_bytes)) is not None:
            session.services.counts.refused["transactionLimits"] += 1
            return index, excess
    raise AssertionError("the whole exceeds the limit but no part does")


def _accounts(
    session: Connection, topic: Topic, txn_id: TxnId, limits: ContentLimits
) -> Iterator[tuple[str, Room, Held]]:
    held, namespace = session.services.topics.open_contents, topic.name.namespace_name
    yield f"{topic.name} ({_OF_POLICY}, PerTopic)", limits.of_topic, topic.buffer.contents.total
    yield f"{namespace} ({_OF_POLICY})", limits.of_namespace, held.in_namespace(namespace)
    owner = session.services.coordinators.owner_of(txn_id)
    if owner is not None:
        where = f"the name of {owner} ({_OF_PRINCIPAL})"
        yield where, limits.of_owner, held.of_owner(owner)


def _excess(
    accounts: list[tuple[str, Room, Held]], messages: int, size_bytes: int
) -> NotAllowed | None:
    for where, room, held in accounts:
        if (beyond := room.excess(held, messages, size_bytes)) is not None:
            return NotAllowed(
                f"With this message, open transactions in {where} would hold {beyond}: end some, "
                "or wait until they time out, then run this transaction again"
            )
    return None
