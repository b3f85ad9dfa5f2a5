"""All families, with the data of other programs that they keep for each key."""

from collections.abc import Sequence
from typing import Final

from managed_ledger.storage.bookkeeper.formats.family import (
    NO_LEDGER,
    NOTHING,
    Family,
    JoinedFamily,
    Kept,
    ListFamily,
    OwnFormat,
    Stored,
)


class KnownFormats:
    def __init__(
        self,
        families: Sequence[Family],
        own_root: str,
        joined: Sequence[JoinedFamily] = (),
        lists: Sequence[ListFamily] = (),
    ) -> None:
        """Keys of no family are stored below `own_root`, with unchanged values."""
        self._families: Final = (*families, OwnFormat(own_root))
        self._joined: Final = tuple(joined)
        self._lists: Final = tuple(lists)
        self._all: Final[tuple[Family | JoinedFamily | ListFamily, ...]] = (
            *self._joined,
            *self._lists,
            *self._families,
        )
        self._kept: dict[str, Kept] = {}
        self._ledger_ids: dict[str, int] = {}

    @property
    def roots(self) -> list[str]:
        return sorted({family.root for family in self._all})

    def path_of(self, key: str) -> str:
        if (shared := self.joined(key) or self.listed(key)) is not None:
            return shared[1]
        return self._found(key)[1]

    def joined(self, key: str) -> tuple[JoinedFamily, str] | None:
        """The family and the node that the key shares with others; None if it shares none."""
        for family in self._joined:
            if (path := family.path_of(key)) is not None:
                return family, path
        return None

    def listed(self, key: str) -> tuple[ListFamily, str] | None:
        """The family and the node that lists the key or the folder; None if there is none."""
        for family in self._lists:
            if (path := family.path_of(key)) is not None:
                return family, path
        return None

    def is_shared(self, key: str) -> bool:
        """Whether the key shares its node with other keys."""
        return (self.joined(key) or self.listed(key)) is not None

    def keys_of(self, path: str) -> tuple[str, ...]:
        """The keys with values in the node or, if the node is a list, its folder."""
        for lists in self._lists:
            if path.startswith(f"{lists.root}/") and (folder := lists.folder_of(path)):
                return (folder,)
        for joined in self._joined:
            if path.startswith(f"{joined.root}/") and (keys := joined.keys_of(path)):
                return keys
        for family in self._families:
            if path.startswith(f"{family.root}/") and (key := family.key_of(path)) is not None:
                return (key,)
        return ()

    def has_children(self, path: str) -> bool:
        return any(
            family.has_children(path)
            for family in self._all
            if f"{path}/".startswith(f"{family.root}/")
        )

    # --- values

    def node(self, key: str, value: bytes, ledger_id: int = NO_LEDGER) -> bytes:
        """Raises CorruptStorage if the value cannot be decoded."""
        return self._found(key)[0].encode(key, value, self._kept.get(key, NOTHING), ledger_id)

    def entry(self, key: str, value: bytes, stays: bool) -> bytes | None:
        """The part of the value for a ledger, as `Family.entry`. Raises CorruptStorage."""
        return self._found(key)[0].entry(key, value, self._kept.get(key, NOTHING), stays)

    def decoded(self, key: str, node: bytes, entry: bytes | None = None) -> Stored | None:
        """The key's value in the node; None if it has none. Raises CorruptStorage."""
        if (joined := self.joined(key)) is not None:
            value = joined[0].split(joined[1], node).get(key)
            return None if value is None else Stored(value)
        family, _ = self._found(key)
        stored = family.decode(key, node)
        if stored is None or entry is None:
            return stored
        return family.with_entry(key, stored, entry)

    def read_back(self, key: str, value: bytes) -> bytes:
        """The value that a later read returns: some formats do not preserve the exact bytes. Raises
        CorruptStorage.
        """
        if (listed := self.listed(key)) is not None:
            return listed[0].value(key, listed[0].entry(key, value))
        if (joined := self.joined(key)) is not None:
            family, path = joined
            node = family.join(path, {key: value}, b"")
            return value if node is None else family.split(path, node).get(key, value)
        if self._found(key)[0].is_exact:
            return value
        stored = self.decoded(key, self.node(key, value))
        return value if stored is None else stored.value

    # --- the current state of a key

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

    def in_ledgers(self) -> list[str]:
        """The keys whose values are in ledgers."""
        return list(self._ledger_ids)

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
