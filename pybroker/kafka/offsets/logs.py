"""The offsets logs of this broker, by number: a group is in the log that the hash of its id names.

A log is created by the first group in it, and opened when one of its groups is first asked for, or
when a transaction ends in one. Its name is a topic's: who serves that topic, if it were one, serves
the groups. A transaction names it, with the group as the subscription.

A log that has failed is closed and forgotten; the next request opens its successor. To open a log
shuts out whoever has it open, so only its owner does.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final
from zlib import crc32

from managed_ledger.deletion import all_done
from managed_ledger.errors import ManagedLedgerError, StorageFull
from managed_ledger.factory import ManagedLedgerFactory
from pybroker.base.names import KAFKA_OFFSETS_PREFIX, SYSTEM_NAMESPACE, TopicName, TxnId
from pybroker.base.runtime import Pace, Tasks, do_nothing
from pybroker.broker.brokers.ownership import ALONE, NotServedHere, Ownership, check_owned
from pybroker.kafka.offsets.log import OffsetsLog
from pybroker.kafka.offsets.records import GroupRecord, RemoveRecord
from pybroker.transaction.this_turn import WouldWait
from pybroker.transaction.txn_status import TransactionOutcomes, TxnAction

_GROUPS_A_TURN: Final = 100
COUNT: Final = 16  # never changes: groups would be looked for in another log
_PREFIX: Final = f"{SYSTEM_NAMESPACE}/persistent/{KAFKA_OFFSETS_PREFIX}"

log = logging.getLogger(__name__)


def number_of(group: str) -> int:
    return crc32(group.encode()) % COUNT


def topic_at(number: int) -> TopicName:
    """The name of the log as a topic."""
    tenant, namespace = SYSTEM_NAMESPACE.split("/")
    return TopicName("persistent", tenant, namespace, f"{KAFKA_OFFSETS_PREFIX}{number}")


def topic_of_group(group: str) -> TopicName:
    return topic_at(number_of(group))


class OffsetsLogs:
    def __init__(
        self,
        factory: ManagedLedgerFactory,
        outcomes: TransactionOutcomes,
        ownership: Ownership = ALONE,
    ) -> None:
        self._factory = factory
        self._outcomes = outcomes
        self.ownership = ownership
        self._open: dict[int, OffsetsLog] = {}
        self._opening: dict[int, asyncio.Task[OffsetsLog]] = {}
        self._tasks = Tasks("Kafka's offsets")
        self._closed = False
        # Called when a log is of no use any more: it has failed, or another broker serves it.
        self.on_lost: Callable[[int, OffsetsLog], object] = do_nothing
        # Called with an open log and a topic that is deleted, before it is forgotten there.
        self.on_forgotten: Callable[[OffsetsLog, str], object] = do_nothing

    def opened(self, number: int) -> OffsetsLog | None:
        return self._open.get(number)

    def begun(self) -> list[int]:
        """The numbers of the logs that exist."""
        names = self._factory.names(_PREFIX)
        return sorted(int(each.removeprefix(_PREFIX)) for each in names)

    async def get(self, number: int) -> OffsetsLog:
        """Raises ManagedLedgerError if the log cannot be read, NotServedHere if another broker
        serves it.
        """
        if (opened := self._open.get(number)) is not None:
            return opened
        check_owned(self.ownership, topic_at(number))
        opening = self._opening.get(number)
        if opening is None:
            opening = self._tasks.start(self._open_one(number), f"open {number}")
            self._opening[number] = opening
            opening.add_done_callback(lambda _: self._opening.pop(number, None))
        return await asyncio.shield(opening)

    async def _open_one(self, number: int) -> OffsetsLog:
        opened = await OffsetsLog.open(self._factory, f"{_PREFIX}{number}", self._outcomes)
        if not self.ownership.owns(topic_at(number)):  # another broker serves it by now
            await opened.close()
            raise NotServedHere(topic_at(number))
        opened.on_failure = lambda: self._failed(number, opened)
        if opened.failure is not None:
            self._failed(number, opened)
            raise opened.failure
        self._open[number] = opened
        return opened

    def _failed(self, number: int, failed: OffsetsLog) -> None:
        if self._open.get(number) is failed:
            del self._open[number]
            log.error("%s failed, and will be read again: %s", failed.name, failed.failure)
        self.on_lost(number, failed)
        if not self._closed:
            self._tasks.start(failed.close(), f"close {number}")

    async def release(self, holds: Callable[[TopicName], bool]) -> None:
        """Close the logs that another broker will serve; `owns` must already say so."""
        if opening := [task for each, task in self._opening.items() if holds(topic_at(each))]:
            await asyncio.wait(opening)
        for number in [each for each in self._open if holds(topic_at(each))]:
            released = self._open.pop(number)
            self.on_lost(number, released)
            try:
                await released.close()
            except ManagedLedgerError as error:
                log.warning("%s was not closed cleanly: %s", released.name, error)

    # -- deletion of topics

    async def forget_topic(self, topic: str, partition: int | None) -> set[int]:
        """Forget what groups have committed of a deleted topic, or of one partition, and which
        share groups may be on the topic: one of the same name begins anew. Durable when this
        returns the numbers of this broker's logs; those of other brokers are left out. Raises
        StorageFull.
        """
        served = set()
        for number in self.begun():
            with suppress(NotServedHere):
                await self._forget_if_readable(number, topic, partition)
                served.add(number)
        return served

    async def _forget_if_readable(self, number: int, topic: str, partition: int | None) -> None:
        try:
            await self._forget_in(await self.get(number), topic, partition)
        except StorageFull:
            raise
        except ManagedLedgerError as error:
            name = topic_at(number)
            log.warning("%s keeps offsets of %s, which is deleted: %s", name, topic, error)

    async def _forget_in(self, opened: OffsetsLog, topic: str, partition: int | None) -> None:
        pace = Pace(_GROUPS_A_TURN)
        if partition is None:
            self.on_forgotten(opened, topic)
        for group in opened.state.group_ids():
            await pace.step()
            stored = opened.state.groups.get(group)
            if partition is None and stored is not None and stored.has_positions_on(topic):
                opened.append(GroupRecord(group, stored.without_topic(topic)))
                await opened.durable(group)
            removed = tuple(
                each
                for each in opened.state.places(group)
                if each.topic == topic and partition in (None, each.partition)
            )
            if removed:
                opened.append(RemoveRecord(group, removed))
                await opened.durable(group)

    # -- ends of transactions; see Participants

    def end_on_subscription(
        self, txn_id: TxnId, topic: str, group: str, action: TxnAction, not_later: bool = False
    ) -> Awaitable[object] | None:
        """Raises WouldWait with `not_later`, if the log is not open."""
        number = number_of(group)
        if topic != str(topic_at(number)):
            return None  # no group of that name can be there
        if (opened := self._open.get(number)) is not None:
            return opened.end(txn_id, group, action, not_later)
        if not self._factory.exists(f"{_PREFIX}{number}"):
            return None
        if not_later:
            raise WouldWait
        return self._end_when_open(txn_id, number, group, action)

    async def _end_when_open(
        self, txn_id: TxnId, number: int, group: str, action: TxnAction
    ) -> None:
        ending = (await self.get(number)).end(txn_id, group, action)
        if ending is not None:
            await asyncio.shield(ending)

    async def close(self) -> None:
        self._closed = True
        await self._tasks.close()
        try:
            await all_done(each.close() for each in self._open.values())
        except ManagedLedgerError as error:
            log.warning("Kafka's offsets were not closed cleanly: %s", error)
        self._open.clear()
