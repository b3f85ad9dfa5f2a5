"""Managed ledgers and cursors: `/managed-ledgers/<t>/<ns>/persistent/<topic>/<cursor>`.

Only names of this form belong to the family. Logs that Apache Pulsar does not have are stored in
pybroker's own format.
"""

import re
from typing import Final
from urllib.parse import unquote

from managed_ledger.ledger_metadata import (
    CURSORS_PREFIX,
    LEDGERS_PREFIX,
    CursorRecord,
    LedgerList,
    cursor_key,
    cursor_name,
    ledgers_key,
)
from managed_ledger.storage.bookkeeper.formats import cursor_record, ledger_list
from managed_ledger.storage.bookkeeper.formats.compression import plain
from managed_ledger.storage.bookkeeper.formats.family import NO_LEDGER, Kept, Stored
from managed_ledger.storage.bookkeeper.formats.java_names import escape, unescape

_DOMAIN: Final = "persistent"
_PLAIN: Final = re.compile(r"[-=:.\w]+", re.ASCII)  # a tenant, a namespace
_LIST_PARTS: Final = 4
_CURSOR_PARTS: Final = 5


class ManagedLedgers:
    is_exact = True

    def __init__(self, root: str = "/managed-ledgers") -> None:
        self.root = root

    # --- paths

    def path_of(self, key: str) -> str | None:
        if key.startswith(LEDGERS_PREFIX):
            return self._list_path(key.removeprefix(LEDGERS_PREFIX))
        if key.startswith(CURSORS_PREFIX):
            name = unquote(key.removeprefix(CURSORS_PREFIX).partition("/")[0])
            above, cursor = self._list_path(name), _node_name(cursor_name(key))
            if above is None or cursor is None or cursor_key(name, cursor_name(key)) != key:
                return None
            return f"{above}/{cursor}"
        return None

    def key_of(self, path: str) -> str | None:
        parts = path[len(self.root) + 1 :].split("/")
        if len(parts) not in (_LIST_PARTS, _CURSOR_PARTS) or parts[2] != _DOMAIN:
            return None
        names = [unescape(part) for part in parts[3:]]
        name = f"{parts[0]}/{parts[1]}/{_DOMAIN}/{names[0]}"
        key = ledgers_key(name) if len(names) == 1 else cursor_key(name, str(names[-1]))
        return key if self.path_of(key) == path else None

    def has_children(self, path: str) -> bool:
        return path[len(self.root) :].count("/") < _CURSOR_PARTS

    def _list_path(self, name: str) -> str | None:
        tenant, _, rest = name.partition("/")
        namespace, _, rest = rest.partition("/")
        domain, _, local = rest.partition("/")
        topic = _node_name(local)
        if domain != _DOMAIN or topic is None or not _is_plain(tenant) or not _is_plain(namespace):
            return None
        return f"{self.root}/{tenant}/{namespace}/{_DOMAIN}/{topic}"

    # --- values

    def encode(self, key: str, value: bytes, kept: Kept, ledger_id: int = NO_LEDGER) -> bytes:
        if key.startswith(LEDGERS_PREFIX):
            return ledger_list.encode(LedgerList.decode(value, key), kept)
        return cursor_record.encode_node(CursorRecord.decode(value, key), kept, ledger_id)

    def decode(self, key: str, node: bytes) -> Stored:
        if key.startswith(LEDGERS_PREFIX):
            what = f"the ledger list {key!r}"
            found, kept = ledger_list.decode(plain(node, what), what)
            return Stored(found.encode(), kept)
        what = f"the cursor {key!r}"
        record, kept, ledger_id = cursor_record.decode_node(plain(node, what), what)
        return Stored(record.encode(), kept, ledger_id)

    def entry(self, key: str, value: bytes, kept: Kept, stays: bool = False) -> bytes | None:
        if key.startswith(LEDGERS_PREFIX):
            return None
        record = CursorRecord.decode(value, key)
        if not stays and not cursor_record.belongs_into_ledger(record):
            return None
        return cursor_record.encode_entry(record, kept)

    def with_entry(self, key: str, stored: Stored, entry: bytes) -> Stored:
        what = f"the cursor {key!r} in ledger {stored.ledger_id}"
        node = CursorRecord.decode(stored.value, key)
        record, kept = cursor_record.decode_entry(plain(entry, what), node, stored.kept, what)
        return Stored(record.encode(), kept, stored.ledger_id)


def _is_plain(part: str) -> bool:
    return _PLAIN.fullmatch(part) is not None and bool(part.strip("."))


def _node_name(name: str) -> str | None:
    """The name of the node; None if ZooKeeper does not allow it."""
    escaped = escape(name)
    return escaped if escaped.strip(".") else None
