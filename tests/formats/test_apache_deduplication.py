"""Deduplication's snapshot as Apache Pulsar stores it: a cursor with an id per producer."""

import random

import pytest

from managed_ledger.errors import CorruptStorage
from managed_ledger.position import Position
from managed_ledger.storage.bookkeeper.formats.managed_ledgers import ManagedLedgers
from pybroker.broker.deduplication.producer_sequence import ProducerSequence
from pybroker.broker.deduplication.snapshot import decode, encode_head, encode_producer
from pybroker.formats.apache.deduplication import MAX_NODE_BYTES, DeduplicationCursors

LEDGERS = ManagedLedgers()
FAMILY = DeduplicationCursors(LEDGERS)
KEY = "/deduplication/acme/shop/persistent/orders 1"
PATH = "/managed-ledgers/acme/shop/persistent/orders+1/pulsar.dedup"
MINUS_ONE = b"\xff" * 9 + b"\x01"
# mark-delete 7:9, and producer `p` at 41
APACHES = b"\x08" + MINUS_ONE + b"\x10\x07\x18\x09\x2a\x05\x0a\x01p\x10\x29"


def snapshot(position: Position, **durable: int) -> bytes:
    parts = [encode_head(position)]
    for name, last in durable.items():
        state = ProducerSequence()
        state.top = state.durable = last
        state.returned.add(3, 4)
        parts.append(encode_producer(name, state))
    return b"".join(parts)


def test_the_snapshot_is_the_cursor_that_apaches_brokers_have():
    assert FAMILY.path_of(KEY) == PATH
    assert FAMILY.key_of(PATH) == KEY
    assert FAMILY.key_of(PATH.replace("pulsar.dedup", "sub")) is None
    assert FAMILY.path_of("/deduplication/log") is None


def test_apache_finds_the_position_and_the_last_ids():
    node = FAMILY.encode(KEY, snapshot(Position(7, 10), p=41), {})
    assert node.startswith(APACHES)


def test_what_apache_wrote_is_read():
    position, producers = decode(FAMILY.decode(KEY, APACHES).value, KEY)
    assert position == Position(7, 10)
    assert {name: (each.durable, each.top) for name, each in producers.items()} == {"p": (41, 41)}


def test_what_ours_knows_beyond_apache_comes_back():
    value = snapshot(Position(7, 10), p=41)
    assert FAMILY.decode(KEY, FAMILY.encode(KEY, value, {})).value == value


def test_very_many_producers_are_in_a_ledger():
    small = snapshot(Position(7, 10), p=41)
    assert FAMILY.entry(KEY, small, {}) is None
    names = {f"producer-{number:040}": number for number in range(MAX_NODE_BYTES // 40)}
    large = snapshot(Position(7, 10), **names)
    entry = FAMILY.entry(KEY, large, {})
    assert entry is not None
    node = FAMILY.encode(KEY, large, {}, 44)
    assert node == b"\x08\x2c\x10\x07\x18\x09"
    stored = FAMILY.decode(KEY, node)
    assert stored.ledger_id == 44
    assert FAMILY.with_entry(KEY, stored, entry).value == large


def test_apaches_entry_in_a_ledger_is_read():
    stored = FAMILY.decode(KEY, b"\x08\x2c\x10\x07\x18\x02")
    entry = b"\x08\x07\x10\x09\x22\x05\x0a\x01p\x10\x29"
    position, producers = decode(FAMILY.with_entry(KEY, stored, entry).value, KEY)
    assert (position, producers["p"].durable) == (Position(7, 10), 41)


@pytest.mark.parametrize(
    "node", [b"\x2a\x0d\x0a\x01p\x10" + b"\xfe" + b"\xff" * 8 + b"\x01", b"\x2a\x03\x0a\x01\xff",
             b"\xca\x3e\x01\x07", b"\x10" + b"\xfe" + b"\xff" * 8 + b"\x01", b"\x10\xff"],
)  # fmt: skip
def test_what_cannot_be_read_is_a_sentence_with_its_topic(node):
    with pytest.raises(CorruptStorage, match="orders 1"):
        FAMILY.decode(KEY, node)


def test_damage_is_corruption_or_another_value_and_nothing_else():
    rng, sample = random.Random(5), FAMILY.encode(KEY, snapshot(Position(7, 10), p=41), {})
    for _ in range(500):
        each = bytearray(sample[: rng.randint(1, len(sample))])
        for _ in range(rng.randint(1, 3)):
            each[rng.randrange(len(each))] = rng.choice((0, 0x7F, 0x80, 0xFF))
        try:
            FAMILY.encode(KEY, FAMILY.decode(KEY, bytes(each)).value, {})
        except CorruptStorage:
            continue
