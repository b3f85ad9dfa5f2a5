"""The interpreter: a struct of one version, made of the table's fields, reads and writes dicts.

Neighbouring fields of fixed sizes are read and written as one `struct.Struct`. A dict that was read
has every field of the message: those that its version lacks, and tagged ones that were not sent,
have their defaults. A dict to be written may leave out what has its default; a tagged field with
its default is not sent.

Whatever contains an array can also be read and written in steps: the same result from a generator
that yields after each element, so that others get the loop while a large message is looked at.
"""

import struct
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, TypeVar

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
# In one struct, or in the header. Kafka has fewer than ten.
MAX_TAGS: Final = 1000

T = TypeVar("T")
Steps = Generator[None, None, T]


@dataclass(frozen=True, slots=True)
class _Codec:
    """How a value is read and written; in steps if it contains an array."""

    read: Reader
    write: Writer
    read_in_steps: Callable[[bytes, int], Steps[tuple[Any, int]]] | None = None
    write_in_steps: Callable[[Parts, Any], Steps[None]] | None = None


@dataclass(frozen=True, slots=True)
class _Step:
    """The same for a field, or for neighbouring ones, of a dict."""

    read: Callable[[bytes, int, Body], int]
    write: Callable[[Parts, Mapping[str, Any]], None]
    read_in_steps: Callable[[bytes, int, Body], Steps[int]] | None = None
    write_in_steps: Callable[[Parts, Mapping[str, Any]], Steps[None]] | None = None


