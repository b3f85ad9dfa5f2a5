"""A record's headers <-> a message's properties, without loss in either direction.

Headers may repeat, and their values are bytes or null; properties have distinct names, and text. A
header that fits becomes a property as it is. Otherwise the name says how to read the property:

    name;2           another header of this name
    name;base64      a value that is not UTF-8
    name;null        no value
    name;2;base64    both

A name that looks like one of these but was not made here stands for itself: only a name that the
same header would get again, after the same properties, is read in this way.
"""

import base64
import binascii
import re
from collections.abc import Iterable, Iterator
from itertools import count
from typing import Final

_NAME: Final = re.compile(r"(?s)(.*?)(?:;[2-9]|;[1-9]\d{1,8})?(?:;(base64|null))?\Z")
_PLAIN: Final = ""
_BASE64: Final = "base64"
_NULL: Final = "null"

Header = tuple[str, bytes | None]
Property = tuple[str, str]


def as_properties(headers: Iterable[Header]) -> Iterator[Property]:
    used: set[str] = set()
    for key, value in headers:
        made = _as_property(used, key, value)
        used.add(made[0])
        yield made


def as_headers(properties: Iterable[Property]) -> Iterator[Header]:
    used: set[str] = set()
    for name, text in properties:
        yield _read(used, name, text)
        used.add(name)


def _as_property(used: set[str], key: str, value: bytes | None) -> Property:
    kind, text = _as_text(value)
    end = f";{kind}" if kind else ""
    for number in count(1):
        name = f"{key};{number}{end}" if number > 1 else key + end
        if name not in used and (number > 1 or _is_clear(used, name, text, (key, value))):
            break
    return name, text


def _is_clear(used: set[str], name: str, text: str, header: Header) -> bool:
    """Whether the property, which has no number, will be read as this header."""
    found = _candidate(name, text)
    if found == header:
        return True
    if found is not None and _as_property(used, *found)[0] == name:
        return False
    return header == (name, text.encode())


def _read(used: set[str], name: str, text: str) -> Header:
    found = _candidate(name, text)
    if found is not None and _as_property(used, *found)[0] == name:
        return found
    return name, text.encode()


def _candidate(name: str, text: str) -> Header | None:
    """The header that may have become this property; None if the name has no such ending."""
    if ";" not in name:
        return None
    found = _NAME.match(name)
    assert found is not None
    key, kind = found.groups()
    if key == name:
        return None
    if kind is None:
        return key, text.encode()
    if kind == _NULL:
        return None if text else (key, None)
    try:
        value = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return (key, value) if _as_text(value) == (_BASE64, text) else None


def _as_text(value: bytes | None) -> Property:
    if value is None:
        return _NULL, ""
    try:
        return _PLAIN, value.decode()
    except UnicodeDecodeError:
        return _BASE64, base64.b64encode(value).decode()
