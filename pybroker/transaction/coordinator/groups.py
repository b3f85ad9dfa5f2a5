"""Groups of transactions of several coordinators: the protocol between the coordinators.

    END_TXN of a leader ─▶ every member's coordinator promises, durably
                              │ one refuses, or fails: nothing is decided
                              ▼
                           the leader's coordinator decides, durably: it names the members
                              ▼
                           each member's commits; then the leader's own participants are told

After a crash, or a failure half way, a coordinator that has promised asks the leader's coordinator.
If that coordinator has decided, it says so: it retains the leader until all members have ended. If
it is open, has not decided and will not, the members are released. Members wait only while the
leader's coordinator cannot be opened.

All coordinators are in this process, so a question is answered in the same turn. Between brokers a
promise would need a number, so that an old answer does not release a newer promise.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, NamedTuple

from pybroker.base.errors import InvalidTxnStatus, PulsarError
from pybroker.base.names import TxnId
from pybroker.base.runtime import Tasks
from pybroker.transaction.coordinator.coordinator import TransactionCoordinator
from pybroker.transaction.coordinator.group_ends import GroupEnds
from pybroker.transaction.txn_status import ACTION_OF_STATUS, TxnAction

_FIRST_PAUSE_S: Final = 0.05
_LAST_PAUSE_S: Final = 1.0

log = logging.getLogger(__name__)


class _Collecting(NamedTuple):
    """A leader's group that is not decided yet."""

    others: frozenset[TxnId]
    principal: str | None
    decided: "asyncio.Task[asyncio.Future[TxnId] | PulsarError]"  # then: followed; or refused


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
        self._settling: dict[int, asyncio.Task[None]] = {}
        self._closed = False

    async def commit(self, leader: TxnId, others: Sequence[TxnId], principal: str | None) -> TxnId:
        """Commit `leader` and others, of any coordinators: all of them, or none.

        The others end first. Idempotent. Raises as a coordinator's `commit_together`.
        """
        wanted = frozenset(others) - {leader}
        collecting = self._collecting.get(leader)
        if collecting is None:
            deciding = self._tasks.start(
                self._decided(leader, sorted(wanted), principal), f"the group of {leader}"
            )
            collecting = self._collecting[leader] = _Collecting(wanted, principal, deciding)
            deciding.add_done_callback(lambda _: self._collected(leader, wanted))
        elif (collecting.others, collecting.principal) != (wanted, principal):
            raise InvalidTxnStatus(
                f"Transaction {leader} is already committing with others: wait until that is done"
            )
        followed = await asyncio.shield(collecting.decided)
        if isinstance(followed, PulsarError):
            raise followed
        await asyncio.wait([followed])
        return followed.result()

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
        """The returned future completes when all have ended."""
        here = [*(each.least for each in others if each.most == leader.most), leader.least]
        away = [each for each in others if each.most != leader.most]
        leads = (await self._get(leader.most)).group_ends
        if leads.would_commit(here, principal):
            await self._promised(leader, away, principal)
            leads = (await self._get(leader.most)).group_ends  # it may have been replaced
        if not leads.would_commit(here, principal):  # meanwhile, or earlier
            await self._require_committed(leads, leader, away)
        return leads.commit(here, away, principal)

    async def _promised(
        self, leader: TxnId, members: Sequence[TxnId], principal: str | None
    ) -> None:
        by_coordinator = _by_coordinator(members)
        coordinators = [await self._get(most) for most in by_coordinator]
        made = await asyncio.gather(
            *(
                coordinator.group_ends.promise(local_ids, leader, principal)
                for coordinator, local_ids in zip(
                    coordinators, by_coordinator.values(), strict=True
                )
            ),
            return_exceptions=True,
        )
        for each in made:
            if isinstance(each, BaseException):
                raise each

    async def _require_committed(
        self, leads: GroupEnds, leader: TxnId, members: Sequence[TxnId]
    ) -> None:
        """Check that this same commit, with the same members, is under way or done."""
        for member in members:
            coordinator = await self._get(member.most)
            status = coordinator.status(member)
            committed = status is not None and ACTION_OF_STATUS.get(status) is TxnAction.COMMIT
            if not committed and leads.verdict(leader.least, member) is False:
                raise InvalidTxnStatus(
                    f"Transaction {leader} has committed and {member} has not: they cannot commit "
                    "together any more"
                )

    def _collected(self, leader: TxnId, others: frozenset[TxnId]) -> None:
        """The leader's coordinator knows the result in any case."""
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

    async def follow(self, leader: TxnId, members: Sequence[TxnId]) -> None:
        """The leader has decided to commit: returns when all members have ended."""
        by_coordinator = _by_coordinator(members).items()
        await asyncio.gather(*(self._follow(leader, *each) for each in by_coordinator))

    async def _follow(self, leader: TxnId, coordinator_id: int, members: list[int]) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                coordinator = await self._get(coordinator_id)
                await coordinator.group_ends.commit_members(members)
                return
            except PulsarError as error:
                if pause_s == _FIRST_PAUSE_S:
                    log.warning("Members of the group of %s are waiting: %s", leader, error)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LAST_PAUSE_S)

    def settle(self, coordinator_id: int) -> None:
        """End the promised transactions whose outcome is known; ask about the others later."""
        coordinator = self._serving.get(coordinator_id)
        if self._closed or coordinator is None or not coordinator.group_ends.settle(self.verdict):
            return
        if coordinator_id not in self._settling:
            settling = self._tasks.start(
                self._settle(coordinator_id), f"promises of {coordinator_id}"
            )
            self._settling[coordinator_id] = settling
            settling.add_done_callback(lambda _: self._settling.pop(coordinator_id))

    async def _settle(self, coordinator_id: int) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LAST_PAUSE_S)
            coordinator = self._serving.get(coordinator_id)
            if coordinator is None or not coordinator.group_ends.settle(self.verdict):
                return

    def close(self) -> None:
        """Promises remain until the next start."""
        self._closed = True


def _by_coordinator(members: Sequence[TxnId]) -> dict[int, list[int]]:
    found = defaultdict(list)
    for most, least in members:
        found[most].append(least)
    return found
