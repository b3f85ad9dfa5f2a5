"""Text as bytes of each schema type, in the encoding of the Java client."""

import pytest

from pybroker.values.by_schema import NotEncodable, TextEncoder

CASES = [
    ("STRING", "ü", "c3bc"),
    ("BYTES", "b", "62"),
    ("NONE", "", ""),
    ("JSON", ' {"a": 1} ', b' {"a": 1} '.hex()),
    ("BOOLEAN", "True", "01"),
    ("BOOLEAN", "false", "00"),
    ("INT8", "-1", "ff"),
    ("INT16", "258", "0102"),
    ("INT32", "-2", "fffffffe"),
    ("INT64", "1", "0000000000000001"),
    ("FLOAT", "1.5", "3fc00000"),
    ("DOUBLE", "-2", "c000000000000000"),
    ("DATE", "1000", "00000000000003e8"),
    ("DATE", "1970-01-02", "0000000005265c00"),
    ("TIME", "5", "0000000000000005"),
    ("TIMESTAMP", "1970-01-01T00:00:01.500+00:00", "00000000000005dc"),
    ("TIMESTAMP", "1969-12-31T23:59:59.999", "ffffffffffffffff"),
    ("INSTANT", "1970-01-01T00:00:01.000001Z", "0000000000000001000003e8"),
    ("INSTANT", "1969-12-31T23:59:59.500Z", "ffffffffffffffff1dcd6500"),
    ("LOCAL_DATE", "1970-01-03", "0000000000000002"),
    ("LOCAL_TIME", "00:00:01", "000000003b9aca00"),
    ("LOCAL_DATE_TIME", "1970-01-02T00:00:01", "0000000000000001000000003b9aca00"),
]


@pytest.mark.parametrize(("kind", "text", "encoded"), CASES)
def test_a_text_is_what_the_java_client_sends(kind: str, text: str, encoded: str) -> None:
    assert TextEncoder(kind, b"").encode(text).hex() == encoded


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("JSON", "{"),
        ("JSON", "NaN"),
        ("JSON", '"\\ud800"'),
        ("JSON", "[" * 100_000),
        ("BOOLEAN", "1"),
        ("INT8", "128"),
        ("INT32", "1.5"),
        ("INT64", "9" * 10_000),
        ("FLOAT", "1e300"),
        ("DOUBLE", "x"),
        ("DATE", "today"),
        ("TIMESTAMP", "9" * 5000),
        ("INSTANT", "5"),
        ("LOCAL_DATE", "1970"),
    ],
)
def test_what_is_no_value_is_refused_in_few_words(kind: str, text: str) -> None:
    with pytest.raises(NotEncodable) as refused:
        TextEncoder(kind, b"").encode(text)
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize("kind", ["PROTOBUF", "PROTOBUF_NATIVE", "KEY_VALUE", "AUTO_CONSUME", ""])
def test_a_type_that_no_text_has_is_refused(kind: str) -> None:
    with pytest.raises(NotEncodable, match="use a client"):
        TextEncoder(kind, b"{}")


def test_avro_is_written_and_bad_definitions_are_refused() -> None:
    assert TextEncoder("AVRO", b'"long"').encode("1") == b"\x02"
    for definition in (b"", b"{", b'{"type": "record"}', b"[5]"):
        with pytest.raises(NotEncodable):
            TextEncoder("AVRO", definition).encode("1")


def test_work_is_counted_for_all_values_together() -> None:
    fields = b",".join(b'{"name": "f%d", "type": "int", "default": 0}' % n for n in range(2000))
    encoder = TextEncoder("AVRO", b'{"type": "record", "name": "R", "fields": [' + fields + b"]}")
    encoder._encode._steps_left = 10_000  # type: ignore[attr-defined]
    assert encoder.encode("{}") == bytes(2000)
    encoder.encode("{}")
    with pytest.raises(NotEncodable, match="too expensive"):
        encoder.encode("{}")
