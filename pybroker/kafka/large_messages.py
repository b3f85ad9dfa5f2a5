"""Large requests and responses are read and written in steps: other work runs meanwhile.

A hundred thousand elements take most of a second. Up to a size it costs less to do it at once.
"""

import math
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from pybroker.base.runtime import Pace
from pybroker.kafka.codec.messages import decode_request_in_steps, encode_response_in_steps
from pybroker.kafka.codec.primitives import Malformed
from pybroker.kafka.codec.structs import Body, Steps
from pybroker.kafka.requests.table import codec, decode_usual

AT_ONCE_BYTES: Final = 16 * 1024
_AT_ONCE: Final = 1000  # elements
_A_TURN: Final = 500
# Of all arrays of a request: each becomes a dict, fifty times its bytes.
MOST_ELEMENTS: Final = 250_000

T = TypeVar("T")


async def decoded(key: int, version: int, data: bytes, at: int) -> Body:
    """The request in `data`, whose body begins at `at`. Raises Malformed."""
    if len(data) <= AT_ONCE_BYTES:
        return codec(key)[0](key, version, data, at)
    usual = decode_usual(key, version, data, at)
    if usual is not None:
        return usual
    return await _in_turns(decode_request_in_steps(key, version, data, at), MOST_ELEMENTS)


async def encoded(key: int, version: int, body: Mapping[str, Any]) -> bytes:
    if _left(body, _AT_ONCE) >= 0:
        return codec(key)[1](key, version, body)
    return await _in_turns(encode_response_in_steps(key, version, body))


async def _in_turns(steps: Steps[T], most: float = math.inf) -> T:
    pace = Pace(_A_TURN)
    await pace.turn()
    count = 0
    while count <= most:
        try:
            next(steps)
        except StopIteration as end:
            found: T = end.value
            await pace.turn()
            return found
        count += 1
        await pace.step()
    raise Malformed(f"it has more than {most} elements")


def _left(value: object, left: int) -> int:
    """`left` without the elements of all arrays in `value`. Stops counting below zero."""
    if isinstance(value, list | tuple):
        left -= len(value)
    elif not isinstance(value, Mapping):
        return left
    for each in value.values() if isinstance(value, Mapping) else value:
        if left < 0:
            break
        if isinstance(each, Mapping | list | tuple):
            left = _left(each, left)
    return left
