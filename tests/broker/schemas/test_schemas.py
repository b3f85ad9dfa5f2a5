"""Schemas: numbered once, found again, never two with one number."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest
from dispatch_fakes import SteppedClock

from managed_ledger.storage.memory import MemoryBackend
from pybroker.base.errors import IncompatibleSchema, TopicNotFound
from pybroker.base.names import TopicName
from pybroker.broker.schemas.compatibility import StoredSchema
from pybroker.broker.schemas.registry import Schemas, version_bytes

ORDERS = TopicName.parse("orders")
NONE, STRING, JSON, AUTO_CONSUME = 0, 1, 2, 21


def json_schema(number: int) -> StoredSchema:
    """Schemas that can read each other's data."""
    fields = b'{"name": "f%d", "type": "int", "default": 0}' % number
    data = b'{"type": "record", "name": "r", "fields": [%s]}' % fields
    return StoredSchema("r", JSON, data, {"k": "v"})


def run(scenario: Callable[[Schemas], Coroutine[Any, Any, None]]) -> None:
    async def go() -> None:
        backend = MemoryBackend()
        await backend.open()
        await scenario(Schemas(backend.metadata, SteppedClock()))
        await backend.close()

    asyncio.run(go())


def test_versions_count_from_zero_and_are_found_again() -> None:
    async def scenario(schemas: Schemas) -> None:
        for number in range(12):
            assert await schemas.add(ORDERS, json_schema(number)) == number
        assert await schemas.add(ORDERS, json_schema(3)) == 3
        latest, third = schemas.get(ORDERS), schemas.get(ORDERS, 3)
        assert (latest.number, latest.schema) == (11, json_schema(11))
        assert (third.number, third.schema) == (3, json_schema(3))
        with pytest.raises(TopicNotFound):
            schemas.get(ORDERS, 12)

    run(scenario)


def test_concurrent_clients_get_one_version_each() -> None:
    async def scenario(schemas: Schemas) -> None:
        same = [schemas.add(ORDERS, json_schema(0)) for _ in range(3)]
        assert await asyncio.gather(*same) == [0, 0, 0]
        others = [schemas.add(ORDERS, json_schema(number)) for number in (1, 2, 3)]
        assert sorted(await asyncio.gather(*others)) == [1, 2, 3]  # type: ignore[type-var]

    run(scenario)


def test_another_type_is_incompatible() -> None:
    async def scenario(schemas: Schemas) -> None:
        await schemas.add(ORDERS, json_schema(0))
        with pytest.raises(IncompatibleSchema):
            await schemas.add(ORDERS, StoredSchema("s", STRING, b""))

    run(scenario)


def test_a_consumer_of_any_schema_adds_none() -> None:
    async def scenario(schemas: Schemas) -> None:
        any_schema = StoredSchema("any", AUTO_CONSUME, b"")
        assert await schemas.add(ORDERS, any_schema) is None
        await schemas.check_consumer(ORDERS, any_schema, True)
        with pytest.raises(TopicNotFound):
            schemas.get(ORDERS)

    run(scenario)


def test_bytes_are_a_schema_too() -> None:
    async def scenario(schemas: Schemas) -> None:
        assert await schemas.add(ORDERS, StoredSchema("bytes", NONE, b"")) == 0
        assert schemas.get(ORDERS).schema.type == NONE
        with pytest.raises(IncompatibleSchema):
            await schemas.add(ORDERS, json_schema(0))

    run(scenario)


def test_a_consumer_s_schema_is_kept_where_nothing_else_says_how_messages_look() -> None:
    async def scenario(schemas: Schemas) -> None:
        await schemas.check_consumer(ORDERS, json_schema(0), idle=True)
        assert schemas.get(ORDERS).schema == json_schema(0)
        with pytest.raises(IncompatibleSchema):
            await schemas.add(ORDERS, StoredSchema("s", STRING, b""))

    run(scenario)


