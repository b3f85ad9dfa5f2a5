"""Live and recently ended transactions as JSON, and a walk over all live ones that concurrent
requests share.

    tally   what a transaction holds and blocks on all topics: collected by walking the topics
    row     a live transaction and its tally
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final, NamedTuple

from pybroker.admin.stats.blocking import PARTICIPANTS_SHOWN, blocked_entries
from pybroker.base.names import TxnId
from pybroker.base.runtime import Pace
from pybroker.broker.persistent.topic import Topic
from pybroker.broker.topics import Topics
from pybroker.transaction.buffer.open_contents import Held
from pybroker.transaction.coordinator.coordinators import Coordinators
from pybroker.transaction.coordinator.ends.ended_transactions import EndedTransaction
from pybroker.transaction.coordinator.ends.timeline import DecidedEnd
from pybroker.transaction.coordinator.live_transaction import NO_TIMEOUT_MS, TransactionMetadata
from pybroker.transaction.txn_status import UNDECIDED, TxnStatus

Stats = dict[str, Any]

_LOOKED_AT_A_TURN: Final = 500
_MANY: Final = 1000  # with this many transactions, the result of a walk is kept for a while
_KEPT_S: Final = 1.0
_NEVER_MS: Final = 2**63


class Tally:
    __slots__ = ("blocked_entries", "blocked_topics", "blocking_since_ms", "messages", "size_bytes")

    def __init__(self) -> None:
        self.messages = self.size_bytes = 0
        self.blocked_entries = self.blocked_topics = 0
        self.blocking_since_ms: int | None = None

    def holds(self, held: Held) -> None:
        self.messages += held.messages
        self.size_bytes += held.size_bytes

    def blocks_on(self, topic: Topic, txn_id: TxnId) -> None:
        oldest = topic.buffer.oldest()
        if oldest is None or oldest.txn_id != txn_id or not (entries := blocked_entries(topic)):
            return
        self.blocked_entries += entries
        self.blocked_topics += 1
        since_ms = oldest.opened_at_ms
        self.blocking_since_ms = min(since_ms, self.blocking_since_ms or since_ms)


_NOTHING_HELD: Final = Tally()


class Row(NamedTuple):
    transaction: TransactionMetadata
    tally: Tally


class Walk(NamedTuple):
    rows: list[Row]  # unordered
    remote: dict[TxnId, Tally]  # of transactions of other brokers' coordinators


class LiveTransactions:
    """`walked` returns all live transactions; if there are many, it is up to a second old."""

    def __init__(self, topics: Topics, coordinators: Coordinators) -> None:
        self._topics = topics
        self._coordinators = coordinators
        self._newest: Walk | None = None
        self._walking: asyncio.Task[Walk] | None = None

    async def walked(self) -> Walk:
        if self._newest is not None:
            return self._newest
        if self._walking is None:
            self._walking = asyncio.create_task(self._walk(), name="live transactions")
            self._walking.add_done_callback(self._walked)
        return await asyncio.shield(self._walking)

    def _walked(self, walking: asyncio.Task[Walk]) -> None:
        self._walking = None
        if walking.cancelled() or walking.exception() is not None:
            return
        if len(walking.result().rows) >= _MANY:
            self._newest = walking.result()
            asyncio.get_running_loop().call_later(_KEPT_S, self._forget)

    def _forget(self) -> None:
        self._newest = None

    async def _walk(self) -> Walk:
        pace, rows = Pace(_LOOKED_AT_A_TURN), list[Row]()
        tallies = await self._tallies(pace)
        for coordinator in self._coordinators.served():
            for transaction in coordinator.live():
                rows.append(Row(transaction, tallies.pop(transaction.txn_id, _NOTHING_HELD)))
                await pace.step()
        here = {coordinator.coordinator_id for coordinator in self._coordinators.served()}
        return Walk(rows, {each: tally for each, tally in tallies.items() if each.most not in here})

    async def _tallies(self, pace: Pace) -> dict[TxnId, Tally]:
        found: dict[TxnId, Tally] = {}
        for topic in self._topics.loaded():
            await pace.step()
            if not topic.buffer.has_open:
                continue
            for txn_id, held in topic.buffer.contents.transactions():
                found.setdefault(txn_id, Tally()).holds(held)
                await pace.step()
            if (oldest := topic.buffer.oldest()) is not None:
                found.setdefault(oldest.txn_id, Tally()).blocks_on(topic, oldest.txn_id)
        return found


# -- filtering and sorting


class Wanted(NamedTuple):
    """A filter. `owner` and `topic` match parts of names."""

    status: TxnStatus | None = None
    topic: str = ""
    owner: str = ""
    opened_before_ms: int | None = None
    only_of: str | None = None  # only this principal's transactions

    def has(self, transaction: TransactionMetadata, status: TxnStatus) -> bool:
        if self.only_of is not None and transaction.owner != self.only_of:
            return False
        if self.status not in (None, status):
            return False
        if self.opened_before_ms is not None and transaction.opened_at_ms > self.opened_before_ms:
            return False
        if self.owner and self.owner not in (transaction.owner or ""):
            return False
        return not self.topic or any(self.topic in name for name in _topics_of(transaction))


def _topics_of(transaction: TransactionMetadata) -> Iterator[str]:
    yield from transaction.partitions
    for topic, _ in transaction.subscriptions:
        yield topic


def _left_ms(row: Row) -> int:
    return row.transaction.opened_at_ms + row.transaction.timeout_ms


def _prepared_ms(row: Row) -> int:
    """Those that are not prepared come last."""
    return _NEVER_MS if row.transaction.prepared is None else row.transaction.prepared.at_ms


# The keys by which brokers sort rows, also when they merge their lists: a number, a text or a list
# of numbers.
SORTS: Final[dict[str, Callable[[Row], Any]]] = {
    "age": lambda row: -row.transaction.opened_at_ms,
    "left": _left_ms,
    "blocked": lambda row: row.tally.blocked_entries,
    "messages": lambda row: row.tally.messages,
    "bytes": lambda row: row.tally.size_bytes,
    "id": lambda row: list(row.transaction.txn_id),
    "prepared": lambda row: -_prepared_ms(row),
    "owner": lambda row: row.transaction.owner or "",
    "state": lambda row: row.transaction.status.value,
    "participants": lambda row: (
        len(row.transaction.partitions) + len(row.transaction.subscriptions)
    ),
}


# Sort keys that are sums over several brokers, and their fields in `live_one`.
SUMMED: Final = {"blocked": "blockedEntries", "messages": "messages", "bytes": "bytes"}


async def chosen(rows: Iterable[Row], wanted: Wanted) -> list[Row]:
    pace, found = Pace(_LOOKED_AT_A_TURN), list[Row]()
    for row in rows:
        await pace.step()
        if wanted.has(row.transaction, row.transaction.status):
            found.append(row)
    await pace.turn()
    return found


# -- as JSON


def described_tally(tally: Tally, now_ms: int) -> Stats:
    since_ms = tally.blocking_since_ms
    return {
        "messages": tally.messages,
        "bytes": tally.size_bytes,
        "blockedEntries": tally.blocked_entries,
        "blockedTopics": tally.blocked_topics,
        "blockingMs": None if since_ms is None else max(0, now_ms - since_ms),
    }


def add_tally(one: Stats, more: Stats) -> None:
    """Adds to the result of `live_one` what the transaction holds and blocks on another broker."""
    for name in ("messages", "bytes", "blockedEntries", "blockedTopics"):
        one[name] += more[name]
    blocking_ms = [each for each in (one["blockingMs"], more["blockingMs"]) if each is not None]
    one["blockingMs"] = max(blocking_ms, default=None)


def live_one(row: Row, now_ms: int) -> Stats:
    transaction, tally = row
    may_time_out = transaction.status is TxnStatus.OPEN and transaction.promised_to is None
    return {
        **_of(transaction, transaction.status),
        "ageMs": max(0, now_ms - transaction.opened_at_ms),
        "timeLeftMs": transaction.left_ms(now_ms) if may_time_out else None,
        "topicCount": len(transaction.partitions),
        "subscriptionCount": len(transaction.subscriptions),
        **described_tally(tally, now_ms),
        "endTimestamp": None,
        "abortReason": "",
    }


def ended_one(ended: EndedTransaction) -> Stats:
    transaction = ended.transaction
    return {
        **_of(transaction, ended.status),
        "ageMs": max(0, ended.ended_at_ms - transaction.opened_at_ms),
        "timeLeftMs": None,
        "topicCount": ended.topic_count,
        "subscriptionCount": ended.subscription_count,
        **dict.fromkeys(("messages", "bytes", "blockedEntries", "blockedTopics"), 0),
        "blockingMs": None,
        "endTimestamp": ended.ended_at_ms,
        "abortReason": ended.reason,
    }


def _of(transaction: TransactionMetadata, status: TxnStatus) -> Stats:
    session, end = transaction.session, transaction.end or DecidedEnd()
    decided = status not in UNDECIDED
    leader, prepared = transaction.promised_to, transaction.prepared
    return {
        "txnId": str(transaction.txn_id),
        "status": status.name,
        "owner": transaction.owner,
        "clientAddress": None if transaction.client is None else transaction.client[0],
        "clientVersion": None if transaction.client is None else transaction.client[1],
        "label": transaction.label,
        "openTimestamp": transaction.opened_at_ms,
        "timeoutMs": 0 if transaction.timeout_ms == NO_TIMEOUT_MS else transaction.timeout_ms,
        "preparedTimestamp": None if prepared is None else prepared.at_ms,
        "preparedName": None if prepared is None else prepared.name,
        "decidedTimestamp": end.at_ms if decided else None,
        "decidedBy": end.by.value if decided else None,
        "topics": list(islice(transaction.partitions, PARTICIPANTS_SHOWN)),
        "subscriptions": [
            {"topic": topic, "subscription": subscription}
            for topic, subscription in islice(transaction.subscriptions, PARTICIPANTS_SHOWN)
        ],
        "transactionalId": None if session is None else session.id.name,
        "epoch": None if session is None else session.epoch,
        "namespace": transaction.namespace,
        "commitsWith": None if leader is None else str(leader),
        "group": [str(each) for each in islice(sorted(transaction.group), PARTICIPANTS_SHOWN)],
    }
