"""Paths in ZooKeeper of the seam's metadata keys, and back.

Each part of a key is one level, escaped. The name of the node with the value ends in `=`, so that
`a` and `a/b` can both be keys, and deleting one does not delete the other.
"""

from functools import lru_cache
from urllib.parse import quote, unquote

_EMPTY = "%"


def path_of(root: str, key: str) -> str:
    return f"{root}/{'/'.join(map(_escape, key.split('/')))}="


def key_of(root: str, path: str) -> str | None:
    """The key; None if the node holds no value."""
    if not path.startswith(f"{root}/") or not path.endswith("="):
        return None
    parts = path[len(root) + 1 : -1].split("/")
    return "/".join("" if part == _EMPTY else unquote(part) for part in parts)


@lru_cache(4096)
def _escape(part: str) -> str:
    """Escape a name. ZooKeeper allows neither empty names nor `.` and `..`."""
    if not part.strip("."):
        return part.replace(".", "%2E") or _EMPTY
    return quote(part, safe=" !$&'()*+,-.:;<>?@[]^_`{|}~")
