"""Groups of transactions of several coordinators: the protocol between the coordinators.

    END_TXN of a leader ─▶ every member's coordinator promises, durably
                              │ if one refuses or fails, nothing is decided
                              ▼
                           the leader's coordinator decides, durably: it names the members
                              ▼
                           each member's commits; then the leader's own participants are told

After a crash or a failure half way, a coordinator that has promised asks the leader's coordinator.
A decision to commit can still be found there, because the leader is retained until all members have
ended. If that coordinator is open, has not decided and will not, the members are released. While it
cannot be opened, they wait.

One broker alone answers the question in the same turn. With several brokers (`share_with`) it is
sent, and a coordinator that has lost its log may answer. So a member is released only if the
leader's coordinator wrote a record after it was asked, which proves that no successor could have
decided, and if the member has not promised again meanwhile. For the same reason only the open
coordinator for which the promises were collected may decide.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from pybroker.base.errors import InvalidTxnStatus, PulsarError, ServiceNotReady
from pybroker.base.names import TxnId
from pybroker.base.runtime import Tasks
from pybroker.transaction.coordinator.coordinator import TransactionCoordinator
from pybroker.transaction.coordinator.group_commits.group_ends import GroupEnds
from pybroker.transaction.coordinator.group_commits.settling import Settling, Verdicts
from pybroker.transaction.coordinator.remote_coordinators import require_begun
from pybroker.transaction.txn_status import (
    ACTION_OF_STATUS,
    UNDECIDED,
    TxnAction,
    TxnStatus,
    coordinator_not_ready,
)

_FIRST_PAUSE_S: Final = 0.05
_LAST_PAUSE_S: Final = 1.0
_FOLLOWED_WITHIN_S: Final = 8.0  # less than another broker waits for an answer

log = logging.getLogger(__name__)


class RemoteGroups(Protocol):
    """The operations on coordinators that other brokers serve. All raise PulsarError, in particular
    TransactionCoordinatorNotFound if this broker has acquired the coordinator meanwhile. The
    members of one call belong to one coordinator.
    """

    def serves(self, coordinator_id: int) -> bool:
        """Whether this broker serves the coordinator."""
        ...

    async def promise(
        self, leader: TxnId, members: Sequence[TxnId], principal: str | None
    ) -> None: ...
    async def follow(self, leader: TxnId, members: Sequence[TxnId]) -> None:
        """Returns when the members have ended."""
        ...

    async def verdicts(self, leader: TxnId, members: Sequence[TxnId]) -> Verdicts: ...
    async def status(self, txn_id: TxnId) -> TxnStatus | None: ...


# Its result: a future that completes when all have ended, or the error of a refusal.
_Decided = asyncio.Task[asyncio.Future[TxnId] | PulsarError]


class _Collecting(NamedTuple):
    """A leader's group that is not decided yet."""

    others: frozenset[TxnId]
    principal: str | None
    decided: "_Decided"


