"""Hands a cluster over to Apache Pulsar's brokers, without losing or duplicating any message.

    0  scalable topics prevent it
    1  decided transactions are completed; open ones are waited for, or aborted
    2  every topic with aborted messages gets a snapshot that names the aborted transactions, and no
       system topic keeps a cursor of deduplication
    3  every coordinator's log is replaced by its live state, which is only the ids used
    4  the number of coordinators is recorded where Apache's brokers look for it
    5  topics, cursors and ledgers are closed

It may be interrupted anywhere and repeated: each step finds the results of earlier attempts.
"""

import asyncio
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from managed_ledger.errors import ManagedLedgerError
from pybroker.base.names import COORDINATOR_ASSIGN, SEGMENT, SNAPSHOT_TOPIC, TopicName
from pybroker.base.runtime import Clock
from pybroker.broker.deduplication.snapshot import forget, ledgers_with_snapshots
from pybroker.broker.persistent.entry_metadata import OFFSETS
from pybroker.broker.persistent.topic import Topic
from pybroker.handing_over.snapshot import (
    SCHEMA,
    Hidden,
    hidden_transactions,
    snapshot,
    snapshot_entry,
)
from pybroker.process.app import Broker
from pybroker.transaction.buffer.transactional_entries import SINCE
from pybroker.transaction.coordinator.coordinator import TransactionCoordinator
from pybroker.transaction.coordinator.live_transaction import TransactionMetadata
from pybroker.transaction.txn_status import TxnStatus

_LOOK_AGAIN_S: Final = 0.1
_SETTLE_S: Final = 60.0
_NAMED: Final = 10  # in a message
_TOPICS_AT_ONCE: Final = 8
_REASON: Final = "it was open when the cluster was handed over"


class NotHandedOver(ManagedLedgerError):
    """The message says what prevents the hand-over, and what to do."""


@dataclass(slots=True)
class Summary:
    coordinators: int = 0
    aborted: int = 0  # transactions that were open
    topics: int = 0  # those with transactions
    snapshots: int = 0
    hidden: int = 0  # aborted transactions that the snapshots name
    with_policies: list[TopicName] = field(default_factory=list)  # with their own
    of_kafka: list[TopicName] = field(default_factory=list)  # its clients have used them
    problems: list[str] = field(default_factory=list)


