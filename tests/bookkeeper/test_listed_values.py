"""Values that a node lists, each in a ledger of its own: schemas, on the simulated cluster."""

import asyncio
import base64
import json

import pytest
from apache_storage import storage  # noqa: F401
from simulated_storage import life, process, run  # noqa: F401

from managed_ledger.errors import BadVersion, CorruptStorage
from pybroker.base.names import TopicName
from pybroker.broker.schemas.compatibility import AVRO, StoredSchema
from pybroker.broker.schemas.registry import Schemas
from pybroker.formats.apache.schemas import SchemaNodes
from pybroker.simulation.world import SimulatedClock

PATH = "/schemas/acme/shop/orders"
KEYS = [f"/schemas/acme%2Fshop%2Fpersistent%2Forders/{number:012}" for number in range(3)]
TOPIC = TopicName.parse("persistent://acme/shop/orders")


def schema(text="{}"):
    record = {"name": "orders", "type": 1, "data": base64.b64encode(text.encode()).decode()}
    return json.dumps({**record, "properties": {}, "added_at_ms": 1}).encode()


async def ledgers(one):
    listed = SchemaNodes().split(PATH, await one.node(PATH))
    return [each.ledger_id for each in listed.values()]


async def exists(one, ledger_id):
    try:
        await one.node(one.backend._store.path(ledger_id))
    except Exception:
        return False
    return True


def test_another_broker_sees_a_schema_and_a_later_one_finds_it(storage, run):  # noqa: F811
    async def scenario():
        async with storage() as one, storage() as two:
            await one.metadata.put(KEYS[0], schema(), -1)
            await one.metadata.put(KEYS[1], schema("[]"), -1)
            await two.seen()
            assert two.metadata.keys("/schemas/") == KEYS[:2]
            assert two.metadata.get(KEYS[1]) == (schema("[]"), 0)
        async with storage() as later:
            assert later.metadata.get(KEYS[0]) == (schema(), 0)
            assert later.metadata.get(KEYS[1]) == (schema("[]"), 0)

    run(scenario())


def test_of_two_schemas_with_the_same_number_one_is_refused_and_its_ledger_goes(storage, run):  # noqa: F811
    async def scenario():
        async with storage() as one, storage() as two:
            puts = [one.metadata.put(KEYS[0], schema("1")), two.metadata.put(KEYS[0], schema("2"))]
            outcomes = await asyncio.gather(*puts, return_exceptions=True)
            assert sorted(map(type, outcomes), key=str) == [int, BadVersion]
            await asyncio.gather(one.seen(), two.seen())
            assert one.metadata.get(KEYS[0]) == two.metadata.get(KEYS[0])
            (kept,) = await ledgers(one)
            for each in (one, two):
                await each.metadata.delete("anything")
                await each.metadata.delete("anything")
            there = [each for each in range(kept + 50) if await exists(one, each)]
            assert there == [kept]

    run(scenario())


def test_an_own_schema_is_no_news(storage, run):  # noqa: F811
    async def scenario():
        async with storage() as one:
            heard = []
            one.metadata.watch("/schemas/", heard.append)
            await one.metadata.put(KEYS[0], schema(), -1)
            await one.seen()
            assert heard == [KEYS[0]]

    run(scenario())


def test_ledgers_go_with_their_schemas_and_the_node_with_the_last_one(storage, run):  # noqa: F811
    async def scenario():
        async with storage() as one, storage() as two:
            await asyncio.gather(*(one.metadata.put(key, schema()) for key in KEYS))
            before = await ledgers(one)
            await asyncio.gather(*map(one.metadata.delete, KEYS[:2]))
            assert await ledgers(one) == before[2:]
            await one.metadata.delete(KEYS[2])
            await one.metadata.delete("anything")
            await one.metadata.delete("anything")
            assert not any([await exists(one, each) for each in before])
            await two.seen()
            assert two.metadata.keys("/schemas/") == []
            await two.metadata.put(KEYS[0], schema(), -1)

    run(scenario())


def test_a_schema_whose_ledger_is_gone_concerns_its_own_topic_only(storage, run):  # noqa: F811
    async def scenario():
        async with storage() as one:
            await one.metadata.put(KEYS[0], schema())
            await one.metadata.put(KEYS[0].replace("orders", "other"), schema())
            (ledger_id,) = await ledgers(one)
            await one.backend._client.delete(ledger_id)
        async with storage() as later:
            with pytest.raises(CorruptStorage, match="try again"):
                later.metadata.get(KEYS[0])
            assert later.metadata.get(KEYS[0].replace("orders", "other")) is not None

    run(scenario())


def test_a_list_that_cannot_be_read_can_be_repaired(storage, run):  # noqa: F811
    async def scenario():
        async with storage() as one:
            await one.metadata.put(KEYS[0], schema())
            good = await one.node(PATH)
            await one.backend.zookeeper.set(PATH, b"\x0a\xff")
            await one.seen()
            with pytest.raises(CorruptStorage, match=PATH):
                one.metadata.get(KEYS[0])
            await one.backend.zookeeper.set(PATH, good)
            await one.seen()
            assert one.metadata.get(KEYS[0]) == (schema(), 0)

    run(scenario())


def test_a_schema_that_one_broker_added_is_found_by_another(storage, run, life):  # noqa: F811
    async def scenario():
        async with storage() as one, storage() as two:
            clock = SimulatedClock(life.world)
            first, second = Schemas(one.metadata, clock), Schemas(two.metadata, clock)
            order = b'{"type":"record","name":"Order","fields":[]}'
            assert await first.add(TOPIC, StoredSchema("Order", AVRO, order, {"a": "b"})) == 0
            await two.seen()
            assert await second.add(TOPIC, StoredSchema("Order", AVRO, order, {"a": "b"})) == 0
            assert second.get(TOPIC).schema == StoredSchema("Order", AVRO, order, {"a": "b"})
            assert await second.delete(TOPIC) == 1
            await one.seen()
            assert await first.add(TOPIC, StoredSchema("Order", AVRO, order, {"a": "b"})) == 2

    run(scenario())
