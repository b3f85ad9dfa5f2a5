"""Managed ledgers of any name in Apache Pulsar's format, so that every test uses that format."""

from urllib.parse import quote, unquote

from managed_ledger.ledger_metadata import CURSORS_PREFIX, LEDGERS_PREFIX
from managed_ledger.storage.bookkeeper.formats.managed_ledgers import ManagedLedgers

_ABOVE = "tenant/ns/persistent/"


class ShortNames(ManagedLedgers):
    """`log` is the topic `log` of a namespace."""

    def __init__(self, root: str = "/managed-ledgers") -> None:
        super().__init__(root)
        self._whole = ManagedLedgers(root)

    def path_of(self, key: str) -> str | None:
        if key.startswith(LEDGERS_PREFIX):
            name = _ABOVE + key.removeprefix(LEDGERS_PREFIX)
            return self._whole.path_of(LEDGERS_PREFIX + name)
        if key.startswith(CURSORS_PREFIX):
            name, _, cursor = key.removeprefix(CURSORS_PREFIX).partition("/")
            whole = quote(_ABOVE + unquote(name), safe="")
            return self._whole.path_of(f"{CURSORS_PREFIX}{whole}/{cursor}")
        return None

    def key_of(self, path: str) -> str | None:
        key = self._whole.key_of(path)
        if key is None:
            return None
        return key.replace(_ABOVE, "", 1).replace(quote(_ABOVE, safe=""), "", 1)
