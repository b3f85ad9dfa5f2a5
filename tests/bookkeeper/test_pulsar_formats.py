"""Managed ledgers and cursors in ZooKeeper, in the format of Apache Pulsar's MLDataFormats."""

import random
import zlib

import pytest

from managed_ledger.ack_set import AckSet
from managed_ledger.errors import CorruptStorage
from managed_ledger.ledger_metadata import (
    CursorRecord,
    LedgerInfo,
    LedgerList,
    cursor_key,
    ledgers_key,
)
from managed_ledger.position import Position
from managed_ledger.storage.bookkeeper.formats import compression
from managed_ledger.storage.bookkeeper.formats.compression import plain
from managed_ledger.storage.bookkeeper.formats.managed_ledgers import ManagedLedgers

FAMILY = ManagedLedgers()
NAME = "public/default/persistent/orders"
LIST, CURSOR = ledgers_key(NAME), cursor_key(NAME, "billing")
MINUS_ONE = b"\xff" * 9 + b"\x01"
# {lower: (7, -1), upper: (7, 1)} and {lower: (7, 3), upper: (7, 5)}
RANGES = (
    b"\x22\x15\x0a\x0d\x08\x07\x10" + MINUS_ONE + b"\x12\x04\x08\x07\x10\x01"
    b"\x22\x0c\x0a\x04\x08\x07\x10\x03\x12\x04\x08\x07\x10\x05"
)  # fmt: skip


def acked(*entries: int) -> bytes:
    acks = AckSet()
    for entry in entries:
        acks.add(entry)
    return acks.encode()


def record(**changes: object) -> CursorRecord:
    return CursorRecord(
        **{
            "mark_delete_position": Position(6, 9),
            "properties": {},
            "acked": {},
            "batches": {},
            **changes,
        }  # type: ignore[arg-type]
    )


def node_of(found: CursorRecord | LedgerList, ledger_id: int = -1, **kept: bytes) -> bytes:
    key = LIST if isinstance(found, LedgerList) else CURSOR
    return FAMILY.encode(key, found.encode(), {}, ledger_id)


def list_in(node: bytes) -> LedgerList:
    return LedgerList.decode(FAMILY.decode(LIST, node).value, LIST)


def cursor_in(node: bytes, entry: bytes | None = None) -> CursorRecord:
    stored = FAMILY.decode(CURSOR, node)
    if entry is not None:
        stored = FAMILY.with_entry(CURSOR, stored, entry)
    return CursorRecord.decode(stored.value, CURSOR)


# --- paths


@pytest.mark.parametrize(
    ("topic", "node"),
    [
        ("orders", "orders"),
        ("a b~c*d", "a+b%7Ec*d"),
        ("ü/%", "%C3%BC%2F%25"),
        ("orders-partition-3", "orders-partition-3"),
    ],
)
def test_a_topics_node_is_where_apache_pulsar_has_it(topic, node):
    key = ledgers_key(f"public/default/persistent/{topic}")
    path = f"/managed-ledgers/public/default/persistent/{node}"
    assert FAMILY.path_of(key) == path
    assert FAMILY.key_of(path) == key


def test_a_cursors_node_is_below_its_topics():
    key = cursor_key("public/default/persistent/a/b", "sub 1/ü")
    path = "/managed-ledgers/public/default/persistent/a%2Fb/sub+1%2F%C3%BC"
    assert FAMILY.path_of(key) == path
    assert FAMILY.key_of(path) == key


@pytest.mark.parametrize(
    "name", ["log", "a/b/c", "public/default/persistent/", "public/default/persistent/..",
             "public/../persistent/x", "a b/ns/persistent/x", "public/default/other/x"],
)  # fmt: skip
def test_other_names_are_not_of_the_family(name):
    assert FAMILY.path_of(ledgers_key(name)) is None
    assert FAMILY.path_of(cursor_key(name, "sub")) is None
    assert FAMILY.path_of("policies/x") is None


