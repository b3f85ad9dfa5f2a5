"""A family of the seam's keys: where they are in ZooKeeper, and what their nodes' values look like.

The seam's values stay what every engine has; a family turns them into what Apache Pulsar stores,
and back. What another program wrote and the seam has no room for is `kept` and written again.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from managed_ledger.storage.bookkeeper.key_paths import key_of, path_of

NO_LEDGER: Final = -1
Kept = Mapping[int, bytes]  # by what the family says; not empty only if there is something to keep
NOTHING: Final[Kept] = MappingProxyType({})


class Stored(NamedTuple):
    """What a node says. The last entry of ledger `ledger_id`, if there is one, says more."""

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
        """Whether `decode` brings back the very bytes that `encode` was given."""
        ...

    def path_of(self, key: str) -> str | None:
        """None if the key is of another family."""
        ...

    def key_of(self, path: str) -> str | None:
        """Of a path below the root; None if that node has no value of the family."""
        ...

    def has_children(self, path: str) -> bool:
        """Whether nodes below it may matter."""
        ...

    def encode(self, key: str, value: bytes, kept: Kept, ledger_id: int = NO_LEDGER) -> bytes:
        """The node's value; with a ledger, without what `entry` puts into that. Raises
        CorruptStorage if `value` is none of the seam's.
        """
        ...

    def decode(self, key: str, node: bytes) -> Stored | None:
        """None: the node is there for others below it. Raises CorruptStorage, which says what to
        do.
        """
        ...

    def entry(self, key: str, value: bytes, kept: Kept, stays: bool = False) -> bytes | None:
        """What belongs into a ledger and not into a node, because it is too large or is read from
        there only; None: it belongs into the node. `stays`: a ledger is being written for this key,
        so the next value may as well go there.
        """
        ...

    def with_entry(self, key: str, stored: Stored, entry: bytes) -> Stored:
        """What node and entry say together. Raises CorruptStorage."""
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
        """The node with these values and no others of its keys; the rest stays as it is in `node`,
        which is empty if there is none yet. None: the node is to go. Raises CorruptStorage.
        """
        ...


class Listed(NamedTuple):
    """Where a node says that a value is, and all that it says of it."""

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
        """None: nothing is left, and the node is to go."""
        ...

    def listed(self, key: str, value: bytes, ledger_id: int) -> Listed:
        """Of the value whose `entry` is the first of that ledger. Raises CorruptStorage."""
        ...

    def entry(self, key: str, value: bytes) -> bytes:
        """Raises CorruptStorage if `value` is none of the seam's."""
        ...

    def value(self, key: str, entry: bytes) -> bytes:
        """Raises CorruptStorage."""
        ...

    def custom(self, key: str) -> Mapping[str, bytes]:
        """The custom metadata of the ledger with the value."""
        ...


class OwnFormat:
    """Keys of no other family, and their values as they are."""

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
