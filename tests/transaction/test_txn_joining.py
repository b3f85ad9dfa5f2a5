"""Topics and subscriptions touched in a namespace join a transaction that spans it."""

import asyncio
from collections.abc import Callable
from unittest.mock import patch

import pytest
from txn_world import COMMIT, ORDERS, World, in_world, in_world_with, soon

from pybroker.base.errors import NotAllowed, TransactionCoordinatorNotFound, TransactionNotFound
from pybroker.base.names import TopicName, TxnId
from pybroker.transaction.coordinator.joining import Adding, Joined
from pybroker.transaction.coordinator.remote_coordinators import Participation
from pybroker.transaction.txn_status import TxnStatus

NAME = TopicName.parse(ORDERS)
ELSEWHERE = TopicName.parse("persistent://public/other/orders")
PASSING = TopicName.parse("non-persistent://public/default/orders")


class Anybody:
    """A caller that may join any number of participants."""

    client = ""

    def __init__(self, principal: str | None = None) -> None:
        self.principal = principal
        self.took = list[TxnId]()

    def takes(self, txn_id: TxnId) -> None:
        self.took.append(txn_id)

    def add(self, adding: Adding) -> Joined:
        return adding()


ANYBODY = Anybody()


async def begin(world: World, owner: str | None = None) -> TxnId:
    coordinator = await world.coordinators.get(0)
    return await coordinator.new_transaction(60_000, owner, namespace="public/default")


@in_world
async def test_a_topic_of_the_namespace_joins_once(world: World) -> None:
    txn_id, joining = await begin(world), world.coordinators.joining
    joined = joining.partition(txn_id, NAME, ANYBODY)
    assert joined is not None
    assert await joined == txn_id
    await soon()
    assert world.coordinators.has_partition(txn_id, ORDERS)
    assert joining.partition(txn_id, NAME, ANYBODY) is None


@in_world
async def test_a_subscription_joins_by_itself(world: World) -> None:
    txn_id, joining = await begin(world), world.coordinators.joining
    for name in ("one", "two"):
        joined = joining.subscription(txn_id, NAME, name, ANYBODY)
        assert joined is not None
        await joined
    assert world.coordinators.has_subscription(txn_id, ORDERS, "one")
    assert not world.coordinators.has_partition(txn_id, ORDERS)
    await soon()
    assert joining.subscription(txn_id, NAME, "two", ANYBODY) is None


@in_world
async def test_what_is_elsewhere_or_keeps_nothing_does_not_join(world: World) -> None:
    txn_id, plain = await begin(world), await world.begin()
    joining = world.coordinators.joining
    assert joining.partition(txn_id, ELSEWHERE, ANYBODY) is None
    assert joining.subscription(txn_id, ELSEWHERE, "sub", ANYBODY) is None
    assert joining.partition(txn_id, PASSING, ANYBODY) is None
    assert joining.partition(plain, NAME, ANYBODY) is None
    assert joining.partition(TxnId(0, 404), NAME, ANYBODY) is None
    assert joining.partition(TxnId(7, 0), NAME, ANYBODY) is None


class Others:
    """The brokers of coordinators 7 and 8; this broker is about to take over the latter."""

    def __init__(self) -> None:
        self.asked = list[Participation]()
        self.joined: Joined = asyncio.get_running_loop().create_future()

    def serves(self, coordinator_id: int) -> bool:
        return coordinator_id != 7

    def join(
        self, asked: Participation, client: str, principal: str | None, begins: Callable[[], None]
    ) -> Joined:
        assert (client, principal) == ("", "me")
        begins()
        self.asked.append(asked)
        return self.joined