@pytest.mark.parametrize(
    "path", ["", "/public", "/public/default/persistent", "/public/default/non-persistent/x",
             "/tenant/cluster/ns/persistent/x", "/a/b/persistent/x/y/z", "/a/b/persistent/%zz",
             "/a/b/persistent/~", "/a/b/persistent/%ff"],
)  # fmt: skip
def test_other_nodes_are_no_keys(path):
    assert FAMILY.key_of(f"/managed-ledgers{path}") is None


# --- the list of ledgers


def test_the_open_ledger_has_timestamp_0_and_no_counts():
    ledgers = (LedgerInfo(3, 50, 4000, 1_700_000_000_000), LedgerInfo(9))
    node = node_of(LedgerList(ledgers, {"k": "v"}))
    assert node == (
        b"\x0a\x0e\x08\x03\x10\x32\x18\xa0\x1f\x20\x80\xd0\x95\xff\xbc\x31"
        b"\x0a\x04\x08\x09\x20\x00"
        b"\x1a\x06\x0a\x01k\x12\x01v"
    )
    assert list_in(node) == LedgerList(ledgers, {"k": "v"})


def test_a_topic_that_was_only_created_has_an_empty_node():
    assert list_in(b"") == LedgerList()


def test_what_is_being_deleted_comes_back():
    found = LedgerList((LedgerInfo(5),), {}, (3, 4))
    assert list_in(node_of(found)) == found
    tombstone = LedgerList(deleting=(1, 2), deleted=True)
    assert list_in(node_of(tombstone)) == tombstone


def test_a_ledger_that_counts_is_never_one_to_delete():
    """Apache's broker continued with a topic whose deletion was cut short."""
    tombstone = node_of(LedgerList(deleting=(1, 2), deleted=True))
    found = list_in(tombstone + node_of(LedgerList((LedgerInfo(2),))))
    assert found == LedgerList((LedgerInfo(2),), {}, (1,), deleted=False)


def test_no_property_names_ledgers_to_delete():
    found = list_in(node_of(LedgerList((LedgerInfo(5),), {"deleting": "1", "1002": "7"})))
    assert found.deleting == ()


def test_what_apache_keeps_beside_it_is_written_again():
    ledger = (
        b"\x08\x03\x10\x01\x18\x05\x20\x07" + b"\x2a\x02\x18\x01" + b"\x32\x06\x0a\x01a\x12\x01b"
    )
    node = b"\x0a" + bytes([len(ledger)]) + ledger + b"\x12\x04\x08\x03\x10\x00" + b"\xf2\x01\x01x"
    stored = FAMILY.decode(LIST, node)
    found = LedgerList.decode(stored.value, LIST)
    assert found == LedgerList((LedgerInfo(3, 1, 5, 7),), {"terminated": "true"})
    again = FAMILY.encode(LIST, stored.value, stored.kept)
    assert again == node.replace(
        b"\x12\x04\x08\x03", b"\x1a\x12\x0a\x0aterminated\x12\x04true\x12\x04\x08\x03"
    )


def test_a_ledger_that_is_only_in_tiered_storage_is_refused_in_a_sentence():
    with pytest.raises(CorruptStorage, match=r"offloaded to tiered storage.*Apache Pulsar"):
        FAMILY.decode(LIST, b"\x0a\x06\x08\x03\x2a\x02\x20\x01")


# --- cursors


def test_a_small_cursor_is_in_its_node_as_ranges_whose_lower_end_is_exclusive():
    found = record(acked={7: acked(0, 1, 4, 5)}, properties={"a": "b"})
    node = node_of(found)
    assert node == (
        b"\x08" + MINUS_ONE + b"\x10\x06\x18\x09" + RANGES + b"\x42\x06\x0a\x01a\x12\x01b"
    )
    assert cursor_in(node) == found


def test_a_set_bit_of_a_batch_is_an_index_that_is_still_unacknowledged():
    bits = 1 << 63 | 1 << 64 | 1
    node = node_of(record(batches={(7, 2): bits}))
    assert node.endswith(
        b"\x3a\x13\x0a\x04\x08\x07\x10\x02\x10\x81\x80\x80\x80\x80\x80\x80\x80\x80\x01\x10\x01"
    )
    assert cursor_in(node).batches == {(7, 2): bits}


