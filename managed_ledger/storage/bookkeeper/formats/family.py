"""Families of the seam's keys: their paths in ZooKeeper, and the formats of their nodes.

The seam's values are the same for every engine; a family converts them to the format of Apache
Pulsar and back. Data of other programs that has no place in the seam's value is `kept` and written
back.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from managed_ledger.storage.bookkeeper.key_paths import key_of, path_of

NO_LEDGER: Final = -1
Kept = Mapping[int, bytes]  # defined by the family; empty if there is nothing to keep
NOTHING: Final[Kept] = MappingProxyType({})


class Stored(NamedTuple):
    """The content of a node; the rest is in the last entry of `ledger_id`, if there is one."""

    value: bytes  # in the seam's format
    kept: Kept = NOTHING
    ledger_id: int = NO_LEDGER


class Family(Protocol):
    @property
    def root(self) -> str:
        """The common parent node of the family."""
        ...

    @property
    def is_exact(self) -> bool:
        """Whether `decode` restores exactly the bytes that `encode` was given."""
        ...

    def path_of(self, key: str) -> str | None:
        """The node of the key; None if the key belongs to another family."""
        ...

    def key_of(self, path: str) -> str | None:
        """The key of a path below the root; None if the node has no value of the family."""
        ...

    def has_children(self, path: str) -> bool:
        """Whether nodes below `path` may belong to the family."""
        ...

    def encode(self, key: str, value: bytes, kept: Kept, ledger_id: int = NO_LEDGER) -> bytes:
        """The node's content; with a ledger, it lacks the part that `entry` puts there. Raises
        CorruptStorage if `value` is not in the seam's format.
        """
        ...

    def decode(self, key: str, node: bytes) -> Stored | None:
        """The node's value; None if the node exists only as a parent. Raises CorruptStorage, which
        tells users how to continue.
        """
        ...

    def entry(self, key: str, value: bytes, kept: Kept, stays: bool = False) -> bytes | None:
        """The part of the value for a ledger: too large for a node, or read by Apache Pulsar only
        from a ledger. None: the node holds everything. `stays`: the key already has a ledger, so
        the value may go there in any case.
        """
        ...

    def with_entry(self, key: str, stored: Stored, entry: bytes) -> Stored:
        """The value of node and entry together. Raises CorruptStorage."""
        ...


class JoinedFamily(Protocol):
    """A family with the values of several keys in one node."""

    @property
    def root(self) -> str: ...

    def path_of(self, key: str) -> str | None: ...

    def keys_of(self, path: str) -> tuple[str, ...]:
        """All keys that may have their values in the node."""
        ...

    def has_children(self, path: str) -> bool: ...

    def split(self, path: str, node: bytes) -> Mapping[str, bytes]:
        """The values in the node, by key. Raises CorruptStorage."""
        ...

    def join(self, path: str, values: Mapping[str, bytes], node: bytes) -> bytes | None:
        """The content of the node with exactly these values; data of other programs in `node`
        (empty for a new node) is kept. None: delete the node. Raises CorruptStorage.
        """
        ...


class Listed(NamedTuple):
    """The place of a value according to the node that lists it, and its line in that node."""

    ledger_id: int
    entry_id: int
    line: bytes


class ListFamily(Protocol):
    """A family with nodes that list values. The values never change, and each is in a ledger of its
    own. Their keys begin with the node's folder, which ends with '/'.
    """

    @property
    def root(self) -> str: ...

    def path_of(self, key: str) -> str | None:
        """The node that lists the key, or the keys of the folder."""
        ...

    def folder_of(self, path: str) -> str | None: ...

    def has_children(self, path: str) -> bool: ...

    def split(self, path: str, node: bytes) -> Mapping[str, Listed]:
        """The listed places, by key. Raises CorruptStorage."""
        ...

    def join(self, path: str, listed: Mapping[str, Listed]) -> bytes | None:
        """The content of the node; None if the list is empty: delete the node."""
        ...

    def listed(self, key: str, value: bytes, ledger_id: int) -> Listed:
        """The place of a value whose `entry` is the ledger's first. Raises CorruptStorage."""
        ...

    def entry(self, key: str, value: bytes) -> bytes:
        """The stored form. Raises CorruptStorage if `value` is not in the seam's format."""
        ...

    def value(self, key: str, entry: bytes) -> bytes:
        """Raises CorruptStorage if the entry cannot be decoded."""
        ...

    def custom(self, key: str) -> Mapping[str, bytes]:
        """The custom metadata for the ledger of the value."""
        ...


class OwnFormat:
    """The family of all other keys; their values are stored unchanged."""

    is_exact = True

    def __init__(self, root: str) -> None:
        self.root = root

    def path_of(self, key: str) -> str | None:
        return path_of(self.root, key)

    def key_of(self, path: str) -> str | None:
        return key_of(self.root, path)

    def has_children(self, path: str) -> bool:
        return not path.endswith("=")

    def encode(self, key: str, value: bytes, kept: Kept, ledger_id: int = NO_LEDGER) -> bytes:
        return value

    def decode(self, key: str, node: bytes) -> Stored:
        return Stored(node)

    def entry(self, key: str, value: bytes, kept: Kept, stays: bool = False) -> bytes | None:
        return None

    def with_entry(self, key: str, stored: Stored, entry: bytes) -> Stored:
        return stored
