"""Producers with a schema: the schema of the topic, and the schema version of messages."""

import json

import pytest
from scenario import SOON_MS, subscribe

from pybroker.client import Client, IncompatibleSchema, SchemaType, TopicSchema


def record(kind: str) -> TopicSchema:
    fields = [{"name": "id", "type": kind}]
    definition = json.dumps({"type": "record", "name": "Row", "fields": fields})
    return TopicSchema(SchemaType.AVRO, definition, "Row")


def test_messages_carry_the_version_of_their_schema(client: Client, topic: str) -> None:
    consumer = subscribe(client, topic)
    client.create_producer(topic, schema=record("long")).send(b"\x02")
    client.create_producer(topic).send(b"plain")
    versions = [consumer.receive(SOON_MS).schema_version() for _ in range(2)]
    assert versions == [bytes(8), b""]


def test_a_schema_that_does_not_go_with_the_topics_is_refused(client: Client, topic: str) -> None:
    client.create_producer(topic, schema=record("long"))
    with pytest.raises(IncompatibleSchema):
        client.create_producer(topic, schema=record("string"))
