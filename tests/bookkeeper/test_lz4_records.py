"""Records of metadata that Apache Pulsar 5 has compressed with LZ4."""

import lz4.block
import pytest
from hypothesis import given
from hypothesis import strategies as st

from managed_ledger.errors import CorruptStorage
from managed_ledger.ledger_metadata import LedgerInfo, LedgerList, ledgers_key
from managed_ledger.storage.bookkeeper.formats import compression
from managed_ledger.storage.bookkeeper.formats.compression import plain
from managed_ledger.storage.bookkeeper.formats.managed_ledgers import ManagedLedgers
from pybroker.wire import varint

FAMILY = ManagedLedgers()
LIST = ledgers_key("public/default/persistent/orders")


def described(block: bytes, size: int) -> bytes:
    """As the metadata store has it."""
    head = b"\x08\x01\x10" + varint.encode(size)
    return b"\x47\x78" + len(head).to_bytes(4, "big") + head + block


def packed(data: bytes, mode: str = "default") -> bytes:
    return lz4.block.compress(data, mode=mode, store_size=False)


def test_a_list_of_ledgers_is_read() -> None:
    known = LedgerList((LedgerInfo(9),), properties={"name": "value " * 30})
    node = FAMILY.encode(LIST, known.encode(), {})
    found = FAMILY.decode(LIST, described(packed(node), len(node))).value
    assert LedgerList.decode(found, LIST) == known


@given(
    parts=st.lists(st.tuples(st.binary(max_size=40), st.integers(1, 300)), max_size=20),
    mode=st.sampled_from(["default", "high_compression"]),
)
def test_each_block_is_what_was_packed(parts: list[tuple[bytes, int]], mode: str) -> None:
    data = b"".join(part * times for part, times in parts)
    assert plain(described(packed(data, mode), len(data)), "it") == data


@given(block=st.binary(max_size=60), size=st.integers(0, 200))
def test_a_damaged_block_is_corruption_or_has_its_size(block: bytes, size: int) -> None:
    try:
        found = plain(described(block, size), "it")
    except CorruptStorage as error:
        assert "it cannot be decompressed" in str(error)
    else:
        assert len(found) == size


@pytest.mark.parametrize("cut", [1, 5, 9])
def test_a_torn_block_is_corruption(cut: int) -> None:
    data = b"a record of some length, a record of some length"
    with pytest.raises(CorruptStorage, match="cannot be decompressed"):
        plain(described(packed(data)[:-cut], len(data)), "it")


def test_a_small_block_does_not_become_a_large_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "MAX_BYTES", 1000)
    with pytest.raises(CorruptStorage, match="more than 1000 bytes"):
        plain(described(packed(bytes(1001)), 1001), "it")
    with pytest.raises(CorruptStorage, match="does not have"):
        plain(described(packed(bytes(100_000)), 900), "it")
