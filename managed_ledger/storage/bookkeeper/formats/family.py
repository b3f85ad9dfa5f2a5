"""A family of the seam's keys: their places in ZooKeeper, and the format of their nodes' values.

The seam's values are the same for every engine; a family converts them to Apache Pulsar's format
and back. Data of other programs without a place in the seam's value is `kept`, and written again.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from managed_ledger.storage.bookkeeper.key_paths import key_of, path_of

NO_LEDGER: Final = -1
Kept = Mapping[int, bytes]  # as the family defines; empty if there is nothing to keep
NOTHING: Final[Kept] = MappingProxyType({})


class Stored(NamedTuple):
    """The content of a node; the rest is in the last entry of `ledger_id`, if there is one."""

    value: bytes  # the seam's
    kept: Kept = NOTHING
    ledger_id: int = NO_LEDGER


class Family(Protocol):
    @property
    def root(self) -> str:
        """The node above all of the family's."""
        ...

    @property
    def is_exact(self) -> bool:
        """Whether `decode` restores exactly the bytes that `encode` was given."""
        ...

    def path_of(self, key: str) -> str | None:
        """None if the key is of another family."""
        ...

    def key_of(self, path: str) -> str | None:
        """The key of a path below the root; None if that node has no value of the family."""
        ...

    def has_children(self, path: str) -> bool:
        """Whether nodes below it may matter."""
        ...

    def encode(self, key: str, value: bytes, kept: Kept, ledger_id: int = NO_LEDGER) -> bytes:
        """The node's value; with a ledger, without the part that `entry` puts there. Raises
        CorruptStorage if `value` is not one of the seam's.
        """
        ...

    def decode(self, key: str, node: bytes) -> Stored | None:
        """None: the node exists only for nodes below it. Raises CorruptStorage, which says what to
        do.
        """
        ...

    def entry(self, key: str, value: bytes, kept: Kept, stays: bool = False) -> bytes | None:
        """The value's part for a ledger, because it is too large for a node or only read from a
        ledger; None: the node holds everything. `stays`: the key already has a ledger, so the value
        may go there in any case.
        """
        ...

    def with_entry(self, key: str, stored: Stored, entry: bytes) -> Stored:
        """The value of node and entry together. Raises CorruptStorage."""
        ...


class JoinedFamily(Protocol):
    """Several keys have their values in one node."""

    @property
    def root(self) -> str: ...

    def path_of(self, key: str) -> str | None: ...

    def keys_of(self, path: str) -> tuple[str, ...]:
        """All keys that may have their values in the node."""
        ...

    def has_children(self, path: str) -> bool: ...

    def split(self, path: str, node: bytes) -> Mapping[str, bytes]:
        """The values that are there, by key. Raises CorruptStorage."""
        ...

    def join(self, path: str, values: Mapping[str, bytes], node: bytes) -> bytes | None:
        """The node with these values and none of its other keys; the rest of `node`, which is empty
        for a new one, is kept. None: delete the node. Raises CorruptStorage.
        """
        ...


class Listed(NamedTuple):
    """The place of a value according to its node, and the node's data about it."""

    ledger_id: int
    entry_id: int
    line: bytes


class ListFamily(Protocol):
    """A node lists values that never change; each is in a ledger of its own. Their keys begin with
    the node's folder, which ends with '/'.
    """

    @property
    def root(self) -> str: ...

    def path_of(self, key: str) -> str | None:
        """The node that lists the key; also of its folder."""
        ...

    def folder_of(self, path: str) -> str | None: ...

    def has_children(self, path: str) -> bool: ...

    def split(self, path: str, node: bytes) -> Mapping[str, Listed]:
        """By key. Raises CorruptStorage."""
        ...

    def join(self, path: str, listed: Mapping[str, Listed]) -> bytes | None:
        """None: nothing is left; delete the node."""
        ...

    def listed(self, key: str, value: bytes, ledger_id: int) -> Listed:
        """For the value whose `entry` is the first of that ledger. Raises CorruptStorage."""
        ...

    def entry(self, key: str, value: bytes) -> bytes:
        """Raises CorruptStorage if `value` is not one of the seam's."""
        ...

    def value(self, key: str, entry: bytes) -> bytes:
        """Raises CorruptStorage."""
        ...

    def custom(self, key: str) -> Mapping[str, bytes]:
        """The custom metadata of the ledger with the value."""
        ...


class OwnFormat:
    """Keys of no other family, with unchanged values."""

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