class HandOver:
    """`broker` has started, serves no clients and is alone. The caller stops it afterwards."""

    def __init__(
        self,
        broker: Broker,
        clock: Clock,
        tell: Callable[[str], None],
        max_message_size: int,
    ) -> None:
        """`tell` is called with a line of progress now and then; `max_message_size` is in bytes."""
        self._broker = broker
        self._clock = clock
        self._tell = tell
        self._max_message_size = max_message_size
        self._done = Summary()

    async def run(self, wait_s: float, abort_open: bool) -> Summary:
        """Open transactions have `wait_s` to time out. Raises NotHandedOver, ManagedLedgerError."""
        self._check_topics()
        await self._end_transactions(wait_s, abort_open)
        await self._write_snapshots()
        await self._forget_deduplication()
        if self._done.problems:
            raise NotHandedOver("; ".join(self._done.problems))
        for coordinator in self._broker.coordinators.served():
            await coordinator.replace_past()
            self._done.coordinators += 1
        await self._broker.topics.tenants.set_partitions(
            COORDINATOR_ASSIGN, self._broker.coordinators.count
        )
        self._done.with_policies = self._broker.topics.policies.topics_with_own()
        return self._done

    def _check_topics(self) -> None:
        """Raises NotHandedOver if there are scalable topics."""
        ledgers = self._broker.ledgers
        for each in ledgers.names():
            if each.split("/")[2:3] == [SEGMENT]:
                raise NotHandedOver(
                    "Apache Pulsar does not know how scalable topics are stored here: copy the "
                    f"messages of {TopicName.of_ledger(each)} and the others to new topics, and "
                    "delete the scalable ones"
                )
            if OFFSETS in ledgers.properties(each):
                self._done.of_kafka.append(TopicName.of_ledger(each))

    # Transactions

    async def _end_transactions(self, wait_s: float, abort_open: bool) -> None:
        until_s = self._clock.monotonic_s() + wait_s
        settled_by_s = until_s + _SETTLE_S
        told = -1
        while left := self._live():
            prepared = [each for _, each in left if each.status is TxnStatus.PREPARED]
            if prepared:  # Apache's brokers would time them out
                raise NotHandedOver(_why_prepared(prepared))
            still_open = [each for _, each in left if each.status is TxnStatus.OPEN]
            if abort_open:
                self._abort(left)
            if len(left) != told:
                told = len(left)
                self._tell(f"{told} transactions to end, {len(still_open)} of them open")
            now_s = self._clock.monotonic_s()
            if still_open and now_s >= until_s and not abort_open:
                raise NotHandedOver(self._why_open(still_open))
            if now_s >= settled_by_s:
                raise NotHandedOver(self._why_undone(left))
            await asyncio.sleep(_LOOK_AGAIN_S)

    def _live(self) -> list[tuple[TransactionCoordinator, TransactionMetadata]]:
        coordinators = self._broker.coordinators
        if not coordinators.are_all_open:
            raise NotHandedOver("a coordinator failed: see the log, then repeat the command")
        return [(each, live) for each in coordinators.served() for live in each.live()]

    def _abort(self, left: list[tuple[TransactionCoordinator, TransactionMetadata]]) -> None:
        for coordinator, each in left:
            if each.status is TxnStatus.OPEN and each.promised_to is None:
                coordinator.abort(each.txn_id, _REASON)
                self._done.aborted += 1

    def _why_open(self, still_open: list[TransactionMetadata]) -> str:
        now_ms = self._clock.now_ms()
        said = []
        for each in still_open[:_NAMED]:
            left_s = max(0, each.opened_at_ms + each.timeout_ms - now_ms) / 1000
            owner = "" if each.owner is None else f" of {each.owner}"
            said.append(f"{each.txn_id}{owner}, which times out in {left_s:.0f} s")
        more = f" and {len(still_open) - _NAMED} more" if len(still_open) > _NAMED else ""
        return (
            f"{len(still_open)} transactions are open: {'; '.join(said)}{more}. Wait longer "
            "(--wait), abort them (--abort-open), or start the brokers again and let their "
            "clients end them"
        )

    def _why_undone(self, left: list[tuple[TransactionCoordinator, TransactionMetadata]]) -> str:
        said = []
        for coordinator, each in left[:_NAMED]:
            errors = {retry.last_error for retry in coordinator.retries_of(each.txn_id)}
            said.append(f"{each.txn_id} is {each.status.name}: {'; '.join(errors) or 'no answer'}")
        return f"{len(left)} transactions cannot be ended: {', '.join(said)}"

    # Topics

    async def _write_snapshots(self) -> None:
        names = [
            name
            for name in map(_topic_of, self._broker.ledgers.names())
            if name is not None and self._may_have_transactions(name)
        ]
        for at in range(0, len(names), _TOPICS_AT_ONCE):
            await asyncio.gather(*map(self._hand_over, names[at : at + _TOPICS_AT_ONCE]))
            done = min(at + _TOPICS_AT_ONCE, len(names))
            self._tell(f"{done} of {len(names)} topics with transactions")

    def _may_have_transactions(self, name: TopicName) -> bool:
        return SINCE in self._broker.ledgers.properties(name.ledger_name)

    async def _hand_over(self, name: TopicName) -> None:
        topic = await self._broker.topics.get(name)
        if topic is None:
            return  # it is being deleted
        try:
            await self._settled(topic)
            hidden = await hidden_transactions(topic.ledger, topic.buffer.hidden)
            self._done.topics += 1
            if hidden.half_copied:
                self._done.problems.append(_why_half_copied(name, hidden))
            elif hidden.aborted:
                await self._write(topic, hidden)
        finally:
            await self._broker.topics.unload(name)

    async def _settled(self, topic: Topic) -> None:
        """Wait until the topic has ended transactions that were left open, after asking for their
        outcomes. Raises NotHandedOver.
        """
        until_s = self._clock.monotonic_s() + _SETTLE_S
        while topic.buffer.has_open:
            if self._clock.monotonic_s() >= until_s:
                held = ", ".join(str(each.txn_id) for each in topic.buffer.ongoing(_NAMED))
                raise NotHandedOver(
                    f"{topic.name} still holds transactions whose outcome is not known: {held}; "
                    "see the log, then repeat the command"
                )
            await asyncio.sleep(_LOOK_AGAIN_S)

    async def _write(self, topic: Topic, hidden: Hidden) -> None:
        payload = snapshot(topic.name, topic.ledger.last_confirmed, hidden.aborted)
        limit = self._max_message_size
        if len(payload) > limit:
            self._done.problems.append(
                f"{topic.name} hides {len(hidden.aborted)} aborted transactions, more than a "
                f"snapshot of {limit} bytes can name: let retention delete the oldest of them"
            )
            return
        into = await self._snapshot_topic(topic.name)
        version = await self._broker.topics.schemas.add(into, SCHEMA, by_admin=True)
        ledger = await self._broker.ledgers.open(into.ledger_name)
        now_ms = self._clock.now_ms()
        await ledger.append_one(snapshot_entry(topic.name, payload, version or 0, now_ms))
        self._done.snapshots += 1
        self._done.hidden += len(hidden.aborted)

    async def _forget_deduplication(self) -> None:
        """Of system topics, which earlier versions deduplicated like any other topic. Apache's
        brokers trim what deduplication's cursor has passed before they read the snapshots there.
        """
        metadata = self._broker.metadata
        for ledger_name in ledgers_with_snapshots(metadata):
            if TopicName.of_ledger(ledger_name).system:
                await forget(metadata, ledger_name)

    async def _snapshot_topic(self, name: TopicName) -> TopicName:
        whole = TopicName("persistent", name.tenant, name.namespace, SNAPSHOT_TOPIC)
        partitions = self._broker.topics.tenants.partitions(whole)
        into = whole.partition_at(_java_hash(str(name)) % partitions) if partitions else whole
        await self._broker.topics.get(into, create=True)
        return into


