"""All families together, and what they keep of each key beside the seam's value."""

from collections.abc import Sequence
from typing import Final

from managed_ledger.storage.bookkeeper.formats.family import (
    NO_LEDGER,
    NOTHING,
    Family,
    Kept,
    OwnFormat,
    Stored,
)


class KnownFormats:
    def __init__(self, families: Sequence[Family], own_root: str) -> None:
        """Keys of no family stay as they are, below `own_root`."""
        self._families: Final = (*families, OwnFormat(own_root))
        self._kept: dict[str, Kept] = {}
        self._ledger_ids: dict[str, int] = {}

    @property
    def roots(self) -> list[str]:
        return sorted({family.root for family in self._families})

    def path_of(self, key: str) -> str:
        return self._found(key)[1]

    def key_of(self, path: str) -> str | None:
        for family in self._families:
            if path.startswith(f"{family.root}/") and (key := family.key_of(path)) is not None:
                return key
        return None

    def has_children(self, path: str) -> bool:
        return any(
            family.has_children(path)
            for family in self._families
            if f"{path}/".startswith(f"{family.root}/")
        )

    # --- values

    def node(self, key: str, value: bytes, ledger_id: int = NO_LEDGER) -> bytes:
        """Raises CorruptStorage."""
        return self._found(key)[0].encode(key, value, self._kept.get(key, NOTHING), ledger_id)

    def entry(self, key: str, value: bytes) -> bytes | None:
        """What belongs into a ledger because it is too large for a node. Raises CorruptStorage."""
        return self._found(key)[0].entry(key, value, self._kept.get(key, NOTHING))

    def decoded(self, key: str, node: bytes, entry: bytes | None = None) -> Stored:
        """Raises CorruptStorage."""
        family, _ = self._found(key)
        stored = family.decode(key, node)
        return stored if entry is None else family.with_entry(key, stored, entry)

    # --- what is true of a key now

    def keep(self, key: str, stored: Stored) -> None:
        self.forget(key)
        if stored.kept:
            self._kept[key] = stored.kept
        self.set_ledger_id(key, stored.ledger_id)

    def forget(self, key: str) -> None:
        self._kept.pop(key, None)
        self._ledger_ids.pop(key, None)

    def ledger_id(self, key: str) -> int:
        """The ledger with its value; NO_LEDGER if it is in the node."""
        return self._ledger_ids.get(key, NO_LEDGER)

    def set_ledger_id(self, key: str, ledger_id: int) -> None:
        if ledger_id == NO_LEDGER:
            self._ledger_ids.pop(key, None)
        else:
            self._ledger_ids[key] = ledger_id

    def _found(self, key: str) -> tuple[Family, str]:
        for family in self._families:
            if (path := family.path_of(key)) is not None:
                return family, path
        raise AssertionError(f"{key!r} is in no family, not even in the last")
