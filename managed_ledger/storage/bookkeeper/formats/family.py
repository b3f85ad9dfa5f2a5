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

    def decode(self, key: str, node: bytes) -> Stored:
        """Raises CorruptStorage, which says what to do."""
        ...

    def entry(self, key: str, value: bytes, kept: Kept) -> bytes | None:
        """What belongs into a ledger because it is too large for a node; None: it is not."""
        ...

    def with_entry(self, key: str, stored: Stored, entry: bytes) -> Stored:
        """What node and entry say together. Raises CorruptStorage."""
        ...


class OwnFormat:
    """Keys of no other family, and their values as they are."""

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

    def entry(self, key: str, value: bytes, kept: Kept) -> bytes | None:
        return None

    def with_entry(self, key: str, stored: Stored, entry: bytes) -> Stored:
        return stored
