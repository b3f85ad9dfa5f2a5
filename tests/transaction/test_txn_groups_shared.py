"""Groups when other brokers may serve coordinators: what is asked, which answers are trusted."""

import asyncio
from collections.abc import Sequence

import pytest
from groups_world import (
    COMMITTED,
    OPEN,
    begun,
    decided_and_not_told,
    fail,
    promised,
    statuses,
)
from txn_world import COPIES, World, in_world, soon

from pybroker.base.errors import (
    PulsarError,
    ServiceNotReady,
    TransactionCoordinatorNotFound,
)
from pybroker.base.names import TxnId
from pybroker.transaction.coordinator.group_commits import groups
from pybroker.transaction.coordinator.group_commits.settling import Verdicts
from pybroker.transaction.txn_status import TxnStatus


class NobodyElse:
    """Other brokers that could serve coordinators, but serve none at the moment."""

    def serves(self, coordinator_id: int) -> bool:
        return True

    async def promise(self, leader: TxnId, members: Sequence[TxnId], principal: str | None) -> None:
        raise AssertionError("it is here")

    async def follow(self, leader: TxnId, members: Sequence[TxnId]) -> None:
        raise AssertionError("it is here")

    async def verdicts(self, leader: TxnId, members: Sequence[TxnId]) -> Verdicts:
        raise AssertionError("it is here")

    async def status(self, txn_id: TxnId) -> TxnStatus | None:
        raise AssertionError("it is here")


async def with_promise(world: World) -> tuple[TxnId, TxnId]:
    """The leader, which is OPEN, and a member that has promised."""
    leader, member, _ = await begun(world)
    world.coordinators.groups.share_with(NobodyElse())
    coordinator = await world.coordinators.get(member.most)
    await coordinator.group_ends.promise([member.least], leader, None)
    return leader, member


@in_world
async def test_a_member_is_not_released_before_the_leaders_log_has_confirmed_it(
    world: World,
) -> None:
    _, member = await with_promise(world)
    world.coordinators.groups.settle(member.most)
    assert promised(world, [member]) == [member]
    await asyncio.sleep(1)
    assert promised(world, [member]) == []


@in_world
async def test_a_coordinator_that_is_not_served_answers_nothing(world: World) -> None:
    leader, member = await with_promise(world)
    fail(world, leader.most)
    await soon()
    assert world.coordinators.serving(leader.most) is None
    with pytest.raises(TransactionCoordinatorNotFound):
        await world.coordinators.groups.verdicts(leader, [member])


@in_world
async def test_a_coordinator_that_was_opened_anew_meanwhile_answers_nothing(world: World) -> None:
    leader, member = await with_promise(world)
    ends = (await world.coordinators.get(leader.most)).group_ends

    async def confirm() -> None:
        fail(world, leader.most)
        await asyncio.sleep(3)
        assert world.coordinators.serving(leader.most) is not None

    ends.confirm = confirm  # type: ignore[method-assign]
    with pytest.raises(PulsarError):
        await world.coordinators.groups.verdicts(leader, [member])


@in_world
async def test_a_coordinator_that_has_failed_confirms_and_concludes_nothing(world: World) -> None:
    leader, member = await with_promise(world)
    ends = (await world.coordinators.get(member.most)).group_ends
    pledges = dict(ends.pledges)
    assert [pledge.leader for pledge in pledges.values()] == [leader]
    fail(world, member.most)
    with pytest.raises(TransactionCoordinatorNotFound):
        await ends.confirm()
    with pytest.raises(TransactionCoordinatorNotFound):
        ends.conclude(pledges, dict.fromkeys(pledges, True))


@in_world
async def test_a_promise_to_a_leader_that_never_decides_is_released_by_itself(
    world: World,
) -> None:
    leader, member, _ = await begun(world)
    world.coordinators.groups.share_with(NobodyElse())
    await world.coordinators.groups.promise_to(leader, [member], None)
    assert promised(world, [member]) == [member]
    await asyncio.sleep(2)
    assert (promised(world, [member]), statuses(world, [member])) == ([], [OPEN])


@in_world
async def test_who_is_told_to_follow_asks_the_leader_first_and_then_follows(world: World) -> None:
    leader, member, other = await decided_and_not_told(world)
    world.coordinators.groups.share_with(NobodyElse())
    await world.coordinators.groups.follow_at_once(leader, [member])
    assert statuses(world, [leader, member, other]) == [TxnStatus.COMMITTING, COMMITTED, OPEN]


async def held_up(world: World) -> tuple[TxnId, TxnId, "asyncio.Task[None]"]:
    """Starts a group of which one member has been told to follow, and its end hangs."""
    leader, _, _ = txn_ids = await begun(world)

    async def before_end(topic: str) -> None:
        if topic == COPIES:
            await asyncio.Event().wait()

    world.before_end = before_end
    committing = world.coordinators.groups.commit(leader, txn_ids[1:], None)
    asyncio.ensure_future(committing).add_done_callback(lambda _: None)
    await asyncio.sleep(1)
    member = txn_ids[1]
    assert statuses(world, [member]) == [TxnStatus.COMMITTING]
    following = world.coordinators.groups.follow_at_once(leader, [member])
    return leader, member, asyncio.ensure_future(following)


@in_world
async def test_who_waits_too_long_for_members_is_told_to_ask_again(world: World) -> None:
    *_, following = await held_up(world)
    await asyncio.sleep(groups._FOLLOWED_WITHIN_S / 2)
    assert not following.done()
    with pytest.raises(ServiceNotReady, match="still being ended"):
        await following


@in_world
async def test_who_has_given_up_waiting_for_members_is_forgotten(world: World) -> None:
    leader, member, following = await held_up(world)
    coordinator = world.coordinators.serving(member.most)
    assert coordinator is not None
    waiting = coordinator._endings._running[member.least].followed
    await asyncio.sleep(groups._FOLLOWED_WITHIN_S / 2)
    before = len(waiting)
    following.cancel()  # a client that disconnects
    for _ in range(3):
        with pytest.raises(ServiceNotReady, match="still being ended"):
            await world.coordinators.groups.follow_at_once(leader, [member, member])
    assert len(waiting) == before - 1


@in_world
async def test_who_waits_for_members_hears_that_their_coordinator_has_failed(
    world: World,
) -> None:
    _, member, following = await held_up(world)
    await soon()
    fail(world, member.most)
    with pytest.raises(TransactionCoordinatorNotFound):
        await following