@in_world
async def test_the_broker_of_its_coordinator_is_asked_what_joins(world: World) -> None:
    joining, joiner, others = world.coordinators.joining, Anybody("me"), Others()
    plain, foreign = await world.begin(), TxnId(7, 0)
    joining.remote = others  # type: ignore[assignment]
    assert joining.partition(foreign, NAME, joiner) is others.joined
    assert joining.subscription(foreign, NAME, "sub", joiner) is others.joined
    assert others.asked == [
        Participation(foreign, ORDERS),
        Participation(foreign, ORDERS, "sub"),
    ]
    assert joiner.took == [foreign, foreign]
    for txn_id in (plain, TxnId(8, 0)):
        assert joining.partition(txn_id, NAME, joiner) is None
        assert joining.subscription(txn_id, NAME, "sub", joiner) is None
    assert len(others.asked) == 2


@in_world
async def test_what_is_served_here_is_not_asked_elsewhere_while_it_moves(world: World) -> None:
    joining, others, txn_id = world.coordinators.joining, Others(), await world.begin()
    joining.remote = others  # type: ignore[assignment]
    others.serves = lambda coordinator_id: False  # type: ignore[method-assign]
    assert joining.partition(txn_id, NAME, Anybody("me")) is None
    assert others.asked == []


@in_world
async def test_room_is_taken_once_for_each_participant(world: World) -> None:
    txn_id, joining, joiner = await begin(world), world.coordinators.joining, Anybody()
    for _ in range(3):
        joining.partition(txn_id, NAME, joiner)
    await soon()
    joining.partition(txn_id, NAME, joiner)
    assert joiner.took == [txn_id]
    joining.subscription(txn_id, NAME, "sub", joiner)
    assert joiner.took == [txn_id, txn_id]


@in_world
async def test_nothing_joins_without_room(world: World) -> None:
    txn_id, joiner = await begin(world), Anybody()
    full = patch.object(joiner, "takes", side_effect=NotAllowed("too many"))
    with full, pytest.raises(NotAllowed, match="too many"):
        world.coordinators.joining.partition(txn_id, NAME, joiner)
    assert not world.coordinators.has_partition(txn_id, ORDERS)


@in_world
async def test_nothing_joins_what_is_over(world: World) -> None:
    txn_id = await begin(world)
    await world.end(txn_id, COMMIT)
    assert world.coordinators.joining.partition(txn_id, NAME, ANYBODY) is None


@in_world
async def test_nothing_joins_what_is_being_ended(world: World) -> None:
    txn_id, joining = await begin(world), world.coordinators.joining
    world.storage.holding = True
    ending = asyncio.ensure_future(world.end(txn_id, COMMIT))
    await soon()
    assert world.coordinators.status(txn_id) is TxnStatus.COMMITTING
    assert joining.partition(txn_id, NAME, ANYBODY) is None
    assert joining.subscription(txn_id, NAME, "sub", ANYBODY) is None
    world.storage.release()
    await ending


@in_world
async def test_another_principal_makes_nothing_join(world: World) -> None:
    txn_id = await begin(world, "alice")
    with pytest.raises(TransactionNotFound, match="another principal"):
        world.coordinators.joining.partition(txn_id, NAME, Anybody("mallory"))
    assert not world.coordinators.has_partition(txn_id, ORDERS)


@in_world
async def test_later_commands_wait_until_that_is_durable(world: World) -> None:
    txn_id, joining = await begin(world), world.coordinators.joining
    world.storage.holding = True
    first, second = (joining.partition(txn_id, NAME, ANYBODY) for _ in range(2))
    await soon()
    assert first is not None and first is second and not first.done()
    world.storage.release()
    await first


@in_world
async def test_later_commands_come_behind_those_that_waited(world: World) -> None:
    txn_id, joining = await begin(world), world.coordinators.joining
    order: list[str] = []
    first = joining.partition(txn_id, NAME, ANYBODY)
    assert first is not None

    async def waited() -> None:
        await asyncio.wait([first])
        order.append("waited")

    def comes_when_it_has() -> None:
        late = joining.partition(txn_id, NAME, ANYBODY)
        assert late is first
        late.add_done_callback(lambda _: order.append("late"))

    waiting = asyncio.create_task(waited())
    await asyncio.sleep(0)
    first.add_done_callback(lambda _: comes_when_it_has())
    await waiting
    await soon()
    assert order == ["waited", "late"]


