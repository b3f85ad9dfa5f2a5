"""Encodes responses as JSON; long ones in parts, a few per turn of the loop.

`json.dumps` is one uninterruptible call. A long response has a list or an object with many parts,
at the top or a few levels below, and is split there.
"""

import json
from collections.abc import Iterator
from typing import Any, Final

from pybroker.base.runtime import Pace

_MANY: Final = 50  # parts of one list or object; with more it is split
_LEVELS: Final = 3  # levels that are searched for long values
_PIECES_A_TURN: Final = 100

_encoder: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


async def json_of_answer(value: Any) -> bytes:
    """The value as JSON. Raises ValueError for values that JSON cannot represent."""
    pace, pieces = Pace(_PIECES_A_TURN), []
    for piece in pieces_of(value, _LEVELS):
        pieces.append(piece)
        await pace.step()
    return "".join(pieces).encode()


def pieces_of(value: Any, levels: int) -> Iterator[str]:
    """The value as JSON, split between the parts of long values, at the top or up to `levels`
    below.
    """
    if not _is_long(value, levels):
        yield _encoder.encode(value)
    elif isinstance(value, dict):
        before = "{"
        for key, each in list(value.items()):
            yield f"{before}{_encoder.encode(str(key))}:"
            yield from pieces_of(each, levels - 1)
            before = ","
        yield "}"
    else:
        before = "["
        for each in list(value):
            yield before
            yield from pieces_of(each, levels - 1)
            before = ","
        yield "]"


def _is_long(value: Any, levels: int) -> bool:
    """Whether the value is split. Examines at most `_MANY` parts of each list or object."""
    if not isinstance(value, dict | list) or levels == 0:
        return False
    if len(value) > _MANY:
        return True
    return any(_is_long(each, levels - 1) for each in _parts(value))


def _parts(value: Any) -> Any:
    return value.values() if isinstance(value, dict) else value
