"""The table of messages against that of kafka-python, which another team keeps."""

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any, Final

import kafka.protocol
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.protocol.api_message import ApiMessage
from message_values import bodies

from pybroker.kafka.codec.message_table import message_kinds
from pybroker.kafka.codec.messages import API_VERSIONS, encode_response, request_struct

KINDS: Final = message_kinds()
# Fields that kafka-python renames or reads as something else than Kafka's table says.
OTHERWISE: Final = frozenset({"cluster_authorized_operations", "topic_authorized_operations"})


def modules() -> Iterator[Any]:
    for found in pkgutil.walk_packages(kafka.protocol.__path__, "kafka.protocol."):
        if ".old" not in found.name and "generate" not in found.name:
            yield importlib.import_module(found.name)


def messages() -> dict[tuple[int, str], Any]:
    """kafka-python's classes, by API key and direction."""
    found = {}
    for module in modules():
        for each in vars(module).values():
            is_message = isinstance(each, type) and issubclass(each, ApiMessage)
            if is_message and each is not ApiMessage and each.API_KEY in KINDS:
                found[each.API_KEY, each.type] = each
    del found[API_VERSIONS, "response"]  # with an error, it reads another version
    return found


THEIRS: Final = messages()


def test_kafka_python_knows_most_messages() -> None:
    assert len(THEIRS) >= 80


@pytest.mark.parametrize(("key", "kind"), sorted(THEIRS), ids=str)
@given(data=st.data())
@settings(max_examples=10)
def test_kafka_python_reads_what_is_written(key: int, kind: str, data: st.DataObject) -> None:
    theirs, ours = THEIRS[key, kind], KINDS[key]
    last = min(ours.versions.last, theirs.max_version)
    version = data.draw(st.integers(ours.versions.first, last))
    fields = ours.request if kind == "request" else ours.response
    body = data.draw(bodies(fields, version))
    read = theirs.decode(written(key, kind, version, body), version=version)
    for field in fields:
        is_simple = not field.kind.startswith(("[", "{", "records", "uuid"))
        if version in field.versions and is_simple and field.name not in OTHERWISE:
            assert getattr(read, field.name) == body[field.name], field.name


def written(key: int, kind: str, version: int, body: dict[str, Any]) -> bytes:
    if kind == "response":
        return encode_response(key, version, body)
    parts: list[bytes] = []
    request_struct(key, version).write(parts, body)
    return b"".join(parts)
