"""The stored values, byte by byte: a data directory of today opens tomorrow."""

import pytest

from managed_ledger.ack_set import AckSet
from managed_ledger.codec import Reader, Writer
from managed_ledger.errors import CorruptStorage
from managed_ledger.ledger_metadata import (
    CursorRecord,
    LedgerInfo,
    LedgerList,
    cursor_key,
    cursor_name,
    cursors_prefix,
    ledgers_key,
)
from managed_ledger.position import Position

LIST = LedgerList(
    (
        LedgerInfo(3, 200, 70_000, 0),
        LedgerInfo(7, 1, 2, 1_700_000_000_000),
        LedgerInfo(9, 0, 0, None),
    ),
    {"key": "ü"},
    (1, 2),
    True,
)
LIST_BYTES = (
    "01" "01" "03" "03c801f0a20401" "07010281d095ffbc31" "09000000"
    "02" "0102" "01" "036b657902c3bc"
)  # fmt: skip
CURSOR = CursorRecord(Position(3, -1), {}, {4: b"acks"}, {(3, 0): 0x80, (6, 130): 1 << 9})
CURSOR_BYTES = "0104000001040461636b730204010180078301020002"


@pytest.mark.parametrize(
    ("number", "data"),
    [
        (0, "00"),
        (0x7F, "7f"),
        (0x80, "8001"),
        (0x3FFF, "ff7f"),
        (0x4000, "808001"),
        (2**63 - 1, "ffffffffffffffff7f"),
    ],
)
def test_a_number_takes_seven_bits_a_byte(number, data):
    out = Writer()
    out.number(number)
    out.raw(b"!")
    assert out.getvalue().hex() == data + "21"
    read = Reader(out.getvalue(), "it")
    assert read.number() == number
    assert not read.at_end
    assert read.raw(1) == b"!"
    assert read.at_end
    with pytest.raises(CorruptStorage):
        read.raw(1)


def test_several_numbers_are_written_and_read_as_each_by_itself():
    numbers, one_by_one, together = [0, 0x7F, 0x80, 2**63 - 1, 5], Writer(), Writer()
    for number in numbers:
        one_by_one.number(number)
    together.numbers(numbers)
    assert together.getvalue() == one_by_one.getvalue()
    read = Reader(together.getvalue(), "it")
    assert read.numbers(4) == numbers[:4]
    assert read.numbers(0) == []
    assert read.number() == 5 and read.at_end


@pytest.mark.parametrize(("data", "count"), [(b"\x01", 2), (b"\x01\x80", 2), (b"\x01", 2**60)])
def test_several_numbers_that_end_too_early_are_corrupt(data, count):
    with pytest.raises(CorruptStorage, match=f"ends after {len(data)} bytes"):
        Reader(data, "it").numbers(count)


@pytest.mark.parametrize("field", ["number", "blob", "text", "raw"])
def test_a_value_that_ends_in_the_middle_of_a_field_is_corrupt(field):
    out = Writer()
    out.blob(b"x" * 200)
    data = out.getvalue()
    for size in range(2 if field == "number" else len(data)):
        read = Reader(data[: min(size, 1) if field == "number" else size], "the list")
        with pytest.raises(CorruptStorage, match="the list ends after"):
            read.raw(len(data)) if field == "raw" else getattr(read, field)()


def test_a_format_of_the_future_says_which_version_is_needed():
    with pytest.raises(CorruptStorage, match="has format 2; this version reads format 1"):
        Reader(b"\x02", "it").version(1)
    read = Reader(b"\x01\x07", "it")
    read.version(1)
    assert read.number() == 7


def test_the_bytes_of_a_list_of_ledgers_stay_what_they_are():
    assert LIST.encode().hex() == LIST_BYTES
    assert LedgerList.decode(bytes.fromhex(LIST_BYTES), "log") == LIST
    assert LedgerList.decode(LedgerList().encode(), "log") == LedgerList()


def test_the_bytes_of_a_cursor_stay_what_they_are():
    assert CURSOR.encode().hex() == CURSOR_BYTES
    assert CursorRecord.decode(bytes.fromhex(CURSOR_BYTES), "s") == CURSOR


def test_the_bytes_of_a_set_of_acknowledged_entries_stay_what_they_are():
    acks = AckSet()
    acks.add_range(1024, 1535)
    for entry in (1, 15, 5121):
        acks.add(entry)
    assert acks.encode().hex() == "030002028005100102"
    assert AckSet.decode(acks.encode()).runs(0, 6000) == [
        (1, 1),
        (15, 15),
        (1024, 1535),
        (5121, 5121),
    ]


def test_keys_stay_what_they_are_whatever_is_in_a_name():
    assert ledgers_key("t/n/x") == "managed-ledgers/t/n/x"
    assert cursors_prefix("t/n/x") == "cursors/t%2Fn%2Fx/"
    assert cursor_key("t/n/x", "a/b %") == "cursors/t%2Fn%2Fx/a%2Fb%20%25"
    assert cursor_name(cursor_key("t/n/x", "a/b %")) == "a/b %"