def _topic_of(ledger_name: str) -> TopicName | None:
    parts = ledger_name.split("/")
    if len(parts) != 4 or parts[2] != "persistent":
        return None
    name = TopicName.of_ledger(ledger_name)
    return None if name.internal else name


def _why_prepared(prepared: list[TransactionMetadata]) -> str:
    said = [
        f"{each.txn_id}" + ("" if each.owner is None else f" of {each.owner}")
        for each in prepared[:_NAMED]
    ]
    more = f" and {len(prepared) - _NAMED} more" if len(prepared) > _NAMED else ""
    return (
        f"{len(prepared)} transactions are prepared, which Apache Pulsar does not know and would "
        f"abort: {', '.join(said)}{more}. Start the brokers again, and commit or abort them "
        "(pybroker transactions prepared)"
    )


def _why_half_copied(name: TopicName, hidden: Hidden) -> str:
    named = ", ".join(map(str, hidden.half_copied[:_NAMED]))
    return (
        f"{name} holds parts of committed transactions twice ({named}), as commit order leaves "
        "them after a failure; Apache's broker would deliver both: consume the topic and let "
        "retention delete these ledgers first"
    )


def _java_hash(text: str) -> int:
    """The hash by which the Java client chooses a key's partition."""
    value = 0
    for unit in array("H", text.encode("utf-16-le")):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value & 0x7FFFFFFF
