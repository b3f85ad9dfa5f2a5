"""Deleted schemas in the admin REST, and what consumers still receive of them."""

from typing import Any

import httpx
from raw_client import RawClient

from pybroker.testing import RunningBroker
from pybroker.wire import pulsar_api_pb2 as pb

STRING = {"type": "STRING", "schema": "", "properties": {}}
RECORD = '{"type": "record", "name": "R", "fields": []}'


def create(admin: httpx.Client, topic: str) -> str:
    """The path of the topic's schemas, after a first schema."""
    path = f"/admin/v2/schemas/{topic}"
    assert admin.post(f"{path}/schema", json=STRING).json() == {"version": {"version": 0}}
    return path


def schema_for_consumers(broker: RunningBroker, topic: str, version: int) -> Any:
    number = version.to_bytes(8, "big")
    body = pb.CommandGetSchema(topic=f"persistent://{topic}", schema_version=number)
    with RawClient(broker.service_url) as raw:
        return raw.request(pb.BaseCommand.GET_SCHEMA, "getSchema", body)


def test_a_deleted_version_is_not_found_and_consumers_may_read_it(
    admin: httpx.Client, admin_broker: RunningBroker, topic: str
) -> None:
    path = create(admin, topic)
    assert admin.delete(f"{path}/schema").json() == {"version": 1}
    for version in ("", "/0", "/1", "/2"):
        assert admin.get(f"{path}/schema{version}").status_code == 404
    assert admin.get(f"{path}/schemas").json() == {"getSchemaResponses": []}
    found = schema_for_consumers(admin_broker, topic, 0)
    assert (found.HasField("error_code"), found.schema.type) == (False, pb.Schema.String)
    assert schema_for_consumers(admin_broker, topic, 1).error_code == pb.TopicNotFound


def test_versions_behind_a_deletion_are_found(admin: httpx.Client, topic: str) -> None:
    path = create(admin, topic)
    admin.delete(f"{path}/schema")
    body = {"type": "AVRO", "schema": RECORD, "properties": {}}
    assert admin.post(f"{path}/schema", json=body).json() == {"version": {"version": 2}}
    assert admin.get(f"{path}/schema/2").json()["type"] == "AVRO"
    assert admin.get(f"{path}/schema/0").status_code == 404


def test_a_forced_deletion_leaves_nothing_of_the_versions_and_their_numbers_go_on(
    admin: httpx.Client, admin_broker: RunningBroker, topic: str
) -> None:
    path = create(admin, topic)
    assert admin.delete(f"{path}/schema", params={"force": "true"}).json() == {"version": 1}
    assert schema_for_consumers(admin_broker, topic, 0).error_code == pb.TopicNotFound
    assert admin.get(f"{path}/schema/0").status_code == 404
    assert admin.post(f"{path}/schema", json=STRING).json() == {"version": {"version": 2}}
