"""Transactions in topics of Apache Pulsar's broker: the metadata of its entries is trusted."""

import pytest
from test_txn_untagged import naming
from txn_world import ABORT, COMMIT, ORDERS, World, in_world, message

from managed_ledger.position import EARLIEST, Position
from managed_ledger.storage.backend import EntryRun
from managed_ledger.storage.bookkeeper.entry_header import Entry as StoredEntry
from managed_ledger.storage.bookkeeper.entry_header import decode, encode
from pybroker.base.names import TxnId
from pybroker.transaction.buffer.transactional_entries import (
    FOREIGN,
    UntaggedSpan,
    marker,
    parse_tag,
    tag_of,
    transactional_entries,
)
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.message_metadata import build_entry, message_count

SNAPSHOTS = "public/default/persistent/__transaction_buffer_snapshot"
ENDED = TxnId(7, 5)  # of a coordinator unknown here


async def as_apache(world: World, *entries: bytes) -> None:
    """Writes entries as Apache's broker does, into a namespace with transactions."""
    await world.factory.open(SNAPSHOTS)
    ledger = await world.ledger(ORDERS)
    for entry in entries:
        await ledger.append_one(entry, message_count(entry), FOREIGN)


@in_world
async def test_transactions_are_found_without_any_mark_of_ours(world: World) -> None:
    aborted, committed, going_on = [await world.begin_on(ORDERS) for _ in range(3)]
    await as_apache(
        world,
        message("plain"),
        naming(aborted, "aborted"),
        naming(committed, "committed"),
        marker(aborted, ABORT, 0),
        naming(going_on, "open"),
        marker(committed, COMMIT, 0),
        message("behind"),
    )
    world = await world.crashed()
    assert await world.read() == ["plain", "committed"]
    await world.send(going_on, "more")
    world = await world.crashed()
    await world.end(going_on, COMMIT)
    for _ in range(2):
        assert await world.read() == ["plain", "committed", "open", "behind", "more"]
        world = await world.crashed()


@in_world
async def test_what_apache_aborts_between_two_turns_of_ours_is_hidden(world: World) -> None:
    first = await world.begin_on(ORDERS)
    await world.send(first, "ours")
    await world.end(first, COMMIT)
    world = await world.restarted()
    await as_apache(world, naming(ENDED, "theirs"), marker(ENDED, ABORT, 0), message("plain"))
    world = await world.crashed()
    assert await world.read() == ["ours", "plain"]


@in_world
async def test_a_namespace_without_apache_s_snapshots_is_not_searched(world: World) -> None:
    ledger = await world.ledger(ORDERS)
    await ledger.append_one(naming(ENDED, "a client's whim"), 1)
    world = await world.crashed()
    assert await world.read() == ["a client's whim"]
    assert "transactions" not in (await world.ledger(ORDERS)).properties


def test_only_entries_of_others_are_believed() -> None:
    run = EntryRun(1, 0, [naming(TxnId(0, 5), "")] * 4, [1] * 4)
    run.tags = [(1, 2, FOREIGN), (3, 3, tag_of(TxnId(0, 9)))]
    assert list(transactional_entries(run, UntaggedSpan(EARLIEST, EARLIEST))) == [
        (TxnId(0, 5), None, Position(1, 1), 1),
        (TxnId(0, 5), None, Position(1, 2), 1),
        (TxnId(0, 9), None, Position(1, 3), 1),
    ]


def test_an_entry_within_the_untagged_span_is_told_once() -> None:
    run = EntryRun(1, 0, [naming(TxnId(0, 5), "")] * 2, [1] * 2)
    run.tags = [(0, 1, FOREIGN)]
    found = transactional_entries(run, UntaggedSpan(EARLIEST, Position(1, 0)))
    assert [entries.first for entries in found] == [Position(1, 0), Position(1, 1)]


def test_the_tag_of_a_foreign_entry_tells_of_no_transaction() -> None:
    assert parse_tag(FOREIGN) == (None, None, None)


def batch(count: int) -> bytes:
    metadata = pb.MessageMetadata(
        producer_name="p", sequence_id=0, publish_time=0, num_messages_in_batch=count
    )
    return build_entry(metadata, b"")


@pytest.mark.parametrize(
    ("entry", "count"),
    [
        (batch(7), 7),
        (batch(-7), 0),
        (message("one"), 1),
        (marker(ENDED, COMMIT, 0), 0),
        (b"nonsense", 1),
    ],
)
def test_an_entry_of_apache_s_counts_as_its_metadata_says(entry: bytes, count: int) -> None:
    assert decode(entry, message_count, FOREIGN) == StoredEntry(entry, count, FOREIGN)


def test_a_client_cannot_make_an_entry_of_ours_look_foreign() -> None:
    forged = naming(ENDED, "forged")
    assert decode(encode(1, b"") + forged, message_count, FOREIGN).tag == b""
    indexed = bytes.fromhex("0e02000000021007") + forged  # of Apache's interceptors
    assert decode(indexed, message_count, FOREIGN) == StoredEntry(forged, 1, FOREIGN)
