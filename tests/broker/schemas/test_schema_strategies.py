"""Which schema may follow which, by strategy and kind."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from dispatch_fakes import SteppedClock

from managed_ledger.storage.memory import MemoryBackend
from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.errors import IncompatibleSchema, TopicNotFound
from pybroker.base.names import TopicName
from pybroker.broker.policies.effective import Effective
from pybroker.broker.schemas import known_versions
from pybroker.broker.schemas.compatibility import (
    StoredSchema,
    Strategy,
    join_key_value,
    why_invalid,
    why_not_after,
)
from pybroker.broker.schemas.registry import SchemaRules, Schemas
from pybroker.broker.schemas.rules import of_system_topics, schema_rules

ORDERS = TopicName.parse("orders")
NONE, STRING, JSON, AVRO, KEY_VALUE, NATIVE = 0, 1, 2, 4, 15, 20
S = Strategy


def record(*fields: str, kind: int = AVRO) -> StoredSchema:
    """A record of ints; a field whose name ends in = has a default."""
    described = [
        {"name": name.rstrip("="), "type": "int"} | ({"default": 0} if name[-1] == "=" else {})
        for name in fields
    ]
    text = json.dumps({"type": "record", "name": "r", "fields": described})
    return StoredSchema("r", kind, text.encode())


def key_value(key: StoredSchema, value: StoredSchema, encoding: str = "INLINE") -> StoredSchema:
    properties = {
        "key.schema.type": "AVRO",
        "value.schema.type": "AVRO",
        "kv.encoding.type": encoding,
    }
    return StoredSchema("kv", KEY_VALUE, join_key_value(key.data, value.data), properties)


def native(root: str) -> StoredSchema:
    return StoredSchema("n", NATIVE, json.dumps({"rootMessageTypeName": root}).encode())


LESS, MORE, OPTIONAL = record("a"), record("a", "b"), record("a", "b=")
# Each: (old, new), and the strategies under which it may follow.
BACK = {S.BACKWARD, S.BACKWARD_TRANSITIVE}
FORTH = {S.FORWARD, S.FORWARD_TRANSITIVE}
BOTH = {S.FULL, S.FULL_TRANSITIVE}


@pytest.mark.parametrize("strategy", list(Strategy))
@pytest.mark.parametrize("kind", [AVRO, JSON])
@pytest.mark.parametrize(
    ("old", "new", "allowed"),
    [
        (["a"], ["a", "b"], FORTH),
        (["a", "b"], ["a"], BACK),
        (["a"], ["a", "b="], BACK | FORTH | BOTH),
        (["a"], ["b"], set()),
    ],
)
def test_records(
    kind: int, old: list[str], new: list[str], allowed: set[Strategy], strategy: Strategy
) -> None:
    why = why_not_after(strategy, record(*new, kind=kind), record(*old, kind=kind))
    assert (why is None) is (strategy in allowed | {S.ALWAYS_COMPATIBLE})


@pytest.mark.parametrize("strategy", list(Strategy))
def test_key_and_value_follow_each_for_itself(strategy: Strategy) -> None:
    old = key_value(LESS, LESS)
    allowed = BACK | FORTH | BOTH | {S.ALWAYS_COMPATIBLE}
    follows = why_not_after(strategy, key_value(LESS, OPTIONAL, "SEPARATED"), old) is None
    assert follows is (strategy in allowed)
    of_key = why_not_after(strategy, key_value(MORE, LESS), old) is None
    assert of_key is (strategy in FORTH | {S.ALWAYS_COMPATIBLE})


@pytest.mark.parametrize("strategy", list(Strategy))
def test_protobuf_keeps_its_root_message(strategy: Strategy) -> None:
    assert (why_not_after(strategy, native("b"), native("a")) is None) is (
        strategy is S.ALWAYS_COMPATIBLE
    )
    assert why_not_after(strategy, native("a"), native("a")) is None


@pytest.mark.parametrize("strategy", list(Strategy))
def test_types_mix_only_where_anything_goes(strategy: Strategy) -> None:
    text = StoredSchema("s", STRING, b"")
    assert (why_not_after(strategy, text, LESS) is None) is (strategy is S.ALWAYS_COMPATIBLE)


def test_the_same_schema_written_otherwise_is_the_same() -> None:
    spaced = StoredSchema("r", AVRO, json.dumps(json.loads(LESS.data), indent=4).encode())
    assert spaced.same_as(LESS)
    assert not spaced.same_as(record("a", kind=JSON))


@pytest.mark.parametrize(
    "schema",
    [
        StoredSchema("r", AVRO, b"{"),
        StoredSchema("r", JSON, b'{"type": "record", "name": "r"}'),
        StoredSchema("s", STRING, bytes(300_000)),
        StoredSchema("kv", KEY_VALUE, b"\0\0\0\x05"),
        key_value(LESS, StoredSchema("r", AVRO, b"x")),
    ],
)
def test_what_is_no_schema_is_not_kept(schema: StoredSchema) -> None:
    assert why_invalid(schema) is not None


# -- in the registry


USUAL = SchemaRules()


def run(
    scenario: Callable[[Schemas], Coroutine[Any, Any, None]], rules: SchemaRules = USUAL
) -> None:
    async def go() -> None:
        backend = MemoryBackend()
        await backend.open()
        await scenario(Schemas(backend.metadata, SteppedClock(), rules=lambda topic: rules))
        await backend.close()

    asyncio.run(go())


@pytest.mark.parametrize("transitive", [False, True])
def test_transitive_strategies_look_at_all_versions(transitive: bool) -> None:
    async def scenario(schemas: Schemas) -> None:
        await schemas.add(ORDERS, record("a"))
        await schemas.add(ORDERS, record("a", "b="))
        if transitive:
            with pytest.raises(IncompatibleSchema):
                await schemas.add(ORDERS, record("a", "b"))
        else:
            assert await schemas.add(ORDERS, record("a", "b")) == 2

    run(scenario, SchemaRules(S.BACKWARD_TRANSITIVE if transitive else S.BACKWARD))


def test_a_consumer_only_has_to_read_what_is_there() -> None:
    async def scenario(schemas: Schemas) -> None:
        await schemas.add(ORDERS, record("a", "b"))
        await schemas.check_consumer(ORDERS, record("a"), idle=False)
        with pytest.raises(IncompatibleSchema):
            await schemas.check_consumer(ORDERS, record("a", "b", "c"), idle=False)

    run(scenario, SchemaRules(S.FORWARD))


def test_where_all_is_compatible_a_consumer_needs_nothing_to_compare_with() -> None:
    async def scenario(schemas: Schemas) -> None:
        await schemas.check_consumer(ORDERS, record("a"), idle=False)
        with pytest.raises(TopicNotFound):
            schemas.get(ORDERS)

    run(scenario, SchemaRules(S.ALWAYS_COMPATIBLE))


def test_where_updates_are_not_allowed_a_known_schema_is_found_and_an_admin_adds() -> None:
    async def scenario(schemas: Schemas) -> None:
        with pytest.raises(IncompatibleSchema, match="schema auto updating is disabled"):
            await schemas.check_consumer(ORDERS, LESS, idle=True)
        with pytest.raises(IncompatibleSchema, match="schema auto updating is disabled"):
            await schemas.add(ORDERS, LESS)
        assert await schemas.add(ORDERS, LESS, by_admin=True) == 0
        assert await schemas.add(ORDERS, LESS) == 0

    run(scenario, SchemaRules(auto_update=False))


@pytest.mark.parametrize("enforced", [False, True])
def test_who_brings_no_schema_is_refused_where_that_is_enforced(enforced: bool) -> None:
    async def scenario(schemas: Schemas) -> None:
        schemas.check_without(ORDERS)  # the topic has no schema
        await schemas.add(ORDERS, StoredSchema("s", STRING, b""))
        if enforced:
            with pytest.raises(IncompatibleSchema, match="SchemaValidationEnforced"):
                schemas.check_without(ORDERS)
        else:
            schemas.check_without(ORDERS)
        await schemas.delete(ORDERS)
        schemas.check_without(ORDERS)

    run(scenario, SchemaRules(enforced=enforced))


def test_a_topic_keeps_a_limited_number_of_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_versions, "MAX_VERSIONS", 2)

    async def scenario(schemas: Schemas) -> None:
        for number in range(2):
            await schemas.add(ORDERS, record(f"f{number}="))
        with pytest.raises(IncompatibleSchema, match="2 versions"):
            await schemas.add(ORDERS, record("g="))
        assert await schemas.add(ORDERS, record("f0=")) == 0
        await schemas.delete(ORDERS)
        assert await schemas.add(ORDERS, record("g=")) == 3

    run(scenario)


def test_a_topic_keeps_a_limited_number_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_versions, "MAX_BYTES", 150)

    async def scenario(schemas: Schemas) -> None:
        await schemas.add(ORDERS, record("a="))
        with pytest.raises(IncompatibleSchema, match="more than 150"):
            await schemas.add(ORDERS, record("b="))

    run(scenario)


def test_what_is_known_of_many_topics_is_forgotten_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_versions, "_MAX_KNOWN", 10)

    async def scenario(schemas: Schemas) -> None:
        for number in range(20):
            assert await schemas.add(TopicName.parse(f"t{number}"), LESS) == 0
        for number in range(20):
            assert await schemas.add(TopicName.parse(f"t{number}"), LESS) == 0
        assert schemas._known._versions <= 10

    run(scenario)


@pytest.mark.parametrize(
    ("policies", "settings", "rules"),
    [
        ({}, {}, SchemaRules()),
        ({}, {"schema_compatibility_strategy": "BACKWARD"}, SchemaRules(S.BACKWARD)),
        ({"schema_compatibility_strategy": "FORWARD"}, {}, SchemaRules(S.FORWARD)),
        ({"schema_compatibility_strategy": "UNDEFINED"}, {}, SchemaRules(S.FULL)),
        ({"schema_auto_update_compatibility_strategy": "Forward"}, {}, SchemaRules(S.FORWARD)),
        (
            {"schema_auto_update_compatibility_strategy": "AutoUpdateDisabled"},
            {"schema_compatibility_strategy": "BACKWARD"},
            SchemaRules(S.ALWAYS_INCOMPATIBLE),
        ),
        (
            {
                "schema_auto_update_compatibility_strategy": "Full",
                "schema_compatibility_strategy": "BACKWARD",
            },
            {},
            SchemaRules(S.BACKWARD),
        ),
        ({"is_allow_auto_update_schema": False}, {}, SchemaRules(auto_update=False)),
        ({"schema_validation_enforced": True}, {}, SchemaRules(enforced=True)),
        ({}, {"is_schema_validation_enforced": True}, SchemaRules(enforced=True)),
    ],
)
def test_a_namespaces_policies_come_before_the_brokers(
    policies: dict[str, Any], settings: dict[str, Any], rules: SchemaRules
) -> None:
    names = {
        "schema_compatibility_strategy": "schemaCompatibilityStrategy",
        "schema_auto_update_compatibility_strategy": "schemaAutoUpdateCompatibilityStrategy",
        "is_allow_auto_update_schema": "isAllowAutoUpdateSchema",
        "schema_validation_enforced": "schemaValidationEnforced",
    }
    values = {names[field]: value for field, value in policies.items()}
    assert schema_rules(Effective(BrokerConfig(**settings), (values,))) == rules


def test_the_brokers_own_topics_take_any_schema() -> None:
    assert of_system_topics(BrokerConfig()).strategy is S.ALWAYS_COMPATIBLE
