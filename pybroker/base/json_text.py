"""Parses JSON from outside: only standard JSON, and only an amount that can be parsed quickly.

`json.loads` is one call that cannot be interrupted, not even in a thread: it holds the interpreter.
The cost depends on the number of values, not of bytes, so that number is limited: 1 MiB with 30,000
values takes some 15 ms.
"""

import json
import math
import re
from typing import Any, Final

MOST_PARTS: Final = 30_000  # commas, objects and lists
MOST_LEVELS: Final = 200  # of nested objects and lists
_MOST_DIGITS: Final = 40
_HALF: Final = re.compile(r"\\u[dD][89a-fA-F]")


def json_of(text: str | bytes) -> Any:
    """Raises ValueError, RecursionError; also for text that only Python accepts as JSON: unpaired
    surrogates, which cannot be encoded, and numbers that are NaN, infinite or too large.

    The depth is limited because stored values are read again with less stack left.
    """
    data = text.encode() if isinstance(text, str) else text
    if _marks(data) > MOST_PARTS and _parts(data) > MOST_PARTS:
        raise ValueError(f"it has more than {MOST_PARTS} values")
    text = data.decode("utf-8-sig")
    value = _DECODER.decode(text)
    if _HALF.search(text):  # possibly an unpaired surrogate
        json.dumps(value, ensure_ascii=False).encode()
    if data.count(b"[") + data.count(b"{") > MOST_LEVELS and _depth(value) > MOST_LEVELS:
        raise ValueError(f"it is nested more than {MOST_LEVELS} levels deep")
    return value


def _marks(data: bytes) -> int:
    return sum(map(data.count, (b",", b"[", b"{")))


def _parts(data: bytes) -> int:
    """The number of separators outside strings; one too many if counting would take too long."""
    plain = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    if plain.count(b'"') > 4 * MOST_PARTS:
        return MOST_PARTS + 1
    return _marks(b"".join(plain.split(b'"')[::2]))


def _depth(value: Any) -> int:
    """The nesting depth of objects and lists; counting stops at one more than the limit."""
    level, depth = [value] if type(value) in (dict, list) else [], 0
    while level and depth <= MOST_LEVELS:
        inside = (each.values() if type(each) is dict else each for each in level)
        level = [part for parts in inside for part in parts if type(part) in (dict, list)]
        depth += 1
    return depth


def _refused_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _whole(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"a number has more than {_MOST_DIGITS} digits")
    return int(digits)


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"{digits[:_MOST_DIGITS]} is too large")
    return value


_DECODER: Final = json.JSONDecoder(
    parse_constant=_refused_constant, parse_int=_whole, parse_float=_finite
)
