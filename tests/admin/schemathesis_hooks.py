"""Hooks that Schemathesis imports.

Most names in a path become those of existing things; otherwise nearly every answer would be 404.
"""

import zlib
from typing import Any

import schemathesis

THERE = {
    "tenant": ("public",),
    "namespace": ("default", "other"),
    "cluster": ("standalone",),
    "bundle": ("0x00000000_0xffffffff",),
    "domain": ("persistent", "persistent", "persistent", "non-persistent"),
    "topic": ("orders", "parts", "parts-partition-0", "spare"),
    "subscription": ("audit", "other"),
    "most": (0,),
    "least": (0, 1, 2),
    "coordinator": (0,),
}
_ONE_AS_IT_IS_OF = 8


@schemathesis.hook
def map_path_parameters(context: Any, path_parameters: Any) -> Any:
    for name, value in (path_parameters or {}).items():
        chance = zlib.crc32(repr(value).encode())
        if name in THERE and chance % _ONE_AS_IT_IS_OF:
            path_parameters[name] = THERE[name][chance // _ONE_AS_IT_IS_OF % len(THERE[name])]
    return path_parameters


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    """Nobody waits for messages that do not come."""
    if isinstance(body, dict) and context.operation.path.endswith("/receive"):
        body["waitMs"] = 0
    return body
