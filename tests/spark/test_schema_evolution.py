"""Messages with an earlier version of their topic's schema."""

import datetime
import decimal
import struct

import pytest
from spark_values import avro, slab_of, zigzag

from pybroker.spark.schemas.values import ValueNotRead, values

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def test_messages_of_an_earlier_version_are_read_by_it():
    old = avro([{"name": "gone", "type": "string"}, {"name": "id", "type": "int"}])
    new = avro([{"name": "id", "type": "long"}, {"name": "extra", "type": ["null", "string"]}])
    contents = [
        zigzag(1) + zigzag(1) + zigzag(1) + b"e",
        zigzag(1) + b"g" + zigzag(-7),
        zigzag(3) + zigzag(0),
    ]
    slab = slab_of(contents, versions=[b"1", b"0", b"1"])
    found = {
        name: array.to_pylist()
        for name, array in values(slab, new, {b"0": old, b"1": new}.get).items()
    }
    assert found == {"id": [1, -7, 3], "extra": ["e", None, None]}


def test_versions_between_which_nothing_leads_are_an_error():
    old = avro([{"name": "id", "type": {"type": "array", "items": "int"}}])
    new = avro([{"name": "id", "type": "long"}])
    slab = slab_of([zigzag(1) + zigzag(1) + zigzag(0)], versions=[b"0"])
    with pytest.raises(ValueNotRead, match="earlier schema have id"):
        values(slab, new, {b"0": old}.get)


MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
MICROS = {"type": "long", "logicalType": "timestamp-micros"}
LOCAL = {"type": "long", "logicalType": "local-timestamp-micros"}
LOCAL_MILLIS = {"type": "long", "logicalType": "local-timestamp-millis"}
DATE = {"type": "int", "logicalType": "date"}
WALL_CLOCK = datetime.datetime(1969, 12, 31, 23, 59, 59, 999000)


def decimals(precision, scale):
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


def as_bytes(number):
    data = number.to_bytes(8, "big", signed=True)
    return zigzag(len(data)) + data


def evolved(written, wanted, content):
    """The value of a field whose type has changed."""
    old, new = (avro([{"name": "x", "type": each}]) for each in (written, wanted))
    slab = slab_of([content], versions=[b"0"])
    return values(slab, new, {b"0": old}.get)["x"].to_pylist()[0]


@pytest.mark.parametrize(
    ("written", "wanted", "content", "value"),
    [
        ("long", MILLIS, zigzag(1500), EPOCH + datetime.timedelta(milliseconds=1500)),
        (MILLIS, "long", zigzag(1500), 1500),
        ("long", MICROS, zigzag(1500), EPOCH + datetime.timedelta(microseconds=1500)),
        (MILLIS, MICROS, zigzag(1), EPOCH + datetime.timedelta(milliseconds=1)),
        (LOCAL, LOCAL, zigzag(-1000), WALL_CLOCK),
        (LOCAL_MILLIS, LOCAL, zigzag(-1), WALL_CLOCK),
        ("long", LOCAL_MILLIS, zigzag(-1), WALL_CLOCK),
        ("int", DATE, zigzag(-1), datetime.date(1969, 12, 31)),
        (DATE, "int", zigzag(-1), -1),
        (["null", "long"], ["null", MILLIS], zigzag(1) + zigzag(0), EPOCH),
        ("long", ["null", MILLIS], zigzag(0), EPOCH),
        (
            {"type": "array", "items": "long"},
            {"type": "array", "items": MILLIS},
            zigzag(1) + zigzag(0) + zigzag(0),
            [EPOCH],
        ),
        ("int", "double", zigzag(5), 5.0),
        ("long", "float", zigzag(2**60 + 1), 2.0**60),
        ("bytes", "string", zigzag(2) + b"\xffa", "\ufffda"),
        ("string", "bytes", zigzag(1) + b"a", b"a"),
        ("long", "int", zigzag(5), 5),
        (decimals(10, 2), decimals(12, 4), as_bytes(123), decimal.Decimal("1.2300")),
    ],
)
def test_a_value_of_an_earlier_type_is_the_same_in_the_new_one(written, wanted, content, value):
    assert evolved(written, wanted, content) == value


@pytest.mark.parametrize(
    ("written", "wanted", "content"),
    [
        ("long", "int", zigzag(2**40)),
        ("double", "long", struct.pack("<d", 1.5)),
        ("double", "int", struct.pack("<d", float("nan"))),
        ("double", "float", struct.pack("<d", 1e300)),
        ("int", "boolean", zigzag(7)),
        ("int", MILLIS, zigzag(7)),
        (MICROS, LOCAL, zigzag(7)),
        (LOCAL, MICROS, zigzag(7)),
        ("bytes", decimals(10, 2), zigzag(2) + b"12"),
        (decimals(10, 4), decimals(10, 2), as_bytes(12399)),
        (decimals(18, 2), decimals(4, 2), as_bytes(10**12)),
    ],
)
def test_a_value_that_would_become_another_one_is_an_error(written, wanted, content):
    with pytest.raises(ValueNotRead, match=r"earlier schema have x.*rawValue=true"):
        evolved(written, wanted, content)