class Struct:
    """Reads and writes the fields of one version."""

    __slots__ = (
        "_absent",
        "_flexible",
        "_read_steps",
        "_steps",
        "_tag_readers",
        "_tag_writers",
        "_writers",
    )

    def __init__(self, fields: Iterable[Field], version: int, flexible: bool) -> None:
        there = [each for each in fields if version in each.versions]
        plain = [each for each in there if each.tag is None]
        tagged = {each.tag: each for each in there if each.tag is not None}
        self._flexible = flexible
        self._absent = {each.name: each.default for each in fields if each not in plain}
        self._steps = [_step(run, version, flexible) for run in _runs(plain)]
        self._read_steps = [each.read for each in self._steps]
        self._writers = [each.write for each in self._steps]
        codecs = {tag: _codec(each, version, flexible) for tag, each in tagged.items()}
        self._tag_readers = {tag: (each.name, codecs[tag].read) for tag, each in tagged.items()}
        self._tag_writers = [
            (tag, tagged[tag].name, tagged[tag].default, codecs[tag].write)
            for tag in sorted(tagged)
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

    @property
    def has_arrays(self) -> bool:
        return any(step.read_in_steps for step in self._steps)

    def read_in_steps(self, data: bytes, at: int) -> Steps[tuple[Body, int]]:
        body = self._absent.copy()
        for step in self._steps:
            if step.read_in_steps is None:
                at = step.read(data, at, body)
            else:
                at = yield from step.read_in_steps(data, at, body)
        return (body, self._read_tags(data, at, body)) if self._flexible else (body, at)

    def write_in_steps(self, parts: Parts, body: Mapping[str, Any]) -> Steps[None]:
        for step in self._steps:
            if step.write_in_steps is None:
                step.write(parts, body)
            else:
                yield from step.write_in_steps(parts, body)
        if self._flexible:
            self._write_tags(parts, body)

    def _read_tags(self, data: bytes, at: int, body: Body) -> int:
        count, at = read_varint(data, at)
        if not count:
            return at
        check_tags(count)
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


def check_tags(count: int) -> None:
    """Raises Malformed for more than anyone sends."""
    if count > MAX_TAGS:
        raise Malformed(f"{count} tags were announced; {MAX_TAGS} are allowed")


def _runs(fields: list[Field]) -> Iterator[list[Field]]:
    for is_fixed, group in groupby(fields, lambda each: each.kind in FIXED):
        run = list(group)
        yield from [run] if is_fixed else ([each] for each in run)


def _step(run: list[Field], version: int, flexible: bool) -> _Step:
    if run[0].kind in FIXED:
        return _fixed_step(run)
    codec = _codec(run[0], version, flexible)
    name, default = run[0].name, run[0].default
    read_value, write_value = codec.read, codec.write
    read_value_in_steps, write_value_in_steps = codec.read_in_steps, codec.write_in_steps

    def read(data: bytes, at: int, body: Body) -> int:
        body[name], at = read_value(data, at)
        return at

    def write(parts: Parts, body: Mapping[str, Any]) -> None:
        write_value(parts, body.get(name, default))

    if read_value_in_steps is None or write_value_in_steps is None:
        return _Step(read, write)

    def read_in_steps(data: bytes, at: int, body: Body) -> Steps[int]:
        body[name], at = yield from read_value_in_steps(data, at)
        return at

    def write_in_steps(parts: Parts, body: Mapping[str, Any]) -> Steps[None]:
        yield from write_value_in_steps(parts, body.get(name, default))

    return _Step(read, write, read_in_steps, write_in_steps)


def _fixed_step(run: list[Field]) -> _Step:
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

    return _Step(read, write)


def _codec(field: Field, version: int, flexible: bool) -> _Codec:
    nullable = version in field.nullable
    if field.kind.startswith("[]"):
        return _array(field, version, flexible, nullable)
    if field.kind == "{}":
        return _nested(Struct(field.fields, version, flexible), nullable)
    return _Codec(*_primitive(field.kind, flexible, nullable))


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


def _nested(inner: Struct, nullable: bool) -> _Codec:
    def is_null(data: bytes, at: int) -> bool:
        return data[at : checked_end(data, at, 1)] == _NULL

    def read(data: bytes, at: int) -> tuple[Body | None, int]:
        return (None, at + 1) if is_null(data, at) else inner.read(data, at + 1)

    def write(parts: Parts, value: Mapping[str, Any] | None) -> None:
        parts.append(_NULL if value is None else _THERE)
        if value is not None:
            inner.write(parts, value)

    def read_in_steps(data: bytes, at: int) -> Steps[tuple[Body | None, int]]:
        if is_null(data, at):
            return None, at + 1
        return (yield from inner.read_in_steps(data, at + 1))

    def write_in_steps(parts: Parts, value: Mapping[str, Any] | None) -> Steps[None]:
        parts.append(_NULL if value is None else _THERE)
        if value is not None:
            yield from inner.write_in_steps(parts, value)

    if not inner.has_arrays:
        return _Codec(read, write) if nullable else _Codec(inner.read, inner.write)
    if not nullable:
        return _Codec(inner.read, inner.write, inner.read_in_steps, inner.write_in_steps)
    return _Codec(read, write, read_in_steps, write_in_steps)


def _array(field: Field, version: int, flexible: bool, nullable: bool) -> _Codec:
    if field.kind == "[]":
        one = _nested(Struct(field.fields, version, flexible), nullable=False)
    else:
        one = _Codec(*_primitive(field.kind[2:], flexible, nullable=False))
    read_one, write_one = one.read, one.write
    read_length, write_length = lengths("array", flexible)

    def begin(data: bytes, at: int) -> tuple[int | None, int]:
        """The number of elements, None for null, and where the first is."""
        length, at = read_length(data, at)
        if length < 0 and nullable:
            return None, at
        checked_end(data, at, length)  # an element has at least a byte
        if length > MAX_ELEMENTS:
            raise Malformed(f"{field.name} has {length} elements; {MAX_ELEMENTS} are allowed")
        return length, at

    def read(data: bytes, at: int) -> tuple[list[Any] | None, int]:
        length, at = begin(data, at)
        if length is None:
            return None, at
        values = []
        for _ in range(length):
            value, at = read_one(data, at)
            values.append(value)
        return values, at

    def read_in_steps(data: bytes, at: int) -> Steps[tuple[list[Any] | None, int]]:
        length, at = begin(data, at)
        if length is None:
            return None, at
        values = []
        for _ in range(length):
            if one.read_in_steps is None:
                value, at = read_one(data, at)
            else:
                value, at = yield from one.read_in_steps(data, at)
            values.append(value)
            yield
        return values, at

    def begun(parts: Parts, values: Iterable[Any] | None) -> list[Any] | tuple[Any, ...]:
        if values is None:
            write_length(parts, -1)
            return ()
        some = values if isinstance(values, list | tuple) else list(values)
        write_length(parts, len(some))
        return some

    def write(parts: Parts, values: Iterable[Any] | None) -> None:
        for value in begun(parts, values):
            write_one(parts, value)

    def write_in_steps(parts: Parts, values: Iterable[Any] | None) -> Steps[None]:
        for value in begun(parts, values):
            if one.write_in_steps is None:
                write_one(parts, value)
            else:
                yield from one.write_in_steps(parts, value)
            yield

    return _Codec(read, write, read_in_steps, write_in_steps)
