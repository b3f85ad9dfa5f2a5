"""The interpreter: a struct of one version, made of the table's fields, reads and writes dicts.

Neighbouring fields of fixed sizes are read and written as one `struct.Struct`. A dict that was read
has every field of the message: those that its version lacks, and tagged ones that were not sent,
have their defaults. A dict to be written may leave out what has its default; a tagged field with
its default is not sent.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any, Final

from pybroker.kafka.codec.message_table import Field
from pybroker.kafka.codec.primitives import (
    FIXED,
    Malformed,
    Parts,
    Reader,
    Writer,
    bytes_reader,
    bytes_writer,
    checked_end,
    lengths,
    read_varint,
    string_reader,
    string_writer,
    write_varint,
)

Body = dict[str, Any]
# Of one array: a struct becomes a dict, many times the size of its bytes. A topic may have as many
# partitions.
MAX_ELEMENTS: Final = 100_000
_NULL, _THERE = b"\xff", b"\x01"  # in front of a struct that may be null

ReadStep = Callable[[bytes, int, Body], int]
WriteStep = Callable[[Parts, Mapping[str, Any]], None]


class Struct:
    """Reads and writes the fields of one version."""

    __slots__ = ("_absent", "_flexible", "_read_steps", "_tag_readers", "_tag_writers", "_writers")

    def __init__(self, fields: Iterable[Field], version: int, flexible: bool) -> None:
        there = [each for each in fields if version in each.versions]
        plain = [each for each in there if each.tag is None]
        tagged = {each.tag: each for each in there if each.tag is not None}
        self._flexible = flexible
        self._absent = {each.name: each.default for each in fields if each not in plain}
        steps = [_step(run, version, flexible) for run in _runs(plain)]
        self._read_steps = [read for read, _ in steps]
        self._writers = [write for _, write in steps]
        codecs = {tag: _codec(each, version, flexible) for tag, each in tagged.items()}
        self._tag_readers = {tag: (each.name, codecs[tag][0]) for tag, each in tagged.items()}
        self._tag_writers = [
            (tag, tagged[tag].name, tagged[tag].default, codecs[tag][1]) for tag in sorted(tagged)
        ]

    def read(self, data: bytes, at: int) -> tuple[Body, int]:
        """Raises Malformed if the bytes do not follow the schema of this version."""
        body = self._absent.copy()
        for step in self._read_steps:
            at = step(data, at, body)
        return (body, self._read_tags(data, at, body)) if self._flexible else (body, at)

    def write(self, parts: Parts, body: Mapping[str, Any]) -> None:
        for step in self._writers:
            step(parts, body)
        if self._flexible:
            self._write_tags(parts, body)

    def _read_tags(self, data: bytes, at: int, body: Body) -> int:
        count, at = read_varint(data, at)
        if not count:
            return at
        if count > len(data) - at:
            raise Malformed(f"{count} tags were announced, {len(data) - at} bytes are left")
        for _ in range(count):
            tag, at = read_varint(data, at)
            size, at = read_varint(data, at)
            end = checked_end(data, at, size)
            if tag in self._tag_readers:  # others are of later versions
                name, read = self._tag_readers[tag]
                body[name], _ = read(data[at:end], 0)
            at = end
        return at

    def _write_tags(self, parts: Parts, body: Mapping[str, Any]) -> None:
        if not self._tag_writers:
            parts.append(b"\x00")
            return
        sent = [
            (tag, write, body[name])
            for tag, name, default, write in self._tag_writers
            if name in body and body[name] != default and body[name] not in ([], ())
        ]
        write_varint(parts, len(sent))
        for tag, write, value in sent:
            inner: Parts = []
            write(inner, value)
            write_varint(parts, tag)
            write_varint(parts, sum(map(len, inner)))
            parts.extend(inner)


def _runs(fields: list[Field]) -> Iterator[list[Field]]:
    for is_fixed, group in groupby(fields, lambda each: each.kind in FIXED):
        run = list(group)
        yield from [run] if is_fixed else ([each] for each in run)


def _step(run: list[Field], version: int, flexible: bool) -> tuple[ReadStep, WriteStep]:
    if run[0].kind in FIXED:
        return _fixed_step(run)
    read_value, write_value = _codec(run[0], version, flexible)
    name, default = run[0].name, run[0].default

    def read(data: bytes, at: int, body: Body) -> int:
        body[name], at = read_value(data, at)
        return at

    def write(parts: Parts, body: Mapping[str, Any]) -> None:
        write_value(parts, body.get(name, default))

    return read, write


def _fixed_step(run: list[Field]) -> tuple[ReadStep, WriteStep]:
    names = [each.name for each in run]
    defaults = [(each.name, each.default) for each in run]
    kind = struct.Struct(">" + "".join(FIXED[each.kind][0] for each in run))

    def read(data: bytes, at: int, body: Body) -> int:
        end = at + kind.size
        if end > len(data):
            raise Malformed(f"the bytes end within {names[0]}")
        body.update(zip(names, kind.unpack_from(data, at), strict=True))
        return end

    def write(parts: Parts, body: Mapping[str, Any]) -> None:
        parts.append(kind.pack(*[body.get(name, default) for name, default in defaults]))

    return read, write


def _codec(field: Field, version: int, flexible: bool) -> tuple[Reader, Writer]:
    nullable = version in field.nullable
    if field.kind.startswith("[]"):
        return _array(field, version, flexible, nullable)
    if field.kind == "{}":
        return _nested(Struct(field.fields, version, flexible), nullable)
    return _primitive(field.kind, flexible, nullable)


def _primitive(kind: str, flexible: bool, nullable: bool) -> tuple[Reader, Writer]:
    if kind == "string":
        return string_reader(flexible, nullable), string_writer(flexible, nullable)
    if kind in ("bytes", "records"):
        return bytes_reader(flexible, nullable), bytes_writer(flexible, nullable)
    return _fixed(struct.Struct(">" + FIXED[kind][0]))


def _fixed(kind: struct.Struct) -> tuple[Reader, Writer]:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        end = checked_end(data, at, kind.size)
        return kind.unpack_from(data, at)[0], end

    def write(parts: Parts, value: Any) -> None:
        parts.append(kind.pack(value))

    return read, write


def _nested(inner: Struct, nullable: bool) -> tuple[Reader, Writer]:
    if not nullable:
        return inner.read, inner.write

    def read(data: bytes, at: int) -> tuple[Body | None, int]:
        end = checked_end(data, at, 1)
        return (None, end) if data[at:end] == _NULL else inner.read(data, end)

    def write(parts: Parts, value: Mapping[str, Any] | None) -> None:
        parts.append(_NULL if value is None else _THERE)
        if value is not None:
            inner.write(parts, value)

    return read, write


def _array(field: Field, version: int, flexible: bool, nullable: bool) -> tuple[Reader, Writer]:
    if field.kind == "[]":
        inner = Struct(field.fields, version, flexible)
        read_one: Reader = inner.read
        write_one: Writer = inner.write
    else:
        read_one, write_one = _primitive(field.kind[2:], flexible, nullable=False)
    read_length, write_length = lengths("array", flexible)

    def read(data: bytes, at: int) -> tuple[list[Any] | None, int]:
        length, at = read_length(data, at)
        if length < 0 and nullable:
            return None, at
        checked_end(data, at, length)  # an element has at least a byte
        if length > MAX_ELEMENTS:
            raise Malformed(f"{field.name} has {length} elements; {MAX_ELEMENTS} are allowed")
        values = []
        for _ in range(length):
            value, at = read_one(data, at)
            values.append(value)
        return values, at

    def write(parts: Parts, values: Iterable[Any] | None) -> None:
        if values is None:
            write_length(parts, -1)
            return
        some = values if isinstance(values, list | tuple) else list(values)
        write_length(parts, len(some))
        for value in some:
            write_one(parts, value)

    return read, write
