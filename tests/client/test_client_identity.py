"""How a broker recognises a consumer that returns, and what it must not send any more."""

import asyncio
import itertools
import random
from typing import Any

import pytest
from scripted_broker import ScriptedBroker

import pybroker.testing
from pybroker.client import Client, aio
from pybroker.wire import pulsar_api_pb2 as pb


def another_client(seed: int) -> aio.Client:
    return aio.Client("pulsar://one:6650", rng=random.Random(seed))


async def reconnected(broker: ScriptedBroker) -> None:
    broker.peer.drop()
    await asyncio.sleep(10)  # of the loop's own time


class TestRequestIds:
    def test_they_rise_over_all_connections_of_a_client(self, broker: ScriptedBroker, client: Any):
        async def work() -> None:
            await client.subscribe("t", "s")
            await reconnected(broker)
            await client.create_producer("u")

        broker.run(work())
        ids = [body.request_id for body in broker.asked if hasattr(body, "request_id")]
        assert len(ids) > 6
        assert ids == sorted(set(ids))

    def test_two_clients_begin_far_apart(self, broker: ScriptedBroker):
        async def work() -> None:
            for seed in range(20):
                await another_client(seed).subscribe("t", "s")

        broker.run(work())
        ids = sorted(body.request_id for body in broker.asked_for(pb.CommandSubscribe))
        apart = [later - earlier for earlier, later in itertools.pairwise(ids)]
        assert min(apart) > 2**40
        assert ids[-1] < 2**63


class TestConsumerNames:
    def test_a_consumer_has_one_of_its_own_and_keeps_it(self, broker: ScriptedBroker, client: Any):
        async def work() -> list[str]:
            one = await client.subscribe("t", "s")
            two = await client.subscribe("t", "s")
            await reconnected(broker)
            return [one.consumer_name(), two.consumer_name()]

        one, two = broker.run(work())
        names = [body.consumer_name for body in broker.asked_for(pb.CommandSubscribe)]
        assert sorted(names) == sorted([one, two] * 2)
        assert one != two
        assert all(5 <= len(name) <= 10 for name in names)

    def test_it_is_the_same_on_all_partitions(self, broker: ScriptedBroker, client: Any):
        async def work() -> str:
            return str((await client.subscribe("parts", "s")).consumer_name())

        name = broker.run(work())
        named = [body.consumer_name for body in broker.asked_for(pb.CommandSubscribe)]
        assert named == [name] * 3

    def test_the_applications_own_is_kept(self, broker: ScriptedBroker, client: Any):
        async def work() -> str:
            return str((await client.subscribe("t", "s", consumer_name="mine")).consumer_name())

        assert broker.run(work()) == "mine"

    def test_a_blocking_consumer_has_one(self):
        with pybroker.testing.broker() as service, Client(service.service_url) as client:
            assert len(client.subscribe("t", "s").consumer_name()) == 10


class TestEpochs:
    def test_a_request_without_a_connection_is_made_by_the_next_subscribe(
        self, broker: ScriptedBroker, client: Any
    ):
        async def work() -> None:
            consumer = await client.subscribe("t", "s")
            broker.peer.lose()
            consumer.redeliver_unacknowledged_messages()
            await asyncio.sleep(10)

        broker.run(work())
        assert [body.consumer_epoch for body in broker.asked_for(pb.CommandSubscribe)] == [0, 1]
        assert not broker.asked_for(pb.CommandRedeliverUnacknowledgedMessages)

    def test_a_request_during_a_subscribe_is_repeated_after_it(
        self, broker: ScriptedBroker, client: Any
    ):
        async def work() -> bytes:
            consumer = await client.subscribe("t", "s")
            answer = broker.answers["Subscribe"]

            def meanwhile(*asked: Any) -> Any:
                consumer.redeliver_unacknowledged_messages()
                return answer(*asked)

            broker.answers["Subscribe"] = meanwhile
            await reconnected(broker)
            broker.peer.deliver(1, 1, b"before the request", consumer_epoch=0)
            broker.peer.deliver(1, 1, b"after it", consumer_epoch=1)
            return bytes((await consumer.receive(1000)).data())

        assert broker.run(work()) == b"after it"
        (asked,) = broker.asked_for(pb.CommandRedeliverUnacknowledgedMessages)
        assert asked.consumer_epoch == 1

    @pytest.mark.parametrize("requests", [1, 3])
    def test_a_subscribe_carries_the_present_one(
        self, broker: ScriptedBroker, client: Any, requests: int
    ):
        async def work() -> None:
            consumer = await client.subscribe("t", "s")
            for _ in range(requests):
                consumer.redeliver_unacknowledged_messages()
            await reconnected(broker)

        broker.run(work())
        last = broker.asked_for(pb.CommandSubscribe)[-1]
        assert last.consumer_epoch == requests
