"""The interpreter over the table of messages: every request and response, in every version."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from message_values import bodies

from pybroker.kafka.codec.message_table import Field, all_fields, message_kinds
from pybroker.kafka.codec.messages import (
    Header,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    read_header,
    request_struct,
    response_header,
)
from pybroker.kafka.codec.primitives import Malformed
from pybroker.kafka.codec.structs import MAX_ELEMENTS

KINDS = message_kinds()
EVERY = [
    (key, version)
    for key, kind in KINDS.items()
    for version in range(kind.versions.first, kind.versions.last + 1)
]


def with_defaults(fields: list[Field], version: int, body: dict[str, Any]) -> dict[str, Any]:
    """What is read back: all fields of the message, also those that its version lacks."""
    return {field.name: _read_back(field, version, body) for field in fields}


def _read_back(field: Field, version: int, body: dict[str, Any]) -> Any:
    if version not in field.versions:
        return field.default
    value = body[field.name]
    if field.tag is not None and (value == field.default or value == []):
        return field.default
    if value is None or not field.fields:
        return value
    if field.kind == "{}":
        return with_defaults(field.fields, version, value)
    return [with_defaults(field.fields, version, each) for each in value]


@pytest.mark.parametrize("key", KINDS)
@given(data=st.data())
@settings(max_examples=20)
def test_a_message_is_read_as_it_was_written(key: int, data: st.DataObject) -> None:
    kind = KINDS[key]
    version = data.draw(st.integers(kind.versions.first, kind.versions.last))
    body = data.draw(bodies(kind.request, version))
    request = encode_request(Header(key, version, 7, "client"), body)
    header, at = read_header(request, kind.is_flexible(version))
    assert header == Header(key, version, 7, "client")
    read = decode_request(key, version, request, at)
    assert read == with_defaults(kind.request, version, body)
    body = data.draw(bodies(kind.response, version))
    response = response_header(key, version, 9) + encode_response(key, version, body)
    assert decode_response(key, version, response) == (
        9,
        with_defaults(kind.response, version, body),
    )


def test_every_message_can_be_left_at_its_defaults() -> None:
    for key, version in EVERY:
        encoded = response_header(key, version, 1) + encode_response(key, version, {})
        assert decode_response(key, version, encoded)[0] == 1


def test_a_field_has_a_default_of_its_kind() -> None:
    for kind in KINDS.values():
        for field in (*all_fields(kind.request), *all_fields(kind.response)):
            if field.default is None and field.kind not in ("records", "{}"):
                assert field.nullable.last >= field.nullable.first, (kind.name, field.name)


@pytest.mark.parametrize(("key", "version"), [(3, 12), (1, 12), (11, 5), (11, 9), (68, 0)])
def test_bytes_that_end_too_soon_are_refused_wherever_they_end(key: int, version: int) -> None:
    body = {
        "topics": [{"name": "t", "topic": "t", "partitions": [{"partition": 1}]}],
        "protocols": [{"name": "range", "metadata": b"abc"}],
        "group_id": "g",
        "topic_partitions": [{"topic_id": bytes(16), "partitions": [1, 2]}],
    }
    whole = encode_request(Header(key, version, 7, "client"), body)
    _, begin = read_header(whole, KINDS[key].is_flexible(version))
    decode_request(key, version, whole, begin)
    for end in range(begin, len(whole)):
        with pytest.raises(Malformed):
            request_struct(key, version).read(whole[:end], begin)
    for end in range(begin):
        with pytest.raises(Malformed):
            read_header(whole[:end], KINDS[key].is_flexible(version))


def test_a_length_is_compared_with_what_is_there_before_anything_is_made() -> None:
    huge_array = (2**31 - 1).to_bytes(4, "big")
    with pytest.raises(Malformed, match="2147483647 bytes were announced, 0 are left"):
        decode_request(3, 0, huge_array, 0)
    huge_varint = b"\xff\xff\xff\xff\x0f"
    with pytest.raises(Malformed, match="were announced"):
        decode_request(3, 9, huge_varint, 0)
    with pytest.raises(Malformed, match="a varint has no end"):
        decode_request(3, 9, b"\xff" * 8, 0)


def test_an_array_has_so_many_structs_at_most() -> None:
    names = (MAX_ELEMENTS + 1).to_bytes(4, "big") + bytes(2 * (MAX_ELEMENTS + 1))
    with pytest.raises(Malformed, match="topics has 100001 elements; 100000 are allowed"):
        decode_request(3, 0, names, 0)


def test_what_follows_a_request_is_ignored_as_in_kafka() -> None:
    """librdkafka sends three bytes more than version 13 of Metadata has."""
    request = bytes.fromhex("00010000") + b"\x00\x00\x00"
    assert decode_request(3, 13, request, 0)["topics"] is None


@pytest.mark.parametrize(
    ("key", "version", "request_body"),
    [
        (18, 0, ""),  # ApiVersions
        (18, 2, ""),
        (18, 3, "02 61 02 62 00"),
        (16, 3, "00"),  # ListGroups
        (16, 4, "01 00"),
        (74, 0, "00"),  # ListConfigResources
        (3, 1, "ffffffff"),  # Metadata
        (3, 9, "00 01 00 00 00"),
    ],
)
def test_bodies_as_clients_send_them(key: int, version: int, request_body: str) -> None:
    data = bytes.fromhex(request_body)
    _, end = request_struct(key, version).read(data, 0)
    assert end == len(data)


def test_a_tag_of_a_later_version_is_ignored() -> None:
    request = bytes.fromhex("00 01 00 01 07 02 ffff")
    assert decode_request(3, 13, request, 0)["allow_auto_topic_creation"] is True


def test_text_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(Malformed, match="not UTF-8"):
        decode_request(3, 0, bytes.fromhex("00000001 0001 ff"), 0)
