"""A frame is written in parts, without copying large entries. Its bytes are the same."""

from hypothesis import example, given
from hypothesis import strategies as st

from managed_ledger.storage.embedded.journal_format import (
    LARGE_BYTES,
    SECTOR,
    EntriesRecord,
    decode_body,
    encode_body,
    encode_frame,
    zero_sectors,
)
from managed_ledger.storage.entry_columns import EntryColumns
from managed_ledger.storage.operations import Append, append_operation

PIECES = st.lists(
    st.one_of(
        st.binary(max_size=20),
        st.integers(0, 3 * SECTOR).map(bytes),
        st.integers(1, 3 * SECTOR).map(lambda size: b"\x01" * size),
    ),
    max_size=8,
)


def zero_sectors_one_by_one(data: bytes, offset: int) -> int:
    start = -offset % SECTOR
    return sum(not any(data[at : at + SECTOR]) for at in range(start, len(data), SECTOR))


@given(PIECES, st.integers(0, 2 * SECTOR))
@example([bytes(SECTOR - 1), bytes(1)], 0)
@example([b"\x00" * 600, b"", b"\x00" * 10, b"\x01" + bytes(2000)], 511)
def test_zero_sectors_are_found_across_parts(parts: list[bytes], offset: int) -> None:
    assert zero_sectors(parts, offset) == zero_sectors_one_by_one(b"".join(parts), offset)


@given(PIECES, st.integers(0, 2 * SECTOR))
def test_a_frame_in_parts_has_the_bytes_of_a_frame_in_one(parts: list[bytes], offset: int) -> None:
    in_parts = b"".join(encode_frame(parts, 7, offset, 0))
    assert in_parts == b"".join(encode_frame([b"".join(parts)], 7, offset, 0))


def append_of(first: int, entries: list[bytes], tag: bytes = b"") -> Append:
    return append_operation(5, first, entries, [1] * len(entries), lambda error: None, tag)


def test_large_entries_stand_alone_in_a_body_and_small_ones_together() -> None:
    large = [b"x" * LARGE_BYTES, b"y" * LARGE_BYTES]
    operations = [append_of(0, [b"a", b"b"]), append_of(2, large, b"tag"), append_of(4, [b"c"])]
    body = encode_body(operations)
    assert len(body) == 4
    assert body[1] is large[0]
    assert body[2] is large[1]
    records = list(decode_body(b"".join(body)))
    assert [record.entries for record in records if isinstance(record, EntriesRecord)] == [
        [b"a", b"b"],
        large,
        [b"c"],
    ]
    assert [record.tag for record in records if isinstance(record, EntriesRecord)] == [
        b"",
        b"tag",
        b"",
    ]


@given(
    st.lists(st.integers(0, 30), max_size=800), st.integers(0, 900), st.integers(1, 900), st.data()
)
def test_what_is_flushed_next_is_what_fits(
    sizes: list[int], start: int, max_entries: int, data: st.DataObject
) -> None:
    max_bytes = data.draw(st.integers(1, 10_000))
    entries = [bytes(size) for size in sizes]
    wanted = entries[start : start + max_entries]
    found = EntryColumns(0, entries).leading_from(start, max_entries, max_bytes)
    assert found == wanted[: len(found)]
    assert sum(map(len, found[:-1])) <= max_bytes
    assert len(found) == len(wanted) or sum(map(len, wanted[: len(found) + 1])) >= max_bytes