def test_a_batch_without_bits_is_acknowledged():
    found = cursor_in(b"\x08" + MINUS_ONE + b"\x10\x06\x18\x09\x3a\x06\x0a\x04\x08\x07\x10\x02")
    assert (found.batches, found.acked) == ({}, {7: acked(2)})


def test_packed_numbers_are_read_too():
    found = cursor_in(b"\x10\x06\x18\x09\x3a\x0a\x0a\x04\x08\x07\x10\x02\x12\x02\x05\x01")
    assert found.batches == {(7, 2): 1 << 64 | 5}


def test_positions_before_everything_come_back():
    for mark in (Position(-1, -1), Position(7, -1), Position(2**63 - 1, 2**63 - 1)):
        assert cursor_in(node_of(record(mark_delete_position=mark))).mark_delete_position == mark


def test_a_large_cursor_is_in_a_ledger_as_bits():
    small = record(acked={7: acked(*range(1, 2000, 2))})
    assert FAMILY.entry(CURSOR, small.encode(), {}) is None
    large = record(
        acked={7: acked(*range(1, 2001, 2)), 8: acked(65)},
        batches={(8, 2): 6},
        properties={"a": "b"},
    )
    entry = FAMILY.entry(CURSOR, large.encode(), {})
    assert entry is not None
    assert entry.startswith(b"\x08\x06\x10\x09\x2a\x08\x0a\x04\x08\x08\x10\x02\x10\x06\x32")
    assert b"\x32\x06\x08\x08\x10\x00\x10\x02" in entry  # bit 65 is bit 1 of the second word
    node = node_of(large, 44)
    assert node == b"\x08\x2c\x10\x06\x18\x09\x42\x06\x0a\x01a\x12\x01b"
    assert FAMILY.decode(CURSOR, node).ledger_id == 44
    assert cursor_in(node, entry) == large


def test_a_cursor_with_a_part_of_a_batch_is_in_a_ledger():
    """Apache's broker reads partly acknowledged batches only from a ledger."""
    with_part = record(acked={7: acked(0)}, batches={(7, 2): 6})
    assert FAMILY.entry(CURSOR, with_part.encode(), {}) is not None


def test_a_cursor_stays_in_the_ledger_that_is_written_for_it():
    """Otherwise partly acknowledged batches would cause a new ledger every second."""
    small = record(acked={7: acked(0)})
    entry = FAMILY.entry(CURSOR, small.encode(), {}, stays=True)
    assert entry is not None
    assert cursor_in(node_of(small, 44), entry) == small
    assert FAMILY.entry(CURSOR, small.encode(), {}) is None


def test_ranges_in_a_ledger_count_before_bits():
    entry = b"\x08\x06\x10\x09" + RANGES.replace(b"\x22", b"\x1a") + b"\x32\x04\x08\x08\x10\x01"
    assert cursor_in(b"\x08\x2c", entry) == record(acked={7: acked(0, 1, 4, 5)})


def test_a_range_over_the_end_of_a_ledger_counts_in_the_later_one():
    found = cursor_in(b"\x22\x0c\x0a\x04\x08\x06\x10\x09\x12\x04\x08\x07\x10\x02")
    assert found.acked == {7: acked(0, 1, 2)}


def test_apaches_numbers_with_a_cursor_stay_with_it():
    """Compaction and deduplication keep numbers there."""
    number = b"\x0a\x01a\x10\x07"
    stored = FAMILY.decode(CURSOR, b"\x08" + MINUS_ONE + b"\x10\x06\x18\x09\x2a\x05" + number)
    assert FAMILY.encode(CURSOR, stored.value, stored.kept).endswith(b"\x2a\x05" + number)
    large = record(acked={7: acked(*range(1, 3001, 2))})
    entry = FAMILY.entry(CURSOR, large.encode(), stored.kept)
    assert entry is not None
    assert b"\x22\x05" + number in entry
    newer = b"\x08\x06\x10\x09\x22\x05\x0a\x01a\x10\x09"
    found = FAMILY.with_entry(CURSOR, stored, newer)
    assert FAMILY.encode(CURSOR, found.value, found.kept).endswith(b"\x2a\x05\x0a\x01a\x10\x09")


