"""A topic's open transactions: which they are, where their entries are, how far readers may go."""

import asyncio
from unittest.mock import patch

import pytest
from virtual_loop import run_virtually

from managed_ledger.position import EARLIEST, Position
from pybroker.base.names import TxnId
from pybroker.transaction.buffer.log_order import buffer_snapshot
from pybroker.transaction.buffer.log_order.buffer_snapshot import (
    BufferHead,
    OpenTransactionRecord,
    encode_buffer_head,
)
from pybroker.transaction.buffer.log_order.open_transactions import OpenTransactions
from pybroker.transaction.buffer.transaction_ranges import TransactionRanges

ONE, TWO = TxnId(0, 1), TxnId(3, 2)
BEGIN = Position(4, 9)


@pytest.mark.parametrize(
    ("second", "ranges"),
    [
        ((4, 13, 13), [(4, 10, 13)]),
        ((4, 14, 14), [(4, 10, 12), (4, 14, 14)]),
        ((5, 13, 13), [(4, 10, 12), (5, 13, 13)]),
        ((5, 0, 3), [(4, 10, 12), (5, 0, 3)]),
    ],
)
def test_only_neighbours_of_one_ledger_are_one_range(
    second: tuple[int, int, int], ranges: list[tuple[int, int, int]]
) -> None:
    held = TransactionRanges()
    assert held.first_position is None
    assert held.extend(4, 10, 12) == 1
    assert held.extend(*second) == len(ranges) - 1
    assert (list(held), len(held)) == (ranges, len(ranges))
    assert held.first_position == Position(4, 10)


def test_the_ranges_of_all_are_counted_together() -> None:
    transactions = OpenTransactions()
    assert transactions.range_count == 0
    one, two = transactions.begin(ONE, BEGIN, 0), transactions.begin(TWO, BEGIN, 0)
    for entry_id, transaction in enumerate([one, one, two, one, two, two], 10):
        transactions.appended(transaction, Position(4, entry_id), 1)
    assert (len(one.ranges), len(two.ranges), transactions.range_count) == (2, 2, 4)
    restored = OpenTransactions()
    for record in transactions.records():
        restored.restore(record)
    assert restored.range_count == 4
    transactions.remove(ONE)
    assert transactions.range_count == 2


def test_readers_may_go_further_once_the_first_append_is_answered() -> None:
    transactions = OpenTransactions()
    transaction = transactions.begin(ONE, BEGIN, 0)
    assert transactions.limit() == BEGIN
    assert transactions.appended(transaction, Position(4, 12), 3)
    assert transactions.limit() == Position(4, 11)
    assert not transactions.appended(transaction, Position(4, 20), 1)
    assert transactions.limit() == Position(4, 11)
    assert list(transaction.ranges) == [(4, 12, 14), (4, 20, 20)]


@pytest.mark.parametrize("position", [EARLIEST, Position(0, -1), Position(4, 30)])
def test_a_snapshot_reads_back_as_it_was_written(position: Position) -> None:
    transactions = OpenTransactions()
    for number, txn_id in enumerate((ONE, TWO, TxnId(2**64 - 1, 5))):
        transaction = transactions.begin(txn_id, BEGIN, 1000 + number)
        for entry_id in range(number, 20, 5):
            transactions.appended(transaction, Position(4, entry_id), 2)
    value = run_virtually(encode_buffer_head(position, transactions.records()))
    written = BufferHead(position, list(transactions.records()))
    assert BufferHead.decode(value, "test") == written


def test_what_has_nothing_in_the_log_is_not_written() -> None:
    transactions = OpenTransactions()
    transactions.begin(ONE, BEGIN, 0)
    two = transactions.begin(TWO, BEGIN, 7)
    transactions.appended(two, Position(4, 10), 1)
    assert list(transactions.records()) == [OpenTransactionRecord(TWO, 7, two.ranges)]


def test_while_many_ranges_are_encoded_others_have_the_loop_in_between() -> None:
    ranges = TransactionRanges()
    for entry_id in range(0, 200, 2):
        ranges.extend(4, entry_id, entry_id)
    record = OpenTransactionRecord(ONE, 0, ranges)

    async def scenario() -> None:
        with patch.object(buffer_snapshot, "_NUMBERS_A_TURN", 30):
            encoding = asyncio.ensure_future(encode_buffer_head(BEGIN, [record]))
            turns = 0
            while not encoding.done():
                await asyncio.sleep(0)
                turns += 1
        assert turns > 10
        assert BufferHead.decode(await encoding, "it") == BufferHead(BEGIN, [record])

    run_virtually(scenario())
