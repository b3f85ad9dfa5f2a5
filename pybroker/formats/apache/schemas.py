"""Schemas: `/schemas/<tenant>/<namespace>/<topic>` lists the versions; each version is in a ledger.

    SchemaLocator {1 info, 2 index*}             the node: the latest version, and all versions
    IndexEntry {1 version, 2 position, 3 hash}   position {1 ledger, 2 entry}
    SchemaEntry {2 schema_data, 5 index*}        the ledger's entry
    SchemaInfo {1 id, 2 user, 3 type, 4 schema, 5 timestamp, 6 deleted, 7 props*}

Types are numbered from 1, on the wire from 0. Apache stores no schema name and uses the topic's; a
different name is in field 1001 of SchemaInfo. Schemas of non-persistent topics stay in pybroker's
own format, because Apache does not distinguish them from those of persistent topics.

Source: SchemaStorageFormat.proto, SchemaRegistryFormat.proto; BookkeeperSchemaStorage.
"""

import base64
import binascii
import hashlib
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, unquote

from managed_ledger.codec import Writer
from managed_ledger.errors import CorruptStorage
from managed_ledger.storage.bookkeeper.formats.family import Listed
from managed_ledger.storage.bookkeeper.formats.java_names import unescape
from managed_ledger.storage.bookkeeper.formats.messages import natural, put_pair, read_pair
from managed_ledger.storage.bookkeeper.formats.protobuf import (
    BYTES,
    VARINT,
    fields,
    put_bytes,
    put_int,
)
from pybroker.formats.apache.json_nodes import encoded, fields_of, is_plain, node_name

_PREFIX: Final = "/schemas/"
_DOMAIN: Final = "persistent"
_NAME: Final = 1001
_MAX_VERSION: Final = 10**12 - 1  # keys have twelve digits
_MAX_TYPE: Final = 64
_MAX_VERSIONS: Final = 100_000


class SchemaNodes:
    """Implements ListFamily."""

    root = "/schemas"

    # --- paths

    def path_of(self, key: str) -> str | None:
        topic = _topic_of(key)
        if topic is None:
            return None
        tenant, namespace, local = topic
        return f"{self.root}/{tenant}/{namespace}/{node_name(local)}"

    def folder_of(self, path: str) -> str | None:
        names = path[len(self.root) + 1 :].split("/")
        local = unescape(names[-1]) if len(names) == 3 else None
        if local is None or not all(map(is_plain, names[:2])) or node_name(local) != names[2]:
            return None
        return _PREFIX + quote(f"{names[0]}/{names[1]}/{_DOMAIN}/{local}", safe="") + "/"

    def has_children(self, path: str) -> bool:
        return path[len(self.root) :].count("/") < 3

    # --- the node

    def split(self, path: str, node: bytes) -> Mapping[str, Listed]:
        folder, what = self.folder_of(path), f"the list of schemas {path}"
        found: dict[str, Listed] = {}
        for field in fields(node, what):
            if field.number == 2 and field.wire == BYTES:
                number, listed = _read_line(field.blob, what)
                found[f"{folder}{number:012}"] = listed
                if len(found) > _MAX_VERSIONS:
                    raise CorruptStorage(f"{what} has more than {_MAX_VERSIONS} versions")
        return dict(sorted(found.items()))

    def join(self, path: str, listed: Mapping[str, Listed]) -> bytes | None:
        lines = [listed[key].line for key in sorted(listed)]
        if not lines:
            return None
        out = Writer()
        put_bytes(out, 1, lines[-1])
        for line in lines:
            put_bytes(out, 2, line)
        return out.getvalue()

    # --- a version

    def listed(self, key: str, value: bytes, ledger_id: int) -> Listed:
        record = fields_of(value, f"the schema {key!r}")
        data = _data(record, key)
        digest = b"" if record.get("deletion") else hashlib.sha256(data).digest()
        return Listed(ledger_id, 0, _line(_number_of(key), ledger_id, 0, digest))

    def entry(self, key: str, value: bytes) -> bytes:
        record, topic = fields_of(value, f"the schema {key!r}"), _topic_of(key)
        assert topic is not None
        info = Writer()
        put_bytes(info, 1, "/".join((*topic[:2], str(node_name(topic[2])))).encode())
        put_bytes(info, 2, b"")
        put_int(info, 3, record["type"] + 1)
        put_bytes(info, 4, _data(record, key))
        put_int(info, 5, record.get("added_at_ms", 0))
        put_int(info, 6, bool(record.get("deletion")))
        for name, text in record.get("properties", {}).items():
            put_pair(info, 7, name, text)
        if (own_name := record.get("name", "")) != topic[2]:
            put_bytes(info, _NAME, own_name.encode())
        out = Writer()
        put_bytes(out, 2, info.getvalue())
        # Apache also writes earlier versions here, and never reads them: one line is enough.
        put_bytes(out, 5, _line(_number_of(key), -1, -1, b""))
        return out.getvalue()

    def value(self, key: str, entry: bytes) -> bytes:
        what = f"the schema {key!r}"
        outer = {field.number: field.blob for field in fields(entry, what)}
        if 2 not in outer:
            raise CorruptStorage(f"{what} has no data")
        blobs: dict[int, bytes] = {}
        numbers: dict[int, int] = {}
        properties: dict[str, str] = {}
        for field in fields(outer[2], what):
            if field.number == 7 and field.wire == BYTES:
                name, text = read_pair(field.blob, what)
                properties[name] = text
            elif field.wire == BYTES:
                blobs[field.number] = field.blob
            elif field.wire == VARINT:
                numbers[field.number] = natural(field.value, what)
        kind = numbers.get(3, 1) - 1
        if not 0 <= kind < _MAX_TYPE:
            raise CorruptStorage(f"{what} has the type {kind + 1}, which is unknown")
        topic = _topic_of(key)
        assert topic is not None
        record = {
            "name": _text(blobs[_NAME], what) if _NAME in blobs else topic[2],
            "type": kind,
            "data": base64.b64encode(blobs.get(4, b"")).decode(),
            "properties": properties,
            "added_at_ms": numbers.get(5, 0),
        }
        return encoded(record | ({"deletion": True} if numbers.get(6) else {}))

    def custom(self, key: str) -> Mapping[str, bytes]:
        topic = _topic_of(key)
        assert topic is not None
        schema_id = "/".join((*topic[:2], str(node_name(topic[2]))))
        return {
            "application": b"pybroker",
            "component": b"schema",
            "pulsar/schemaId": schema_id.encode(),
        }


