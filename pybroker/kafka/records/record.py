"""The records of a batch, decompressed.

    [length][attributes i8][timestamp delta][offset delta][key size][key][value size][value]
    [count of headers] ([size][key][size][value])*

All numbers but the attributes are zigzag varints; a size of -1 means null. Source: KIP-98.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from pybroker.kafka.records.batch import LEAST_RECORD_BYTES
from pybroker.kafka.records.errors import BadRecords
from pybroker.kafka.records.steps import LARGE_BYTES, RECORDS_A_STEP, Steps, apart
from pybroker.kafka.records.varints import read_varint, write_varint

Header = tuple[str, bytes | None]


class Record(NamedTuple):
    offset_delta: int
    timestamp_delta: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header] = ()


def read_records(data: bytes, count: int) -> Iterator[Record]:
    """The `count` records of a batch, which must end where `data` ends. Raises BadRecords."""
    if count * LEAST_RECORD_BYTES > len(data):
        raise BadRecords(f"{len(data)} bytes cannot hold {count} records")
    at = 0
    for _ in range(count):
        length, at = read_varint(data, at)
        end = at + length
        if length <= 0 or end > len(data):
            raise BadRecords(f"A record of {length} bytes goes beyond its batch")
        yield _read_record(data, at, end)
        at = end
    if at != len(data):
        raise BadRecords(f"{len(data) - at} bytes follow the last record of a batch")


def _read_record(data: bytes, at: int, end: int) -> Record:
    timestamp_delta, at = read_varint(data, at + 1)
    offset_delta, at = read_varint(data, at)
    key, at = _read_bytes(data, at, end)
    value, at = _read_bytes(data, at, end)
    count, at = read_varint(data, at)
    headers: Sequence[Header] = ()
    if count:
        headers, at = _read_headers(data, at, end, count)
    if at != end:
        raise BadRecords("A record does not end where its length says")
    return Record(offset_delta, timestamp_delta, key, value, headers)


def _read_headers(data: bytes, at: int, end: int, count: int) -> tuple[list[Header], int]:
    if not 0 <= count <= (end - at) // 2:
        raise BadRecords(f"A record claims {count} headers in {end - at} bytes")
    headers: list[Header] = []
    for _ in range(count):
        key, at = _read_bytes(data, at, end)
        value, at = _read_bytes(data, at, end)
        headers.append((_text(key), value))
    return headers, at


def _text(key: bytes | None) -> str:
    try:
        return (key or b"").decode()
    except UnicodeDecodeError as error:
        raise BadRecords("The key of a header is not UTF-8") from error


def _read_bytes(data: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    size, at = read_varint(data, at)
    if size == -1:
        return None, at
    stop = at + size
    if size < 0 or stop > end:
        raise BadRecords(f"A field of {size} bytes goes beyond its record")
    return data[at:stop], stop


def write_records(records: Iterable[Record]) -> Steps[bytes]:
    """The records, not compressed."""
    parts, out = list[bytes | bytearray](), bytearray()
    for at, record in enumerate(records, 1):
        head, tail = _around_value(record)
        value = record.value or b""
        write_varint(out, len(head) + len(value) + len(tail))
        out += head
        if len(value) > LARGE_BYTES:  # to be copied only once
            parts += (out, value)
            out = tail
        else:
            out += value
            out += tail
        if not at % RECORDS_A_STEP:
            yield None
    parts.append(out)
    return (yield from apart(sum(map(len, parts)), partial(b"".join, parts)))


def _around_value(record: Record) -> tuple[bytearray, bytearray]:
    """What is before and after the bytes of the value."""
    head, tail = bytearray(1), bytearray()  # the attributes are not in use
    write_varint(head, record.timestamp_delta)
    write_varint(head, record.offset_delta)
    _write_bytes(head, record.key)
    write_varint(head, -1 if record.value is None else len(record.value))
    write_varint(tail, len(record.headers))
    for key, value in record.headers:
        _write_bytes(tail, key.encode())
        _write_bytes(tail, value)
    return head, tail


def _write_bytes(out: bytearray, data: bytes | None) -> None:
    if data is None:
        out.append(1)  # the size -1
        return
    write_varint(out, len(data))
    out += data
