"""Values of PROTOBUF_NATIVE schemas: decoded by their descriptors, refused otherwise."""

import base64
import json
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

from pybroker.values import protobuf


def described(*, with_imports: bool = True) -> descriptor_pb2.FileDescriptorSet:
    """`shop.Order`, with a field of a message of another file. The order is not that of imports."""
    order = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    order.dependency.append("google/protobuf/timestamp.proto")
    message = order.message_type.add(name="Order")
    kinds = descriptor_pb2.FieldDescriptorProto
    optional, repeated = kinds.LABEL_OPTIONAL, kinds.LABEL_REPEATED
    message.field.add(name="id", number=1, type=kinds.TYPE_INT32, label=optional)
    message.field.add(name="items", number=2, type=kinds.TYPE_STRING, label=repeated)
    message.field.add(
        name="placed_at",
        number=3,
        type=kinds.TYPE_MESSAGE,
        type_name=".google.protobuf.Timestamp",
        label=optional,
    )
    found = descriptor_pb2.FileDescriptorSet(file=[order])
    if with_imports:
        timestamp_pb2.DESCRIPTOR.CopyToProto(found.file.add())
    return found


def definition(files: descriptor_pb2.FileDescriptorSet, root: str = "shop.Order") -> str:
    return json.dumps(
        {
            "fileDescriptorSet": base64.b64encode(files.SerializeToString()).decode(),
            "rootMessageTypeName": root,
            "rootFileDescriptorName": "order.proto",
        }
    )


def order_of(**fields: Any) -> bytes:
    pool = descriptor_pool.DescriptorPool()
    for file in reversed(described().file):
        pool.Add(file)
    made = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    return bytes(made(**fields).SerializeToString())


def test_a_value_has_the_names_of_its_fields() -> None:
    decode = protobuf.Decode(definition(described()))
    data = order_of(id=7, items=["lamp", "vase"], placed_at={"seconds": 0})
    expected = {"id": 7, "items": ["lamp", "vase"], "placed_at": "1970-01-01T00:00:00Z"}
    assert decode(data) == expected
    assert decode(b"") == {}


@pytest.mark.parametrize(
    "text",
    [
        "no JSON",
        "{}",
        definition(described(), root="shop.Invoice"),
        definition(described(with_imports=False)),
        '{"fileDescriptorSet": "####", "rootMessageTypeName": "shop.Order"}',
        " " * 300_000,
    ],
)
def test_a_definition_that_cannot_be_used_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="definition"):
        protobuf.Decode(text)


def test_files_that_import_each_other_are_refused_and_not_waited_for() -> None:
    files = descriptor_pb2.FileDescriptorSet()
    for name, other in (("a", "b"), ("b", "a")):
        files.file.add(name=name).dependency.append(other)
    with pytest.raises(ValueError, match="circle"):
        protobuf.Decode(definition(files))


@pytest.mark.parametrize("data", [b"\xff\xff", order_of(items=["x" * protobuf.MOST_BYTES])])
def test_a_value_that_is_none_or_too_large_is_refused(data: bytes) -> None:
    decode = protobuf.Decode(definition(described()))
    with pytest.raises(ValueError, match="value"):
        decode(data)