def test_a_consumer_s_schema_does_not_fit_what_was_written_without_one() -> None:
    async def scenario(schemas: Schemas) -> None:
        with pytest.raises(IncompatibleSchema, match="active topic with empty"):
            await schemas.check_consumer(ORDERS, json_schema(0), idle=False)
        with pytest.raises(TopicNotFound):
            schemas.get(ORDERS)

    run(scenario)


def test_a_consumer_without_a_schema_of_its_own_leaves_none_behind() -> None:
    async def scenario(schemas: Schemas) -> None:
        for idle in (True, False):
            await schemas.check_consumer(ORDERS, StoredSchema("bytes", NONE, b""), idle)
        with pytest.raises(TopicNotFound):
            schemas.get(ORDERS)

    run(scenario)


def test_a_consumer_s_schema_is_compared_and_not_kept() -> None:
    async def scenario(schemas: Schemas) -> None:
        await schemas.add(ORDERS, json_schema(0))
        await schemas.check_consumer(ORDERS, json_schema(1), True)
        assert schemas.get(ORDERS).number == 0
        with pytest.raises(IncompatibleSchema, match="cannot read"):
            await schemas.check_consumer(ORDERS, StoredSchema("s", STRING, b""), True)

    run(scenario)


def test_versions_go_on_behind_a_deletion() -> None:
    async def scenario(schemas: Schemas) -> None:
        await schemas.add(ORDERS, json_schema(0))
        assert await schemas.delete(ORDERS) == 1
        for asked in (None, 1):
            with pytest.raises(TopicNotFound):
                schemas.get(ORDERS, asked)
        with pytest.raises(TopicNotFound):
            await schemas.delete(ORDERS)
        assert schemas.get(ORDERS, 0).schema == json_schema(0)  # its messages still exist
        assert await schemas.add(ORDERS, StoredSchema("s", STRING, b"")) == 2

    run(scenario)


def test_a_partition_shares_its_topic_s_schemas_and_other_topics_do_not() -> None:
    async def scenario(schemas: Schemas) -> None:
        await schemas.add(ORDERS.partition_at(2), json_schema(0))
        assert schemas.get(ORDERS).number == 0
        with pytest.raises(TopicNotFound):
            schemas.get(TopicName.parse("orders2"))
        await schemas.delete(ORDERS)
        with pytest.raises(TopicNotFound):
            schemas.get(ORDERS.partition_at(2))

    run(scenario)


def test_topics_within_another_s_name_have_schemas_of_their_own() -> None:
    async def scenario(schemas: Schemas) -> None:
        inner = TopicName.parse("persistent://public/default/orders/2024")
        await schemas.add(inner, json_schema(0))
        with pytest.raises(TopicNotFound):
            schemas.get(ORDERS)
        assert await schemas.add(ORDERS, StoredSchema("s", STRING, b"")) == 0

    run(scenario)


def test_a_version_travels_as_eight_bytes() -> None:
    assert version_bytes(258) == b"\x00\x00\x00\x00\x00\x00\x01\x02"
    assert version_bytes(None) == b""


def test_a_schemas_name_and_properties_count_as_its_definition_does() -> None:
    async def scenario(schemas: Schemas) -> None:
        for much in ({"a": "b" * 300_000}, {"a" * 300_000: "b"}):
            with pytest.raises(IncompatibleSchema, match="properties"):
                await schemas.add(ORDERS, StoredSchema("s", STRING, b"", much))
        with pytest.raises(IncompatibleSchema):
            await schemas.add(ORDERS, StoredSchema("s" * 300_000, STRING, b""))
        for number in range(20):
            large = replace(json_schema(number), properties={"a": "b" * 200_000})
            await schemas.add(ORDERS, large)
        with pytest.raises(IncompatibleSchema, match="accepts no further schema"):
            await schemas.add(ORDERS, replace(json_schema(20), properties={"a": "b" * 200_000}))

    run(scenario)


def test_a_schema_has_few_properties_for_all_versions_are_read_at_once() -> None:
    async def scenario(schemas: Schemas) -> None:
        many = {str(number): "" for number in range(1001)}
        with pytest.raises(IncompatibleSchema, match="1001 properties"):
            await schemas.add(ORDERS, StoredSchema("s", STRING, b"", many))

    run(scenario)
