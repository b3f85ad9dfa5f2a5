"""The table of all messages, `messages.txt`: read once, at the first request.

It holds the shapes of requests and responses as Kafka 4.3 has them. Its first lines explain its
form; a `Field` is one of its lines.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

from pybroker.kafka.codec.primitives import FIXED

_FILE: Final = Path(__file__).with_name("messages.txt")
_ZEROS: Final[dict[str, Any]] = {"string": "", "bytes": b"", "records": b"", "{}": None}


@dataclass(frozen=True, slots=True)
class Versions:
    """A range with both ends. It is empty if `last` is below `first`."""

    first: int
    last: int

    def __contains__(self, version: int) -> bool:
        return self.first <= version <= self.last


NEVER: Final = Versions(0, -1)


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    kind: str  # a primitive type, {}, or [] with the type of the elements
    versions: Versions
    nullable: Versions
    tag: int | None
    default: Any
    fields: "list[Field]" = field(default_factory=list)  # of a struct, or of an array's structs


@dataclass(frozen=True, slots=True)
class MessageKind:
    """A request with its response."""

    name: str
    key: int
    versions: Versions
    flexible_from: int | None
    request: list[Field] = field(default_factory=list)
    response: list[Field] = field(default_factory=list)

    def is_flexible(self, version: int) -> bool:
        return self.flexible_from is not None and version >= self.flexible_from


@cache
def message_kinds() -> dict[int, MessageKind]:
    """By API key."""
    kinds = map(_kind, _FILE.read_text().split("\n\n")[1:])
    return {kind.key: kind for kind in kinds}


def _kind(block: str) -> MessageKind:
    head, *lines = block.splitlines()
    name, key, versions, flexible = head.split()
    first, last = map(int, versions.split("-"))
    from_version = None if flexible == "-" else int(flexible)
    kind = MessageKind(name, int(key), Versions(first, last), from_version)
    middle = lines.index("response")
    _read_fields(lines[1:middle], kind.request, kind.versions)
    _read_fields(lines[middle + 1 :], kind.response, kind.versions)
    return kind


def _read_fields(lines: list[str], into: list[Field], versions: Versions) -> None:
    above = [(into, versions)]
    for line in lines:
        depth = len(line) - len(line.lstrip())
        del above[depth:]
        fields, of_parent = above[-1]
        fields.append(_field(line.split(), of_parent))
        above.append((fields[-1].fields, fields[-1].versions))


def _field(words: list[str], of_parent: Versions) -> Field:
    name, kind, *rest = words
    versions, nullable, tag, default = of_parent, NEVER, None, _zero(kind)
    for word in rest:
        if word.startswith("?"):
            nullable = _versions(word[1:], versions)
        elif word.startswith("tag="):
            tag = int(word.removeprefix("tag="))
        elif word.startswith("="):
            default = _DEFAULTS.get(word[1:]) if word[1:] in _DEFAULTS else int(word[1:])
        else:
            versions = _versions(word, of_parent)
    return Field(name, kind, versions, nullable, tag, default)


_DEFAULTS: Final[dict[str, Any]] = {"null": None, "true": True}


def _zero(kind: str) -> Any:
    if kind.startswith("[]"):
        return ()
    return _ZEROS[kind] if kind in _ZEROS else FIXED[kind][1]


def _versions(text: str, of_parent: Versions) -> Versions:
    """Of `3`, `3+`, `3-5`, or of nothing, which means all of the parent's."""
    if not text:
        return of_parent
    first, to, last = text.rstrip("+").partition("-")
    if text.endswith("+"):
        return Versions(int(first), of_parent.last)
    return Versions(int(first), int(last if to else first))


def all_fields(fields: list[Field]) -> Iterator[Field]:
    for each in fields:
        yield each
        yield from all_fields(each.fields)