class Groups:
    """`get` and `serving` are those of Coordinators."""

    def __init__(
        self,
        get: Callable[[int], Awaitable[TransactionCoordinator]],
        serving: Mapping[int, TransactionCoordinator],
        tasks: Tasks,
    ) -> None:
        self._get = get
        self._serving = serving
        self._tasks = tasks
        self._collecting: dict[TxnId, _Collecting] = {}
        self._settling = Settling(serving, tasks, self._known, self._ask)
        self._remote: RemoteGroups | None = None

    def share_with(self, remote: RemoteGroups) -> None:
        """Other brokers serve some coordinators. Call it before any is opened."""
        self._remote = remote

    def _remote_for(self, coordinator_id: int) -> RemoteGroups | None:
        """None if this broker serves the coordinator."""
        remote = self._remote
        return None if remote is None or remote.serves(coordinator_id) else remote

    async def commit(self, leader: TxnId, others: Sequence[TxnId], principal: str | None) -> TxnId:
        """Commit `leader` and others, of any coordinators: all of them, or none.

        The others end first. Idempotent. Raises the errors of a coordinator's `commit_together`.
        """
        decided = self._collect(leader, frozenset(others) - {leader}, principal)
        followed = await asyncio.shield(decided)
        if isinstance(followed, PulsarError):
            try:
                raise followed
            finally:
                del decided, followed  # its traceback refers to this frame: avoid a cycle
        await asyncio.wait([followed])
        return followed.result()

    def _collect(
        self, leader: TxnId, wanted: frozenset[TxnId], principal: str | None
    ) -> "_Decided":
        collecting = self._collecting.get(leader)
        if collecting is None:
            deciding = self._tasks.start(
                self._decided(leader, sorted(wanted), principal), f"the group of {leader}"
            )
            self._collecting[leader] = _Collecting(wanted, principal, deciding)
            deciding.add_done_callback(lambda _: self._collected(leader, wanted))
            return deciding
        if (collecting.others, collecting.principal) != (wanted, principal):
            raise InvalidTxnStatus(
                f"Transaction {leader} is already committing with others: wait until that is done"
            )
        return collecting.decided

    async def _decided(
        self, leader: TxnId, others: Sequence[TxnId], principal: str | None
    ) -> asyncio.Future[TxnId] | PulsarError:
        try:
            return await self._decide(leader, others, principal)
        except PulsarError as refusal:
            return refusal

    async def _decide(
        self, leader: TxnId, others: Sequence[TxnId], principal: str | None
    ) -> asyncio.Future[TxnId]:
        """Collect the promises and decide. The returned future completes when all have ended."""
        here = [*(each.least for each in others if each.most == leader.most), leader.least]
        away = [each for each in others if each.most != leader.most]
        leads = (await self._get(leader.most)).group_ends
        if leads.would_commit(here, principal):
            await self._promised(leader, away, principal)
            asked, leads = leads, (await self._get(leader.most)).group_ends
            if leads is not asked and self._remote is not None:
                raise coordinator_not_ready(leader.most)  # members may have been released
        if not leads.would_commit(here, principal):  # it was committed meanwhile, or earlier
            await self._require_committed(leads, leader, away)
        return leads.commit(here, away, principal)

    async def _promised(
        self, leader: TxnId, members: Sequence[TxnId], principal: str | None
    ) -> None:
        made = await asyncio.gather(
            *(self._promise(leader, part, principal) for part in _by_coordinator(members)),
            return_exceptions=True,
        )
        refused = [each for each in made if isinstance(each, BaseException)]
        if refused:
            try:
                raise refused[0]
            finally:
                del made, refused  # as above

    async def _promise(
        self, leader: TxnId, members: Sequence[TxnId], principal: str | None
    ) -> None:
        """All `members` belong to one coordinator."""
        if (remote := self._remote_for(members[0].most)) is not None:
            await remote.promise(leader, members, principal)
        else:
            coordinator = await self._get(members[0].most)
            await coordinator.group_ends.promise(
                [each.least for each in members], leader, principal
            )

    async def _require_committed(
        self, leads: GroupEnds, leader: TxnId, members: Sequence[TxnId]
    ) -> None:
        """Check that the same commit, with the same members, is in progress or complete."""
        for member in members:
            status = await self._status(member)
            committed = status is not None and ACTION_OF_STATUS.get(status) is TxnAction.COMMIT
            if not committed and leads.verdict(leader.least, member) is False:
                raise InvalidTxnStatus(
                    f"Transaction {leader} has committed and {member} has not: they cannot commit "
                    "together any more"
                )

    async def _status(self, txn_id: TxnId) -> TxnStatus | None:
        if (remote := self._remote_for(txn_id.most)) is not None:
            return await remote.status(txn_id)
        return (await self._get(txn_id.most)).status(txn_id)

    def _collected(self, leader: TxnId, others: frozenset[TxnId]) -> None:
        """Collecting has succeeded or failed: the leader's coordinator knows the verdicts, so
        settle the members.
        """
        del self._collecting[leader]
        for most in {each.most for each in others}:
            self.settle(most)

    # -- decisions

    def verdict(self, leader: TxnId, member: TxnId) -> bool | None:
        """Whether the member commits with its leader; None: ask again."""
        if leader in self._collecting:
            return None
        coordinator = self._serving.get(leader.most)
        return None if coordinator is None else coordinator.group_ends.verdict(leader.least, member)

    async def verdicts(self, leader: TxnId, members: Sequence[TxnId]) -> Verdicts:
        """The verdicts on members that any broker may serve; this broker serves the leader's
        coordinator.

        Raises TransactionCoordinatorNotFound.
        """
        coordinator = self._serving.get(leader.most) or await self._get(leader.most)
        before = [self.verdict(leader, member) for member in members]
        if False not in before or self._remote is None:
            return before
        await coordinator.group_ends.confirm()
        if self._serving.get(leader.most) is not coordinator:
            raise coordinator_not_ready(leader.most)
        after = [self.verdict(leader, member) for member in members]
        return [
            None if verdict is False and earlier is None else verdict
            for earlier, verdict in zip(before, after, strict=True)
        ]

    async def follow(self, leader: TxnId, members: Sequence[TxnId]) -> None:
        """The leader has decided to commit: returns when all members have ended."""
        await asyncio.gather(*(self._follow(leader, part) for part in _by_coordinator(members)))

    async def _follow(self, leader: TxnId, members: Sequence[TxnId]) -> None:
        """All `members` belong to one coordinator."""
        pause_s, coordinator_id = _FIRST_PAUSE_S, members[0].most
        while True:
            try:
                if (remote := self._remote_for(coordinator_id)) is not None:
                    await remote.follow(leader, members)
                    return
                coordinator = await self._get(coordinator_id)
                await coordinator.group_ends.commit_members([each.least for each in members])
                return
            except PulsarError as error:
                if pause_s == _FIRST_PAUSE_S:
                    log.warning("Members of the group of %s are waiting: %s", leader, error)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LAST_PAUSE_S)

    # -- members of coordinators that this broker serves

    def settle(self, coordinator_id: int) -> None:
        """Settle the promised members whose verdict is known; ask about the others soon."""
        self._settling.settle(coordinator_id)

    def _known(self, leader: TxnId, member: TxnId) -> bool | None:
        """The verdict, or None if the leader's coordinator must be asked. With several brokers,
        another may have opened that coordinator and decided, so only a decision to commit is
        certain here.
        """
        verdict = self.verdict(leader, member)
        return None if verdict is False and self._remote is not None else verdict

    async def _ask(self, leader: TxnId, members: Sequence[TxnId]) -> Verdicts:
        if (remote := self._remote_for(leader.most)) is not None:
            return await remote.verdicts(leader, members)
        return await self.verdicts(leader, members)

    async def promise_to(
        self, leader: TxnId, members: Sequence[TxnId], principal: str | None
    ) -> None:
        """Promise on request of the broker that serves the leader's coordinator; this broker serves
        the members' coordinator. Raises the errors of `GroupEnds.promise`.
        """
        try:
            await self._promise(leader, members, principal)
        finally:
            self.settle(members[0].most)

    async def follow_at_once(self, leader: TxnId, members: Sequence[TxnId]) -> None:
        """Commit members on request of the broker that serves the leader's coordinator; this broker
        serves the members' coordinator. Asks the leader's coordinator first, because any client
        could claim that it has decided. Returns when the members have ended.

        Raises TransactionCoordinatorNotFound, TransactionNotFound (a successor of this coordinator
        may know more), ServiceNotReady (not yet).
        """
        coordinator = await self._get(members[0].most)
        for member in members:
            require_begun(coordinator, member)
        ends, local_ids = coordinator.group_ends, [each.least for each in members]
        pledges = {
            each: pledge
            for each in local_ids
            if (pledge := ends.pledges.get(each)) is not None and pledge.leader == leader
        }
        if pledges:
            await self._settling.ask(coordinator, leader, pledges)
        for member in members:
            if coordinator.status(member) in UNDECIDED:
                raise ServiceNotReady(
                    f"Transaction {member} has not joined the commit of {leader} yet; retry"
                )
        ending = ends.commit_members(local_ids)
        try:
            await asyncio.wait([ending], timeout=_FOLLOWED_WITHIN_S)
        finally:
            gave_up = ending.cancel()
        if gave_up:
            raise ServiceNotReady(f"Transactions that follow {leader} are still being ended")
        ending.result()

    def close(self) -> None:
        """Stop asking. Promises remain in force until the next start settles them."""
        self._settling.close()


def _by_coordinator(members: Sequence[TxnId]) -> list[list[TxnId]]:
    found = defaultdict[int, list[TxnId]](list)
    for member in members:
        found[member.most].append(member)
    return list(found.values())
