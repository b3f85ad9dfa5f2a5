"""The judge of splits and merges reads what is in each segment, however many there are."""

import asyncio
from types import SimpleNamespace

import pytest
from checks.history import Outcome, Sent
from features.splitting import NAME, SILENCE_MS, Splitting
from sim_seed import REST_S
from sim_world import ClientsWorld

from pybroker.client.errors import Timeout

SEGMENTS = [f"segment/{number}" for number in range(2 * int(REST_S * 1000 / SILENCE_MS))]


class ConsumerOfOne:
    """Gets one message, and then waits in vain."""

    def __init__(self, value):
        self.values = [value]

    async def receive(self, timeout_millis):
        if self.values:
            return SimpleNamespace(data=self.values.pop().encode)
        await asyncio.sleep(timeout_millis / 1000)
        raise Timeout("no message came")

    async def close(self):
        pass


class ClientOfSegments:
    """Each segment has one message: the segment's name."""

    async def subscribe(self, topic, subscription_name):
        return ConsumerOfOne(topic)

    async def close(self):
        pass


class Layouts:
    violations = ()

    async def now(self):
        return SimpleNamespace(segments=[SimpleNamespace(topic=topic) for topic in SEGMENTS])


@pytest.fixture
def judge():
    world = ClientsWorld(1)
    simulation = SimpleNamespace(
        world=world,
        history=None,
        broker=None,
        scenario=SimpleNamespace(deduplication=False),
        auditor=ClientOfSegments,
        on_a_fresh_node=lambda work: world.call(world.node("auditor"), work, within_s=REST_S),
    )
    made = Splitting(simulation)
    made.layouts, made.some_is_away = Layouts(), True
    made.sent = {value: Sent(value, str(NAME), "writer", 0) for value in (*SEGMENTS, "lost/0")}
    for sent in made.sent.values():
        sent.outcome = Outcome.DONE
    made.reader = SimpleNamespace(read=dict.fromkeys(made.sent))
    yield made
    world.close()


def test_a_topic_of_many_segments_is_read_in_the_time_that_an_account_has(judge):
    """A broker that rests merges segments: there were too many (seed 150012302)."""
    assert judge.account({}) == [f"LOSS: lost/0 is not in {NAME}"]