def test_the_time_of_the_last_activity_is_left_to_the_next_owner():
    stored = FAMILY.decode(CURSOR, b"\x10\x06\x18\x09\x30\x07")
    assert b"\x30\x07" not in FAMILY.encode(CURSOR, stored.value, stored.kept)


# --- hostile values


def test_more_acknowledged_entries_than_memory_are_refused():
    far = b"\x08\x07\x10\xff\xff\xff\xff\xff\xff\xff\xff\x7f"
    node = b"\x22\x12\x0a\x04\x08\x07\x10\x01\x12" + bytes([len(far)]) + far
    with pytest.raises(CorruptStorage, match="resetcursor"):
        FAMILY.decode(CURSOR, node.replace(b"\x22\x12", b"\x22" + bytes([8 + len(far)])))


def test_one_acknowledged_entry_far_away_needs_no_memory():
    far = 1 << 60
    large = record(acked={7: acked(*range(1, 3001, 2), far)})
    entry = FAMILY.entry(CURSOR, large.encode(), {})
    assert entry is not None
    assert len(entry) < 100_000
    assert cursor_in(b"\x08\x2c", entry) == large


SAMPLES = [
    (LIST, node_of(LedgerList((LedgerInfo(3, 50, 4000, 7), LedgerInfo(9)), {"k": "v"}, (1, 2)))),
    (CURSOR, node_of(record(acked={7: acked(0, 4)}, batches={(7, 2): 5}, properties={"a": "b"}))),
]


@pytest.mark.parametrize(("key", "node"), SAMPLES, ids=["list", "cursor"])
def test_damage_is_corruption_or_another_value_and_nothing_else(key, node):
    rng = random.Random(3)
    damaged = [node[:end] for end in range(len(node))]
    for _ in range(300):
        each = bytearray(node)
        for _ in range(rng.randint(1, 4)):
            each[rng.randrange(len(each))] = rng.choice((0, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        damaged.append(bytes(each))
    for value in damaged:
        try:
            stored = FAMILY.decode(key, value)
            stored = FAMILY.with_entry(key, stored, value) if key == CURSOR else stored
        except CorruptStorage:
            continue
        FAMILY.encode(key, stored.value, stored.kept)


# --- compression


def compressed(kind: int, payload: bytes) -> bytes:
    head = bytes([8, kind, 16, 100])
    return b"\x47\x78" + len(head).to_bytes(4, "big") + head + payload


def test_what_apache_compressed_with_zlib_is_read():
    node = node_of(LedgerList((LedgerInfo(9),)))
    assert list_in(compressed(2, zlib.compress(node))) == LedgerList((LedgerInfo(9),))
    assert list_in(compressed(0, node)) == LedgerList((LedgerInfo(9),))


def test_other_compression_is_refused_and_says_what_to_set():
    with pytest.raises(CorruptStorage, match=r"orders.*ZSTD.*managedLedgerInfoCompressionType"):
        FAMILY.decode(LIST, compressed(3, b"x"))


@pytest.mark.parametrize(
    "value", [b"\x47\x78", b"\x47\x78\xff\xff\xff\xff", compressed(2, b"no"),
              compressed(2, zlib.compress(b"abc")[:-2])],
)  # fmt: skip
def test_a_torn_compressed_value_is_corruption(value):
    with pytest.raises(CorruptStorage):
        plain(value, "it")


def test_a_small_value_does_not_become_a_large_one(monkeypatch):
    monkeypatch.setattr(compression, "MAX_BYTES", 1000)
    with pytest.raises(CorruptStorage, match="more than 1000 bytes"):
        plain(compressed(2, zlib.compress(bytes(1001))), "it")
