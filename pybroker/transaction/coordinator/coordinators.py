"""All transaction coordinators of this broker, by id, and their knowledge of outcomes.

A coordinator's log is created at its first use. At start, every coordinator of this broker that has
a log is opened, so decided transactions complete and open ones time out without any client.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

from managed_ledger.deletion import all_done
from managed_ledger.errors import ManagedLedgerError
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.storage.backend import MetadataStore
from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.errors import ServiceNotReady, TransactionCoordinatorNotFound
from pybroker.base.names import TopicName, TxnId
from pybroker.base.runtime import Clock, Tasks
from pybroker.transaction.coordinator.coordinator import TransactionCoordinator
from pybroker.transaction.coordinator.coordinator_limits import CoordinatorLimits
from pybroker.transaction.coordinator.ends.ended_transactions import EndedTransactions
from pybroker.transaction.coordinator.ends.participants import Participants
from pybroker.transaction.coordinator.group_commits.groups import Groups, RemoteGroups
from pybroker.transaction.coordinator.joining import Joining
from pybroker.transaction.coordinator.live_transaction import TransactionMetadata, count_from
from pybroker.transaction.coordinator.log.transaction_log import TransactionLog, log_name
from pybroker.transaction.coordinator.namespaces import Admission
from pybroker.transaction.coordinator.remote_coordinators import RemoteCoordinators
from pybroker.transaction.coordinator.sessions.remote_fencing import Letting, RemoteFencing
from pybroker.transaction.coordinator.sessions.transactional_ids import TransactionalIds
from pybroker.transaction.txn_status import (
    NOTHING_BEGUN,
    TransactionOutcomes,
    TxnStatus,
    coordinator_not_ready,
)

_REOPEN_PAUSE_S: Final = 1.0
OpenLog = Callable[[int, ManagedLedgerFactory, MetadataStore], Awaitable[TransactionLog]]

log = logging.getLogger(__name__)


class Coordinators:
    """Implements TransactionOutcomes. Serves nothing before `recover_all`."""

    def __init__(
        self,
        factory: ManagedLedgerFactory,
        metadata: MetadataStore,
        clock: Clock,
        config: BrokerConfig,
    ) -> None:
        self._factory = factory
        self._metadata = metadata
        self._clock = clock
        # Open coordinators, and those of them that accept commands. The others are still continuing
        # the ends that were decided before they were opened.
        self._served: dict[int, TransactionCoordinator] = {}
        self._resumed: dict[int, TransactionCoordinator] = {}
        self.ended = EndedTransactions(clock)
        self.admission = Admission(self._served)
        self.joining = Joining(self._served)
        self._limits = CoordinatorLimits(
            config.max_active_transactions_per_coordinator,
            config.max_transaction_timeout_ms,
            config.transaction_outcome_retention_ms,
            config.transaction_metadata_snapshot_entries,
            config.max_participants_per_transaction,
            self.admission.admit,
            self.joining.note_spanning,
            max_prepared_age_ms=config.prepared_transaction_max_age_ms,
            abort_old_prepared=config.abort_prepared_transactions_after_max_age,
        )
        self.count = config.transaction_coordinators  # the admin API may raise it
        self.ids = TransactionalIds(metadata, clock, config)
        self._participants: Participants | None = None
        self._opening: dict[int, asyncio.Task[TransactionCoordinator]] = {}
        # Failed coordinators whose successor is not open yet: the latest one of each id, because a
        # successor may fail at once.
        self._replacing: dict[int, TransactionCoordinator] = {}
        self.open_log: OpenLog = TransactionLog.open
        self._tasks = Tasks("transaction coordinators")
        self.groups = Groups(self.get, self._served, self._tasks)
        self._remote: RemoteCoordinators | None = None
        self.remote_fencing: RemoteFencing | None = None  # only with several brokers
        self.letting: Letting | None = None

    async def recover_all(self, participants: Participants) -> None:
        """Start serving: open every coordinator of this broker that has a log."""
        self._participants = participants
        self.ids.load()
        here = filter(self._serves, self.begun_ids())
        await asyncio.gather(*map(self._open_once, here))

    def begun_ids(self) -> list[int]:
        """The ids of all coordinators that have a log, on any broker."""
        prefix = log_name("")
        return [int(name.removeprefix(prefix)) for name in self._factory.names(prefix)]

    # Several brokers

    def share_with(
        self, remote: RemoteCoordinators, groups: RemoteGroups, fencing: RemoteFencing
    ) -> None:
        """Other brokers serve some coordinators. Call it before `recover_all`."""
        self._remote = self.joining.remote = remote
        self._limits = replace(self._limits, replayed=count_from)
        self.joining.note_spanning()
        self.groups.share_with(groups)
        self.remote_fencing = fencing

    @property
    def are_shared(self) -> bool:
        """Whether other brokers may serve some coordinators."""
        return self._remote is not None

    def remote(self, coordinator_id: int) -> RemoteCoordinators | None:
        """The known outcomes of this coordinator's transactions, if another broker serves it."""
        here = coordinator_id in self._served or self._serves(coordinator_id)
        return None if here else self._remote

    def may_open(self, coordinator_id: int) -> bool:
        """Whether this broker may be opening the coordinator, and so knows nothing about it yet."""
        return self._remote is not None and 0 <= coordinator_id < self.count

    def _serves(self, coordinator_id: int) -> bool:
        return self._remote is None or self._remote.serves(coordinator_id)

    def take(self, coordinator_id: int) -> None:
        """This broker serves the coordinator from now on. If it has begun transactions, it opens
        at once: decided ones are completed, and open ones time out.
        """
        if self._participants is not None and self._factory.exists(log_name(coordinator_id)):
            self._tasks.start(self._take(coordinator_id), f"take {coordinator_id}")

    async def _take(self, coordinator_id: int) -> None:
        while self._participants is not None and self._serves(coordinator_id):
            try:
                await self._open_once(coordinator_id)
                return
            except Exception as error:
                _log_not_open(coordinator_id, error)
            await asyncio.sleep(_REOPEN_PAUSE_S)

    async def release(self, coordinator_id: int) -> None:
        """Close a coordinator that another broker will serve; `serves` must already say so.
        Unfinished ends continue there. Waiting commands fail with TransactionCoordinatorNotFound.
        """
        if (opening := self._opening.get(coordinator_id)) is not None:
            await asyncio.wait([opening])
        self._replacing.pop(coordinator_id, None)
        self._resumed.pop(coordinator_id, None)
        coordinator = self._served.pop(coordinator_id, None)
        if coordinator is not None:
            await coordinator.close()

    def serving(self, coordinator_id: int) -> TransactionCoordinator | None:
        """The coordinator if it accepts commands; otherwise `get` may open it."""
        return self._resumed.get(coordinator_id)

    async def get(self, coordinator_id: int) -> TransactionCoordinator:
        """The coordinator, opened if necessary. Raises TransactionCoordinatorNotFound."""
        coordinator = self._resumed.get(coordinator_id)
        if coordinator is not None:
            return coordinator
        begins = self._participants is not None and coordinator_id not in self._replacing
        begins = begins and self._serves(coordinator_id)
        if not begins or not 0 <= coordinator_id < self.count:
            raise coordinator_not_ready(coordinator_id)
        try:
            return await self._open_once(coordinator_id)
        except ManagedLedgerError as error:  # its storage may be available later
            raise TransactionCoordinatorNotFound(
                f"Transaction coordinator {coordinator_id} cannot be opened now, try again: {error}"
            ) from error

    def begun(self, txn_id: TxnId) -> TransactionMetadata | None:
        """A live transaction; while its coordinator is being reopened, in its last known state."""
        known = self._served.get(txn_id.most) or self._replacing.get(txn_id.most)
        return None if known is None else known.metadata(txn_id)

    def owner_of(self, txn_id: TxnId) -> str | None:
        """The owner of a live transaction; None if it has no owner."""
        if (remote := self.remote(txn_id.most)) is not None:
            return remote.owner_of(txn_id)
        transaction = self.begun(txn_id)
        return None if transaction is None else transaction.owner

    def ever_owner_of(self, txn_id: TxnId) -> str | None:
        """Like `owner_of`, as long as the outcome of an ended transaction is known."""
        if (remote := self.remote(txn_id.most)) is not None:
            return remote.owner_of(txn_id)
        known = self._served.get(txn_id.most) or self._replacing.get(txn_id.most)
        return None if known is None else known.owner_of(txn_id.least)

    def require_durable(self, txn_id: TxnId) -> None:
        """Check that the status of the transaction is durable, before anything depends on it.
        Raises ServiceNotReady.
        """
        coordinator = self._served.get(txn_id.most)
        if coordinator is not None and coordinator.is_deciding(txn_id):
            raise ServiceNotReady(
                f"The decision on transaction {txn_id} is not durable yet: try again"
            )

    def live_of(self, owner: str) -> int:
        """The number of live transactions of the owner on all open coordinators."""
        return sum(coordinator.live_of(owner) for coordinator in self._served.values())

    def participants_of(self, owner: str) -> int:
        """The number of topics and subscriptions in those transactions."""
        return sum(coordinator.participants_of(owner) for coordinator in self._served.values())

    def participants_in(self, txn_id: TxnId) -> int:
        """The number of topics and subscriptions in a live transaction. If another broker serves
        its coordinator, only those on this broker count.
        """
        if (transaction := self.begun(txn_id)) is not None:
            return transaction.participant_count
        remote = self.remote(txn_id.most)
        return 0 if remote is None else remote.participants_in(txn_id)

    @property
    def are_all_open(self) -> bool:
        """Whether no failed coordinator is being reopened."""
        return not self._replacing

    def served(self) -> list[TransactionCoordinator]:
        return list(self._served.values())

    # TransactionOutcomes

    def status(self, txn_id: TxnId) -> TxnStatus | None:
        coordinator = self._served.get(txn_id.most)
        return (coordinator or self._not_open(txn_id.most)).status(txn_id)

    def has_partition(self, txn_id: TxnId, topic: str) -> bool:
        coordinator = self._served.get(txn_id.most)
        if coordinator is None:
            return self._not_open(txn_id.most).has_partition(txn_id, topic)
        if (transaction := coordinator.metadata(txn_id)) is None:
            return False
        names = transaction.partitions  # as clients sent them, and possibly very many
        return topic in names or any(each in names for each in TopicName.parse(topic).spellings)

    def has_subscription(self, txn_id: TxnId, topic: str, subscription: str) -> bool:
        coordinator = self._served.get(txn_id.most)
        if coordinator is None:
            return self._not_open(txn_id.most).has_subscription(txn_id, topic, subscription)
        if (transaction := coordinator.metadata(txn_id)) is None:
            return False
        names = transaction.subscriptions  # as above
        if (topic, subscription) in names:
            return True
        return any((each, subscription) in names for each in TopicName.parse(topic).spellings)

    def why_aborted(self, txn_id: TxnId) -> str:
        coordinator = self._served.get(txn_id.most)
        return (coordinator or self._not_open(txn_id.most)).why_aborted(txn_id)

    def _not_open(self, coordinator_id: int) -> TransactionOutcomes:
        """The outcomes of a coordinator that is not open here, if they are known. Raises
        TransactionCoordinatorNotFound.
        """
        if (remote := self.remote(coordinator_id)) is not None:
            return remote
        if self._remote is None and not self._factory.exists(log_name(coordinator_id)):
            return NOTHING_BEGUN
        if self._remote is not None and 0 <= coordinator_id < self.count:
            # Another broker may have created the log a moment ago: open it to find out.
            self._open_soon(coordinator_id)
        raise coordinator_not_ready(coordinator_id)

    # Opening

    def _open_soon(self, coordinator_id: int) -> None:
        begins = self._participants is not None and coordinator_id not in self._replacing
        if begins and coordinator_id not in self._opening:
            self._tasks.start(self._take(coordinator_id), f"take {coordinator_id}")

    async def _open_once(self, coordinator_id: int) -> TransactionCoordinator:
        if coordinator_id in self._resumed:
            return self._resumed[coordinator_id]
        opening = self._opening.get(coordinator_id)
        if opening is None:
            opening = self._tasks.start(self._open(coordinator_id), f"open {coordinator_id}")
            self._opening[coordinator_id] = opening
            opening.add_done_callback(lambda _: self._opening.pop(coordinator_id))
        return await asyncio.shield(opening)

    async def _open(self, coordinator_id: int) -> TransactionCoordinator:
        assert self._participants is not None
        transaction_log = await self.open_log(coordinator_id, self._factory, self._metadata)
        try:
            coordinator = await TransactionCoordinator.open(
                coordinator_id,
                transaction_log,
                self._limits,
                self._clock,
                self._participants,
                self._reopen,
                self.ended,
            )
        except BaseException:  # it has no other owner to close it
            await transaction_log.close()
            raise
        if not self._serves(coordinator_id):  # another broker serves it by now
            await coordinator.close()
            raise coordinator_not_ready(coordinator_id)
        # Register it before it continues ends: participants that are told may ask for the status.
        self._served[coordinator_id] = coordinator
        coordinator.group_ends.follow = self.groups.follow
        await coordinator.resume()
        if self._served.get(coordinator_id) is not coordinator:  # it failed meanwhile
            raise coordinator_not_ready(coordinator_id)
        self._resumed[coordinator_id] = coordinator
        for each in list(self._served):  # its own members, and those that waited for its verdicts
            self.groups.settle(each)
        return coordinator

    def _reopen(self, failed: TransactionCoordinator) -> None:
        del self._served[failed.coordinator_id]
        self._resumed.pop(failed.coordinator_id, None)
        self._replacing[failed.coordinator_id] = failed
        if self._participants is not None:  # otherwise all coordinators are being closed
            self._tasks.start(self._replace(failed), f"reopen {failed.coordinator_id}")

    async def _replace(self, failed: TransactionCoordinator) -> None:
        """Open a successor: at once, or after a pause if the coordinator failed soon after opening
        or the successor cannot be opened.
        """
        await asyncio.sleep(max(0.0, _REOPEN_PAUSE_S - failed.served_s))
        coordinator_id = failed.coordinator_id
        while True:
            try:
                await failed.close()
                if self._replacing.get(coordinator_id) is not failed:
                    return  # it was released, or a successor has failed
                await self._open_once(coordinator_id)
                if self._replacing.get(coordinator_id) is failed:
                    del self._replacing[coordinator_id]
                return
            except Exception as error:
                _log_not_open(coordinator_id, error)
            await asyncio.sleep(_REOPEN_PAUSE_S)

    async def close(self) -> None:
        """Close all coordinators, then raise the first failure. Idempotent. Unfinished ends
        continue at the next start.
        """
        self._participants = None
        self.groups.close()
        await self._tasks.close()
        try:
            await all_done(coordinator.close() for coordinator in self.served())
        finally:
            self._served.clear()
            self._resumed.clear()


def _log_not_open(coordinator_id: int, error: Exception) -> None:
    log.error(
        "Transaction coordinator %s cannot be opened: %s; trying again in %s s",
        coordinator_id,
        error,
        _REOPEN_PAUSE_S,
    )
