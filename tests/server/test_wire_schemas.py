"""Enforcement, policies and limits of schemas, on the wire."""

from collections.abc import Callable
from typing import Any

import pytest
from raw_client import RawClient

import pybroker.testing
from pybroker.wire import pulsar_api_pb2 as pb

Connect = Callable[..., RawClient]
TEXT = pb.Schema(name="s", type=pb.Schema.String, schema_data=b"")


def record(*fields: str) -> pb.Schema:
    described = ", ".join(f'{{"name": "{name}", "type": "int"}}' for name in fields)
    data = f'{{"type": "record", "name": "r", "fields": [{described}]}}'
    return pb.Schema(name="r", type=pb.Schema.Avro, schema_data=data.encode())


def test_where_schemas_are_enforced_a_producer_needs_one(topic: str) -> None:
    with (
        pybroker.testing.broker(is_schema_validation_enforced=True) as broker,
        RawClient(broker.service_url) as raw,
    ):
        raw.create_producer(topic)  # there is no schema yet
        raw.create_producer(topic, 2, schema=TEXT)
        assert raw.ask_for_producer(topic, 3).error == pb.IncompatibleSchema
        assert isinstance(raw.subscribe(topic), pb.CommandSuccess)


def test_a_namespaces_strategy_decides(raw: RawClient, wire_broker: Any) -> None:
    namespace = "public/backward"
    policies = {"schema_compatibility_strategy": "BACKWARD"}
    wire_broker.call(lambda running: running.topics.tenants.create_namespace(namespace, policies))
    topic = f"persistent://{namespace}/t"
    raw.create_producer(topic, schema=record("a", "b"))
    answer = raw.ask_for_producer(topic, 2, schema=record("a"))
    assert answer.schema_version == bytes(7) + b"\x01"
    assert raw.ask_for_producer(topic, 3, schema=record("a", "c")).error == pb.IncompatibleSchema


@pytest.mark.parametrize("data", [b"{", b"x" * 300_000])
def test_what_is_no_schema_is_refused(raw: RawClient, topic: str, data: bytes) -> None:
    broken = pb.Schema(name="r", type=pb.Schema.Avro, schema_data=data)
    assert raw.ask_for_producer(topic, schema=broken).error == pb.IncompatibleSchema


def test_topics_that_keep_nothing_keep_schemas(raw: RawClient, topic: str) -> None:
    fleeting = topic.replace("persistent://", "non-persistent://")
    raw.create_producer(fleeting, schema=TEXT)
    assert raw.ask_for_producer(fleeting, 2, schema=record("a")).error == pb.IncompatibleSchema
    assert raw.subscribe(fleeting, schema=record("a")).error == pb.IncompatibleSchema
    assert isinstance(raw.subscribe(fleeting, 2, schema=TEXT), pb.CommandSuccess)