@in_world_with(transaction_metadata_snapshot_entries=1)
async def test_what_it_spans_is_known_after_a_crash_and_from_a_snapshot(world: World) -> None:
    txn_id = await begin(world)
    joined = world.coordinators.joining.partition(txn_id, NAME, ANYBODY)
    assert joined is not None
    await joined
    for _ in range(5):  # snapshots follow
        await world.end(await world.begin(), COMMIT)
    after = await world.crashed()
    found = after.coordinators.begun(txn_id)
    assert found is not None and found.namespace == "public/default"
    assert after.coordinators.has_partition(txn_id, ORDERS)
    other = after.coordinators.joining.subscription(txn_id, NAME, "sub", ANYBODY)
    assert other is not None
    await other


@in_world
async def test_one_that_was_not_written_has_not_joined(world: World) -> None:
    txn_id, joining = await begin(world), world.coordinators.joining
    world.storage.full = True
    joined = joining.partition(txn_id, NAME, ANYBODY)
    assert joined is not None
    with pytest.raises(TransactionCoordinatorNotFound):
        await joined
    assert joining.partition(txn_id, NAME, ANYBODY) is None  # no broker serves it at the moment
    world.storage.full = False
    await asyncio.sleep(5)
    assert not world.coordinators.has_partition(txn_id, ORDERS)
    again = joining.partition(txn_id, NAME, ANYBODY)
    assert again is not None
    await again


@in_world
async def test_a_refused_participant_is_told_and_takes_no_part(world: World) -> None:
    txn_id, joining = await begin(world), world.coordinators.joining

    def check(asked: TxnId, namespace: str) -> None:
        raise NotAllowed(f"{asked} in {namespace}")

    joining.check = check
    with pytest.raises(NotAllowed, match="in public/default"):
        joining.partition(txn_id, NAME, ANYBODY)
    with pytest.raises(NotAllowed, match="in public/default"):
        joining.subscription(txn_id, NAME, "sub", ANYBODY)
    assert not world.coordinators.has_partition(txn_id, ORDERS)


@pytest.mark.parametrize("sent", [ORDERS, "public/default/orders", "orders"])
def test_a_participant_is_known_however_its_name_was_written(sent: str) -> None:
    @in_world
    async def scenario(world: World) -> None:
        txn_id, coordinator = await world.begin(), await world.coordinators.get(0)
        await coordinator.add_partitions(txn_id, [sent], None)
        await coordinator.add_subscriptions(txn_id, [(sent, "sub")], None)
        outcomes = world.coordinators
        assert outcomes.has_partition(txn_id, ORDERS)
        assert outcomes.has_subscription(txn_id, ORDERS, "sub")
        assert not outcomes.has_subscription(txn_id, ORDERS, "another")
        assert not outcomes.has_partition(txn_id, str(ELSEWHERE))

    scenario()


@in_world
async def test_one_of_many_participants_is_found_without_a_walk(world: World) -> None:
    txn_id, coordinator = await world.begin(), await world.coordinators.get(0)
    names = [f"persistent://public/default/{number}" for number in range(1000)]
    await coordinator.add_partitions(txn_id, names, None)
    await coordinator.add_subscriptions(txn_id, [(name, "sub") for name in names], None)
    with patch.object(TopicName, "parse", side_effect=TopicName.parse) as parsed:
        assert world.coordinators.has_partition(txn_id, names[-1])
        assert world.coordinators.has_subscription(txn_id, names[-1], "sub")
        assert not world.coordinators.has_partition(txn_id, ORDERS)
    assert parsed.call_count <= 1


@pytest.mark.parametrize(
    "text", ["t", "a/b/t", "public/default/t", "public/default/t/u", "non-persistent://a/b/t"]
)
def test_every_spelling_of_a_topic_means_it(text: str) -> None:
    name = TopicName.parse(text)
    assert text in name.spellings
    assert {TopicName.parse(each) for each in name.spellings} == {name}
