"""How many transactions may take part in a namespace, and for how long they may stay open."""

import pytest
from txn_world import ABORT, COMMIT, ORDERS, World, in_world

from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.errors import NotAllowed, TooManyRequests
from pybroker.broker.policies.effective import Effective
from pybroker.broker.policies.transaction_limits import HasPolicies, namespace_limits
from pybroker.transaction.coordinator.namespaces import namespaces_of

ELSEWHERE = "persistent://public/other/t"


class Policies:
    def __init__(self, **said: object) -> None:
        self.said = said

    def of_namespace(self, namespace: str) -> Effective:
        values = {"transactionLimits": self.said} if namespace == "public/default" else {}
        return Effective(BrokerConfig(), (values,))


def limit(world: World, policies: HasPolicies, *superusers: str) -> None:
    config = BrokerConfig(super_user_roles=superusers)
    world.coordinators.admission.limits_of = namespace_limits(policies, config)


@in_world
async def test_one_too_many_is_refused_where_it_would_take_part(world: World) -> None:
    limit(world, Policies(maxOpenTransactions=1))
    first, second = await world.begin_on(ORDERS), await world.begin_on(ELSEWHERE)
    for _ in range(2):
        with pytest.raises(TooManyRequests, match=r"1 active transactions .* in public/default"):
            await world.add(second, ORDERS)
    with pytest.raises(TooManyRequests):
        await world.add_subscription(second)
    await world.add_subscription(first)
    await world.end(first, ABORT)
    await world.add_subscription(second)
    assert world.coordinators.admission.live_in("public/default") == 1
    await world.end(second, COMMIT)
    assert world.coordinators.admission.live_in("public/default") == 0


@in_world
async def test_those_of_all_coordinators_count_together(world: World) -> None:
    limit(world, Policies(maxOpenTransactions=1))
    await world.begin_on(ORDERS)
    other = await world.coordinators.get(1)
    txn_id = await other.new_transaction(1000, None)
    with pytest.raises(TooManyRequests):
        await other.add_partitions(txn_id, ["orders"], None)


@in_world
async def test_what_was_open_before_a_crash_still_counts(world: World) -> None:
    txn_id = await world.begin_on(ORDERS, "public/default/a/b", ELSEWHERE)
    for _ in range(2):
        world = await world.crashed()
        assert world.coordinators.admission.live_in("public/default") == 1
        limit(world, Policies(maxOpenTransactions=1))
        late = await world.begin()
        with pytest.raises(TooManyRequests):
            await world.add(late, ORDERS)
        coordinator = await world.coordinators.get(0)
        await coordinator._log.snapshot(coordinator._store)
    await world.end(txn_id, COMMIT)
    assert world.coordinators.admission.live_in("public/other") == 0


@in_world
async def test_a_timeout_above_the_namespace_s_is_refused_there(world: World) -> None:
    limit(world, Policies(maxTimeoutMs=60_000))
    await world.begin_on(ORDERS)
    longer = await world.begin(timeout_ms=60_001)
    await world.add(longer, ELSEWHERE)
    with pytest.raises(NotAllowed, match=r"for 60001 ms, but public/default allows 60000 .*short"):
        await world.add(longer, ORDERS)


@in_world
async def test_a_lower_limit_lets_those_go_on_that_take_part_already(world: World) -> None:
    txn_id = await world.begin_on(ORDERS)
    limit(world, Policies(maxOpenTransactions=1, maxTimeoutMs=1))
    await world.add(txn_id, "persistent://public/default/another")
    await world.end(txn_id, COMMIT)


@in_world
async def test_a_superuser_s_transactions_have_no_limits(world: World) -> None:
    limit(world, Policies(maxTimeoutMs=1), "admin")
    coordinator = await world.coordinators.get(0)
    for owner in ("admin", "alice"):
        txn_id = await coordinator.new_transaction(1000, owner)
        try:
            await coordinator.add_partitions(txn_id, [ORDERS], owner)
        except NotAllowed:
            assert owner == "alice"
        else:
            assert owner == "admin"


def test_names_as_clients_send_them_and_what_is_none() -> None:
    topics = ["t", "a/b/t", "persistent://a/b/c/d", "x/y", "persistent://public/default/t"]
    assert namespaces_of(topics) == ["a/b", "public/default"]


@in_world
async def test_a_transaction_with_many_topics_leaves_its_place_when_it_ends(world: World) -> None:
    limit(world, Policies(maxOpenTransactions=1))
    for _ in range(2):
        txn_id = await world.begin_on(*(f"t-{number}" for number in range(51)))
        assert world.coordinators.admission.live_in("public/default") == 1
        await world.end(txn_id, COMMIT)
        assert world.coordinators.admission.live_in("public/default") == 0
    (latest, *_) = world.coordinators.ended
    assert latest.topic_count == 51 and len(latest.transaction.partitions) == 50
