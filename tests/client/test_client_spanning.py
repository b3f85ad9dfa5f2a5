"""A transaction that spans a namespace, with brokers that support this and with others."""

from typing import Any

import pytest
from scripted_broker import Peer, ScriptedBroker

from pybroker.client import aio
from pybroker.wire import pulsar_api_pb2 as pb

HERE = "public/default"


@pytest.fixture
def able(broker: ScriptedBroker) -> ScriptedBroker:
    connect = broker.answers["Connect"]

    def connected(peer: Peer, body: Any) -> Any:
        answer = connect(peer, body)
        answer.feature_flags.supports_spanning_namespaces = True
        return answer

    broker.answers["Connect"] = connected
    return broker


async def write_to(client: aio.Client, *topics: str, namespace: str | None = HERE) -> None:
    async with await client.new_transaction(namespace=namespace) as txn:
        for topic in topics:
            producer = await client.create_producer(topic)
            await producer.send(b"a", txn=txn)


def added(broker: ScriptedBroker) -> list[str]:
    return [
        name for asked in broker.asked_for(pb.CommandAddPartitionToTxn) for name in asked.partitions
    ]


def test_what_the_broker_takes_in_is_not_added(able: ScriptedBroker, client: aio.Client) -> None:
    able.run(write_to(client, "t", "u", "public/other/v"))
    assert [asked.spans_namespace for asked in able.asked_for(pb.CommandNewTxn)] == [HERE]
    assert added(able) == ["persistent://public/other/v"]


def test_with_a_broker_that_does_not_know_of_it_everything_is_added(
    broker: ScriptedBroker, client: aio.Client
) -> None:
    broker.run(write_to(client, "t"))
    assert not broker.asked_for(pb.CommandNewTxn)[0].HasField("spans_namespace")
    assert added(broker) == ["persistent://public/default/t"]


def test_one_that_spans_nothing_adds_what_it_touches(
    able: ScriptedBroker, client: aio.Client
) -> None:
    able.run(write_to(client, "t", namespace=None))
    assert added(able) == ["persistent://public/default/t"]


def test_a_topic_that_is_to_join_ahead_is_asked_for(
    able: ScriptedBroker, client: aio.Client
) -> None:
    async def work() -> None:
        txn = await client.new_transaction(namespace=HERE)
        await txn.joined("persistent://public/default/t")

    able.run(work())
    assert added(able) == ["persistent://public/default/t"]
