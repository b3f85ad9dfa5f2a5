"""Commits of several transactions by one decision, as seen by one coordinator.

If all transactions belong to this coordinator, one entry of its log decides all of them.

If they belong to several coordinators, one of the transactions leads:

    member      Promise, durable: from now on neither its timeout nor an END can decide it
    leader      COMMITTING with the ids of the members, durable: this is the decision
    member      COMMITTING, and the rest of its end; only then does the leader's end continue

If the leader does not commit, the promise is taken back, and the member is OPEN as before. `groups`
connects the coordinators, and asks again after a crash.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from managed_ledger.prompt import Prompt, fail, prompt, when_done
from pybroker.base.errors import InvalidTxnStatus, PulsarError
from pybroker.base.names import TxnId
from pybroker.base.runtime import Clock, Pace, Tasks
from pybroker.transaction.coordinator.ends.endings import Endings
from pybroker.transaction.coordinator.live_transaction import TransactionMetadata
from pybroker.transaction.coordinator.log.group_records import Promise, records_of_group
from pybroker.transaction.coordinator.log.records import ChangeStatus, IdsUsed, Record
from pybroker.transaction.coordinator.log.transaction_log import TransactionLog
from pybroker.transaction.coordinator.metadata_store import Promised, TransactionMetadataStore
from pybroker.transaction.txn_status import ENDING_STATUS, UNDECIDED, TxnAction, TxnStatus

_DRIVEN_A_TURN: Final = 50  # transactions that commit together

Verdict = Callable[[TxnId, TxnId], bool | None]  # of (leader, member)


class Pledge(NamedTuple):
    """A promise in force. Its number tells it from an earlier promise of the same member: a late
    answer about the earlier one must not release the member.
    """

    leader: TxnId
    number: int


log = logging.getLogger(__name__)


class Core(NamedTuple):
    """The coordinator's operations that its group ends need."""

    check_open: Callable[[], None]  # raises the error of `not_found`
    not_found: Callable[[], PulsarError]
    end_decided: Callable[[int, TxnAction, BaseException | None], None]
    stop_timeout: Callable[[int], None]
    go_on_with_timeout: Callable[[TransactionMetadata], None]
    snapshot_if_due: Callable[[], None]


