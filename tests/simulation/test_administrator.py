"""The administrator of a cluster judges what its own consumers receive."""

import asyncio
import random
from functools import partial
from types import SimpleNamespace

import pytest
from brokers.administering import GOING, TOMBSTONES, Administration, Administrator
from checks.history import History
from sim_seed import REST_S, Simulation
from sim_world import ClientsWorld

VALUE = "administrator#0/0.1"


class ConsumerOfOne:
    def __init__(self, subscription):
        self.subscription = subscription

    async def receive(self, timeout_millis):
        return SimpleNamespace(data=VALUE.encode)

    async def close(self):
        self.subscription.remove(self)


class ClientOfOneTopic:
    """A topic with one message and an Exclusive subscription, whose consumers reconnect."""

    def __init__(self):
        self.subscription = []

    async def subscribe(self, topic, subscription_name, **options):
        assert not self.subscription, "another consumer has the subscription"
        self.subscription.append(ConsumerOfOne(self.subscription))
        return self.subscription[0]


def administrator():
    world = SimpleNamespace(now=0.0, stream=random.Random)
    made = Administrator(world, History(), "administrator", cluster=None)
    made.left = 3

    async def create():
        """The topic is created again before consumers of the former one reconnect."""

    async def fill(client):
        made.confirmed.append(VALUE)

    made._create, made._fill = create, fill
    return made


def test_a_consumer_stays_while_its_topic_is_deleted_and_leaves_before_the_next_one_subscribes():
    """Otherwise a former consumer received what the next one waited for (seed 971050)."""
    client, judge, attached = ClientOfOneTopic(), administrator(), []

    async def delete():
        attached.append(len(client.subscription))
        return True

    judge._delete = delete
    asyncio.run(judge.work(client))
    assert attached == [1, 1, 1]
    assert judge.history.failures == []


class DeletingBroker:
    """A broker whose metadata holds the records of a deletion until it is finished."""

    serving = False

    def __init__(self):
        self.records = [*BEGUN]
        self.backend = SimpleNamespace(metadata=SimpleNamespace(keys=self.keys))
        tenants = SimpleNamespace(
            partitioned_topics=lambda namespace: [], has_namespace=lambda namespace: True
        )
        self.topics = SimpleNamespace(tenants=tenants)

    def keys(self, prefix):
        return [key for key in self.records if key.startswith(prefix)]


BEGUN = (f"{GOING}shop", f"{TOMBSTONES}shop")
FOUND = {f"UNFINISHED: the deletion {key}" for key in BEGUN}
LATE_S = REST_S / 2  # later than deletions must be finished once brokers serve


@pytest.mark.parametrize("finished_after_s, found", [(50, set()), (REST_S, FOUND)])
def test_deletions_are_judged_only_by_a_broker_that_serves(finished_after_s, found):
    """Brokers that are down know of no deletion; that is no proof that there is none."""
    world, broker = ClientsWorld(1), DeletingBroker()
    simulation = SimpleNamespace(
        world=world, history=None, broker=SimpleNamespace(members=[broker])
    )
    simulation.wait = partial(Simulation.wait, simulation)
    judge = Administration(simulation)
    world.after(LATE_S, setattr, broker, "serving", True)
    world.after(LATE_S + finished_after_s, broker.records.clear)
    judge.rest()
    assert set(judge.account({})) == found
    world.close()
