"""Base classes of the families of nodes whose value is a JSON object."""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from managed_ledger.errors import CorruptStorage
from managed_ledger.storage.bookkeeper.formats.family import NO_LEDGER, Kept, Stored
from managed_ledger.storage.bookkeeper.formats.java_names import escape, unescape

Fields = dict[str, Any]
_NODE: Final = 0  # the key in `kept` of the node's whole value
_PLAIN: Final = re.compile(r"[-=:.\w]+", re.ASCII)  # a tenant, a namespace, a cluster
DOMAINS: Final = ("persistent", "non-persistent")


def fields_of(value: bytes, what: str) -> Fields:
    """Raises CorruptStorage unless the value is a JSON object."""
    try:
        found = json.loads(value)
    except (ValueError, RecursionError) as why:
        raise CorruptStorage(
            f"{what} is not JSON: {why}; correct or delete that node in ZooKeeper"
        ) from None
    if not isinstance(found, dict):
        raise CorruptStorage(
            f"{what} is not a JSON object; correct or delete that node in ZooKeeper"
        )
    return found


def encoded(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields).encode()


def compact(fields: Mapping[str, Any]) -> bytes:
    """Encode JSON as Apache Pulsar writes it."""
    return json.dumps(fields, separators=(",", ":")).encode()


def is_plain(name: str) -> bool:
    """Whether the name can be a node's name unchanged."""
    return _PLAIN.fullmatch(name) is not None and bool(name.strip("."))


def node_name(local: str) -> str | None:
    """The node's name for a topic; None if ZooKeeper does not allow it."""
    escaped = escape(local)
    return escaped if escaped.strip(".") else None


class JsonFamily:
    """Keys that begin with `prefix`: each is a JSON object with a node of its own below `root`.

    `known` lists the fields of pybroker's value; other fields of a node are kept.
    """

    is_exact = False

    def __init__(self, prefix: str, root: str, parts: int, known: tuple[str, ...]) -> None:
        """`parts`: the number of names in a key."""
        self.root = root
        self._prefix = prefix
        self._parts = parts
        self._known = known

    def path_of(self, key: str) -> str | None:
        if not key.startswith(self._prefix):
            return None
        names = key.removeprefix(self._prefix).split("/", self._parts - 1)
        return f"{self.root}/{'/'.join(names)}" if self._are_names(names) else None

    def key_of(self, path: str) -> str | None:
        names = path[len(self.root) + 1 :].split("/")
        return self._prefix + "/".join(names) if self._are_names(names) else None

    def has_children(self, path: str) -> bool:
        return path[len(self.root) :].count("/") < self._parts

    def _are_names(self, names: list[str]) -> bool:
        return len(names) == self._parts and all(map(is_plain, names))

    def encode(self, key: str, value: bytes, kept: Kept, ledger_id: int = NO_LEDGER) -> bytes:
        said = fields_of(value, f"the value of {key!r}")
        other = {
            name: each
            for name, each in (json.loads(kept[_NODE]) if kept else self.new(key)).items()
            if name not in self._known
        }
        return compact(other | self.said(said))

    def decode(self, key: str, node: bytes) -> Stored | None:
        if not node:
            return None
        fields = fields_of(node, f"the node of {key!r}")
        known = {name: fields[name] for name in self._known if fields.get(name) is not None}
        return Stored(encoded(self.read(known, key)), {_NODE: node})

    def entry(self, key: str, value: bytes, kept: Kept, stays: bool = False) -> bytes | None:
        return None

    def with_entry(self, key: str, stored: Stored, entry: bytes) -> Stored:
        return stored

    # --- overridden by subclasses

    def new(self, key: str) -> Fields:
        """The fields of a new node in addition to the value."""
        return {}

    def said(self, value: Fields) -> Fields:
        """Convert the value to the node's form."""
        return value

    def read(self, fields: Fields, key: str) -> Fields:
        """Convert the node's known fields to the value. Raises CorruptStorage."""
        return fields


class TopicFamily(JsonFamily):
    """Keys of topics: tenant, namespace, domain and the topic's own name."""

    def __init__(self, prefix: str, root: str, known: tuple[str, ...]) -> None:
        super().__init__(prefix, root, 4, known)

    def path_of(self, key: str) -> str | None:
        if not key.startswith(self._prefix):
            return None
        names = key.removeprefix(self._prefix).split("/", 3)
        topic = node_name(names[-1]) if len(names) == 4 else None
        if topic is None or names[2] not in DOMAINS or not all(map(is_plain, names[:2])):
            return None
        return "/".join((self.root, *names[:3], topic))

    def key_of(self, path: str) -> str | None:
        names = path[len(self.root) + 1 :].split("/")
        local = unescape(names[-1]) if len(names) == 4 else None
        key = None if local is None else self._prefix + "/".join((*names[:3], local))
        return key if key is not None and self.path_of(key) == path else None