def _topic_of(key: str) -> tuple[str, str, str] | None:
    """The topic's tenant, namespace and own name; None if its schemas are not in Apache's
    format.
    """
    if not key.startswith(_PREFIX):
        return None
    quoted, _, number = key.removeprefix(_PREFIX).partition("/")
    names = unquote(quoted).split("/", 3)
    if len(names) != 4 or names[2] != _DOMAIN or not all(map(is_plain, names[:2])):
        return None
    if node_name(names[3]) is None or (number and not number.isdigit()):
        return None
    return names[0], names[1], names[3]


def _number_of(key: str) -> int:
    return int(key.rpartition("/")[2])


def _line(version: int, ledger_id: int, entry_id: int, digest: bytes) -> bytes:
    position, out = Writer(), Writer()
    put_int(position, 1, ledger_id)
    put_int(position, 2, entry_id)
    put_int(out, 1, version)
    put_bytes(out, 2, position.getvalue())
    put_bytes(out, 3, digest)
    return out.getvalue()


def _read_line(line: bytes, what: str) -> tuple[int, Listed]:
    """Raises CorruptStorage for a number that is no version, and a negative position."""
    version, position = -1, b""
    for field in fields(line, what):
        if field.number == 1 and field.wire == VARINT:
            version = field.value
        elif field.number == 2 and field.wire == BYTES:
            position = field.blob
    at = {field.number: field.value for field in fields(position, what)}
    if not 0 <= version <= _MAX_VERSION:
        raise CorruptStorage(f"{what} lists the version {version}, which is not a version")
    ledger_id, entry_id = natural(at.get(1, -1), what), natural(at.get(2, -1), what)
    return version, Listed(ledger_id, entry_id, line)


def _data(record: Mapping[str, Any], key: str) -> bytes:
    """Raises CorruptStorage if the record has no base64 data."""
    try:
        return base64.b64decode(record["data"], validate=True)
    except (KeyError, TypeError, binascii.Error) as why:
        raise CorruptStorage(f"the schema {key!r} has no data that can be read: {why}") from None


def _text(blob: bytes, what: str) -> str:
    """Raises CorruptStorage unless `blob` is UTF-8."""
    try:
        return blob.decode()
    except UnicodeDecodeError as why:
        raise CorruptStorage(f"{what} has a name that is not UTF-8: {why}") from None
