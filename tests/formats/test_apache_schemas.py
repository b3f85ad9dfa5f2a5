"""Schemas as Apache Pulsar stores them: a node with the list of versions, an entry for each."""

import base64
import hashlib
import json
import random

import pytest

from managed_ledger.errors import CorruptStorage
from managed_ledger.storage.bookkeeper.formats.family import Listed
from pybroker.formats.apache.schemas import SchemaNodes

FAMILY = SchemaNodes()
FOLDER = "/schemas/acme%2Fshop%2Fpersistent%2Forders%201/"
PATH = "/schemas/acme/shop/orders+1"
KEY = f"{FOLDER}000000000000"
DATA = b'{"type":"record"}'
RECORD = {
    "name": "orders 1",
    "type": 4,
    "data": base64.b64encode(DATA).decode(),
    "properties": {"a": "b"},
    "added_at_ms": 1_700_000_000_000,
}
# SchemaInfo of id acme/shop/orders+1, user "", AVRO
INFO = (
    b"\x0a\x13acme/shop/orders+1"
    b"\x12\x00\x18\x05\x22\x11" + DATA + b"\x28\x80\xd0\x95\xff\xbc\x31\x30\x00"
    b"\x3a\x06\x0a\x01a\x12\x01b"
).replace(b"\x0a\x13", b"\x0a\x12")  # fmt: skip


def encoded(**changes: object) -> bytes:
    return json.dumps({**RECORD, **changes}).encode()


def test_a_topics_schemas_are_listed_where_apache_looks():
    assert FAMILY.path_of(KEY) == FAMILY.path_of(FOLDER) == PATH
    assert FAMILY.folder_of(PATH) == FOLDER


@pytest.mark.parametrize(
    "key", ["/tenants/x", "/schemas/a%2Fb%2Fnon-persistent%2Fc/000000000000",
            "/schemas/a%2Fb%2Fpersistent/1", "/schemas/a%2F..%2Fpersistent%2Fc/1"],
)  # fmt: skip
def test_other_keys_are_not_of_the_family(key):
    assert FAMILY.path_of(key) is None


@pytest.mark.parametrize(
    "path", ["/schemas/a", "/schemas/a/b", "/schemas/a/b/c/d", "/schemas/a/b/~"]
)
def test_other_nodes_have_no_folder(path):
    assert FAMILY.folder_of(path) is None


def test_an_entry_has_apaches_schema_info():
    entry = FAMILY.entry(KEY, encoded())
    assert entry.startswith(b"\x12" + bytes([len(INFO)]) + INFO)
    assert json.loads(FAMILY.value(KEY, entry)) == RECORD


def test_what_apache_wrote_is_read():
    deleted = INFO.replace(b"\x30\x00", b"\x30\x01").replace(b"\x22\x11" + DATA, b"\x22\x00")
    entry = b"\x12" + bytes([len(deleted)]) + deleted
    found = json.loads(FAMILY.value(KEY, entry))
    assert found == {**RECORD, "data": "", "deletion": True}


def test_a_schemas_own_name_is_kept():
    entry = FAMILY.entry(KEY, encoded(name="Order"))
    assert json.loads(FAMILY.value(KEY, entry))["name"] == "Order"


def test_the_node_says_which_version_is_the_latest_and_where_all_are():
    first = FAMILY.listed(KEY, encoded(), 7)
    second = FAMILY.listed(f"{FOLDER}000000000001", encoded(data="", deletion=True), 9)
    digest = hashlib.sha256(DATA).digest()
    assert first == Listed(7, 0, b"\x08\x00\x12\x04\x08\x07\x10\x00\x1a\x20" + digest)
    assert second == Listed(9, 0, b"\x08\x01\x12\x04\x08\x09\x10\x00\x1a\x00")
    listed = {f"{FOLDER}000000000001": second, KEY: first}
    node = FAMILY.join(PATH, listed)
    assert node == (
        b"\x0a\x0a" + second.line + b"\x12" + bytes([len(first.line)]) + first.line
        + b"\x12\x0a" + second.line
    )  # fmt: skip
    assert FAMILY.split(PATH, node) == listed
    assert FAMILY.join(PATH, {}) is None


@pytest.mark.parametrize(
    "line", [b"\x08\x01", b"\x08\x01\x12\x04\x08\x09\x10" + b"\xff" * 9 + b"\x01",
             b"\x08" + b"\xff" * 9 + b"\x01\x12\x04\x08\x09\x10\x00", b"\x12\x04\x08\x09\x10\x00"],
)  # fmt: skip
def test_a_line_without_a_version_or_a_place_is_corruption(line):
    with pytest.raises(CorruptStorage, match="acme/shop"):
        FAMILY.split(PATH, b"\x12" + bytes([len(line)]) + line)


def test_an_unknown_type_is_a_sentence():
    entry = b"\x12\x05\x18\xff\xff\xff\x0f"
    with pytest.raises(CorruptStorage, match="type"):
        FAMILY.value(KEY, entry)


def test_damage_is_corruption_or_another_value_and_nothing_else():
    rng = random.Random(5)
    node = FAMILY.join(PATH, {KEY: FAMILY.listed(KEY, encoded(), 7)})
    assert node is not None
    for sample, read in ((node, FAMILY.split), (FAMILY.entry(KEY, encoded()), FAMILY.value)):
        for _ in range(400):
            each = bytearray(sample[: rng.randint(1, len(sample))])
            for _ in range(rng.randint(1, 3)):
                each[rng.randrange(len(each))] = rng.choice((0, 0x7F, 0x80, 0xFF))
            try:
                read(PATH if read == FAMILY.split else KEY, bytes(each))
            except CorruptStorage:
                continue
