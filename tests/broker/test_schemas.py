"""Schemas: numbered once, found again, never two of one number."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from managed_ledger.storage.memory import MemoryBackend
from pybroker.broker.schemas import Schemas, StoredSchema, version_bytes
from pybroker.errors import IncompatibleSchema, TopicNotFound
from pybroker.names import TopicName

ORDERS = TopicName.parse("orders")
NONE, STRING, JSON, AUTO_CONSUME = 0, 1, 2, 21


def json_schema(number: int) -> StoredSchema:
    return StoredSchema("r", JSON, b'{"n": %d}' % number, {"k": "v"})


def run(scenario: Callable[[Schemas], Coroutine[Any, Any, None]]) -> None:
    async def go() -> None:
        backend = MemoryBackend()
        await backend.open()
        await scenario(Schemas(backend.metadata))
        await backend.close()

    asyncio.run(go())


def test_versions_count_from_zero_and_are_found_again() -> None:
    async def scenario(schemas: Schemas) -> None:
        for number in range(12):
            assert await schemas.add(ORDERS, json_schema(number)) == number
        assert await schemas.add(ORDERS, json_schema(3)) == 3
        assert schemas.get(ORDERS) == (11, json_schema(11))
        assert schemas.get(ORDERS, 3) == (3, json_schema(3))
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


@pytest.mark.parametrize("kind", [NONE, AUTO_CONSUME])
def test_a_schema_that_describes_nothing_is_not_kept(kind: int) -> None:
    async def scenario(schemas: Schemas) -> None:
        await schemas.add(ORDERS, json_schema(0))
        assert await schemas.add(ORDERS, StoredSchema("any", kind, b"")) is None
        assert schemas.get(ORDERS) == (0, json_schema(0))

    run(scenario)


def test_a_partition_shares_its_topic_s_schemas_and_other_topics_do_not() -> None:
    async def scenario(schemas: Schemas) -> None:
        await schemas.add(ORDERS.partition_at(2), json_schema(0))
        assert schemas.get(ORDERS)[0] == 0
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
