"""Checks that topics and subscriptions agree with the coordinators' decisions, and vice versa.

A marker records how a transaction ended on a topic. It must match the coordinator's decision, as
long as the coordinator knows the transaction. Messages without a marker must belong to a
transaction that will still end there.
"""

from collections.abc import Iterator
from typing import Final

from managed_ledger.findings import Finding, note
from managed_ledger.ledger import ManagedLedger
from managed_ledger.position import EARLIEST, LATEST, Position
from pybroker.base.names import TopicName, TxnId
from pybroker.broker.persistent.topic import Topic
from pybroker.broker.topics import Topics
from pybroker.transaction.buffer.transactional_entries import UntaggedSpan, transactional_entries
from pybroker.transaction.coordinator.coordinators import Coordinators
from pybroker.transaction.txn_status import TxnAction, TxnStatus

_READ_ENTRIES: Final = 10_000
_READ_BYTES: Final = 4 * 1024 * 1024
_ADVICE: Final = "Restore the data directory from a backup, and report this: it is a defect."

# The coordinator's states that match an end on a topic; None: the transaction is unknown.
_FITS: Final = {
    TxnAction.COMMIT: {TxnStatus.COMMITTING, TxnStatus.COMMITTED, None},
    TxnAction.ABORT: {TxnStatus.ABORTING, TxnStatus.ABORTED, None},
}


class Decisions:
    def __init__(self, coordinators: Coordinators) -> None:
        self._coordinators = coordinators
        self._seen: set[TxnId] = set()

    @property
    def transactions(self) -> int:
        return len(self._seen)

    async def of_topic(self, topics: Topics, name: TopicName) -> list[Finding]:
        """Checks a topic and its subscriptions. Raises ManagedLedgerError or PulsarError if the
        topic cannot be loaded or read.
        """
        topic = await topics.get(name)
        if not isinstance(topic, Topic):
            return []
        found = list(await self._of_log(topic.ledger, str(name)))
        for each in topic.buffer.ongoing():
            found += self._open(each.txn_id, str(name))
        for subscription in list(topic.subscriptions.values()):
            pending = await subscription.replayed()
            for held in () if pending is None else pending.stats():
                found += self._holding(held.txn_id, str(name), subscription.name)
        return found

    async def _of_log(self, ledger: ManagedLedger, name: str) -> list[Finding]:
        found: list[Finding] = []
        position, untagged = EARLIEST, UntaggedSpan.of(ledger.properties)
        while run := await ledger.read_whole(position, LATEST, _READ_ENTRIES, _READ_BYTES):
            for txn_id, action, first, _ in transactional_entries(run, untagged):
                self._seen.add(txn_id)
                if action is not None:
                    found += self._marker(txn_id, action, name, first)
            position = Position(run.ledger_id, run.first_entry_id + len(run.entries))
        return found

    def _marker(
        self, txn_id: TxnId, action: TxnAction, name: str, at: Position
    ) -> Iterator[Finding]:
        status = self._coordinators.status(txn_id)
        if status not in _FITS[action]:
            done = "committed" if action is TxnAction.COMMIT else "aborted"
            what = f"transaction {txn_id} was {done} here, at {at}, and is {status_text(status)}"
            yield Finding(name, what, "", _ADVICE)

    def _open(self, txn_id: TxnId, name: str) -> Iterator[Finding]:
        yield from self._not_ended(txn_id, name, self._coordinators.has_partition(txn_id, name))

    def _holding(self, txn_id: TxnId, name: str, subscription: str) -> Iterator[Finding]:
        self._seen.add(txn_id)
        takes_part = self._coordinators.has_subscription(txn_id, name, subscription)
        yield from self._not_ended(txn_id, f"subscription {subscription} of {name}", takes_part)

    def _not_ended(self, txn_id: TxnId, where: str, takes_part: bool) -> Iterator[Finding]:
        """The only cause is a client that did not add the participant."""
        status = self._coordinators.status(txn_id)
        if not takes_part:
            what = (
                f"has not ended here, is {status_text(status)}, and does not list this participant"
            )
            yield note(where, f"transaction {txn_id} {what}: it is settled after its timeout")


def status_text(status: TxnStatus | None) -> str:
    return "unknown to its coordinator" if status is None else f"{status.name} at its coordinator"