class GroupEnds:
    """`follow` passes a decision on to members on other coordinators, and returns when all of these
    members have ended.
    """

    def __init__(
        self,
        coordinator_id: int,
        store: TransactionMetadataStore,
        transaction_log: TransactionLog,
        endings: Endings,
        tasks: Tasks,
        clock: Clock,
        core: Core,
    ) -> None:
        self._coordinator_id = coordinator_id
        self._store = store
        self._log = transaction_log
        self._endings = endings
        self._tasks = tasks
        self._clock = clock
        self._core = core
        self._promised: dict[int, Pledge] = {}
        self._pledges = 0
        self._held: dict[int, list[Callable[[PulsarError | None], None]]] = {}
        self.follow: Callable[[TxnId, Sequence[TxnId]], Awaitable[None]] = _no_other_members

    def _id(self, local_id: int) -> TxnId:
        return TxnId(self._coordinator_id, local_id)

    # A common decision

    def commit(
        self, local_ids: Sequence[int], remote: Sequence[TxnId], principal: str | None
    ) -> asyncio.Future[TxnId]:
        """Commit `local_ids`, the last of which leads, and the members `elsewhere`. Completes when
        all have ended. Raises, or fails with, the errors of `commit_together`.
        """
        self._core.check_open()
        try:
            decisions = self._store.decide_commit_together(
                local_ids, principal, self._clock.now_ms()
            )
        except InvalidTxnStatus as refusal:
            running = next(filter(self._endings.is_undecided, local_ids), local_ids[-1])
            return self._endings.refused(running, refusal)
        if decisions:
            self._start(local_ids, remote, decisions)
        return self._endings.all_followed(local_ids)

    def would_commit(self, local_ids: Sequence[int], principal: str | None) -> bool:
        """False if already committed or committing. Raises the errors of `commit`; changes
        nothing.
        """
        return bool(self._store.decide_commit_together(local_ids, principal, self._clock.now_ms()))

    def _start(
        self,
        local_ids: Sequence[int],
        remote: Sequence[TxnId],
        decisions: Sequence[ChangeStatus],
    ) -> None:
        for local_id in local_ids:
            self._core.stop_timeout(local_id)
            self._endings.begin(local_id)
        records: list[Record] = [*records_of_group(local_ids[-1], remote), *decisions]
        self._log_together(records, partial(self._decided, local_ids, remote))

    def _log_together(
        self, records: Sequence[Record], done: Callable[[Exception | None], None]
    ) -> None:
        """Takes effect at once; `done` is called when the records are durable, or with the
        error.
        """
        self._log.append_together(records, done)
        for record in records:
            self._store.apply(record)
        self._core.snapshot_if_due()

    def _decided(
        self, local_ids: Sequence[int], remote: Sequence[TxnId], error: Exception | None
    ) -> None:
        if error is None:
            for local_id in local_ids:
                self._endings.decided(local_id)
            self._tasks.start(
                self._drive(local_ids, remote), f"committing a group of {len(local_ids)}"
            )

    async def _drive(self, local_ids: Sequence[int], remote: Sequence[TxnId]) -> None:
        """Continue the ends, a limited number per turn; that of the leader after all others."""
        *others, leader = local_ids
        all_followed = self._endings.all_followed(others) if others else None
        pace = Pace(_DRIVEN_A_TURN)
        for local_id in others:
            self._core.end_decided(local_id, TxnAction.COMMIT, None)
            await pace.step()
        error: BaseException | None = None
        if remote:
            await self.follow(self._id(leader), remote)
        if all_followed is not None:
            await asyncio.wait([all_followed])
            error = all_followed.exception()
        self._core.end_decided(leader, TxnAction.COMMIT, error)

    def resume(self, transaction: TransactionMetadata) -> bool:
        """After recovery, continue what was decided or promised. False if there is no group."""
        local_id = transaction.txn_id.least
        if transaction.status in UNDECIDED and transaction.promised_to is not None:
            self._pledge(local_id, transaction.promised_to)
            return True
        if transaction.status is TxnStatus.COMMITTING and transaction.group:
            self._decided([local_id], sorted(transaction.group), None)
            return True
        return False

    def verdict(self, leader: int, member: TxnId) -> bool | None:
        """Whether the member commits with this leader. None: the decision is not durable yet. False
        also for a leader that has ended: it had no members left that must follow.
        """
        transaction = self._store.get(leader)
        if transaction is None or transaction.status is not TxnStatus.COMMITTING:
            return False
        if member not in transaction.group:
            return False
        return None if self._endings.is_undecided(leader) else True

    async def confirm(self) -> None:
        """Returns when a record written after the call is durable: this proves that no successor
        had opened the log before the call. Raises TransactionCoordinatorNotFound.
        """
        self._core.check_open()
        durable, logged = self._durable()
        highest_id, low_watermark = self._store.highest_id, self._store.low_watermark
        self._log_together([IdsUsed(highest_id, low_watermark)], logged)
        await durable

    # Members whose leader is on another coordinator

    async def promise(self, local_ids: Sequence[int], leader: TxnId, principal: str | None) -> None:
        """Promise that `local_ids` end as `leader` does. Durable when this returns.

        Raises TransactionNotFound, InvalidTxnStatus (decided, or promised to another leader),
        TransactionCoordinatorNotFound.
        """
        self._core.check_open()
        for local_id in local_ids:
            try:
                self._check_may_promise(local_id, leader, principal)
            except InvalidTxnStatus as refusal:
                await self._endings.refused(local_id, refusal)
        durable, logged = self._durable()
        for local_id in local_ids:
            self._core.stop_timeout(local_id)
            self._pledge(local_id, leader)
        self._log_together([Promise(local_id, leader) for local_id in local_ids], logged)
        await durable

    def _pledge(self, local_id: int, leader: TxnId) -> None:
        self._pledges += 1
        self._promised[local_id] = Pledge(leader, self._pledges)

    def _durable(self) -> tuple[asyncio.Future[None], Callable[[Exception | None], None]]:
        """A future, and the callback that completes or fails it when a record has been written."""
        durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def logged(error: Exception | None) -> None:
            if error is not None:
                fail(durable, self._core.not_found())
            elif not durable.done():
                durable.set_result(None)

        return durable, logged

    def _check_may_promise(self, local_id: int, leader: TxnId, principal: str | None) -> None:
        now_ms = self._clock.now_ms()
        try:
            decision = self._store.decide_end(local_id, TxnAction.COMMIT, principal, now_ms)
        except Promised:
            pledge = self._promised.get(local_id)
            if pledge is None or pledge.leader != leader:
                raise
            return
        if decision is None:
            raise InvalidTxnStatus(
                f"Transaction {self._id(local_id)} has committed and {leader} has not: they cannot "
                "commit together any more"
            )

    def settle(self, verdict: Verdict) -> None:
        """Commit or release the members whose verdict is known."""
        found = {
            each: verdict(pledge.leader, self._id(each)) for each, pledge in self._promised.items()
        }
        self._conclude(found)

    @property
    def pledges(self) -> Mapping[int, Pledge]:
        """The promises in force, by member."""
        return self._promised

    def conclude(self, asked: Mapping[int, Pledge], verdicts: Mapping[int, bool | None]) -> None:
        """Like `settle`, with verdicts that were requested when the pledges `asked` were in force.
        A member that has promised again since is left alone.
        """
        self._core.check_open()
        same = {
            each: pledge for each, pledge in asked.items() if self._promised.get(each) == pledge
        }
        self._conclude({each: verdicts[each] for each in same})

    def _conclude(self, verdicts: Mapping[int, bool | None]) -> None:
        self._commit_members([each for each, commits in verdicts.items() if commits])
        self._set_free([each for each, commits in verdicts.items() if commits is False])

    def commit_members(self, local_ids: Sequence[int]) -> asyncio.Future[TxnId]:
        """Commit the members of a leader that has decided to commit. Completes when all have
        ended.
        """
        self._core.check_open()
        self._commit_members([each for each in local_ids if self._store.status(each) in UNDECIDED])
        for local_id in local_ids:
            if self._store.status(local_id) in (TxnStatus.ABORTING, TxnStatus.ABORTED):
                log.error(
                    "Transaction %s was aborted although its group commits", self._id(local_id)
                )
        return self._endings.all_followed(local_ids)

    def _commit_members(self, local_ids: Sequence[int]) -> None:
        if not local_ids:
            return
        now_ms, committing = self._clock.now_ms(), ENDING_STATUS[TxnAction.COMMIT]
        for local_id in local_ids:
            self._core.stop_timeout(local_id)
            self._endings.begin(local_id)
            self._promised.pop(local_id, None)
        decisions = [ChangeStatus(local_id, committing, now_ms) for local_id in local_ids]
        self._log_together(decisions, partial(self._members_decided, local_ids))
        self._free(local_ids, None)

    def _members_decided(self, local_ids: Sequence[int], error: Exception | None) -> None:
        if error is None:
            self._tasks.start(self._drive_members(local_ids), "committing group members")

    async def _drive_members(self, local_ids: Sequence[int]) -> None:
        pace = Pace(_DRIVEN_A_TURN)
        for local_id in local_ids:
            self._core.end_decided(local_id, TxnAction.COMMIT, None)
            await pace.step()

    def _set_free(self, local_ids: Sequence[int]) -> None:
        """Release the members of a leader that does not commit. If a crash undoes this, the leader
        is asked again.
        """
        if not local_ids:
            return
        self._log_together([Promise(local_id, None) for local_id in local_ids], _nobody_waits)
        for local_id in local_ids:
            leader = self._promised.pop(local_id).leader
            transaction = self._store.get(local_id)
            assert transaction is not None
            log.info(
                "Transaction %s is %s again: %s did not commit",
                transaction.txn_id,
                transaction.status.name,
                leader,
            )
            self._core.go_on_with_timeout(transaction)
        self._free(local_ids, None)

    # Ends that wait for a leader's decision

    def end_when_free(
        self, local_id: int, end: Callable[[], asyncio.Future[TxnId]]
    ) -> asyncio.Future[TxnId]:
        """Call `end` when the transaction is no longer promised; completes with its result."""
        ended: Prompt[TxnId] = prompt()

        def free(error: PulsarError | None) -> None:
            if error is not None or ended.done():
                fail(ended, error or InvalidTxnStatus("no request waits"))
                return
            try:
                when_done(end(), partial(_pass_on, ended))
            except PulsarError as refusal:
                fail(ended, refusal)

        self._held.setdefault(local_id, []).append(free)
        return ended

    def _free(self, local_ids: Iterable[int], error: PulsarError | None) -> None:
        for local_id in list(local_ids):
            for free in self._held.pop(local_id, ()):
                free(error)

    def fail(self, error: PulsarError) -> None:
        """The coordinator has failed or is closed: fail the ends that wait."""
        self._free(self._held, error)


def _pass_on(to: asyncio.Future[TxnId], ended: asyncio.Future[TxnId]) -> None:
    if ended.cancelled():
        to.cancel()
    elif (error := ended.exception()) is not None:
        fail(to, error)
    elif not to.done():
        to.set_result(ended.result())


def _nobody_waits(error: Exception | None) -> None:
    """No request waits for the record; if it fails, the log notifies the coordinator."""


async def _no_other_members(leader: TxnId, members: Sequence[TxnId]) -> None:
    """Used until the coordinators are connected."""
