"""Logs from versions without tags: within them, metadata tells of transactions.

Messages and markers named their transaction in their metadata. The ledger had one property: where
its first transaction began.
"""

import asyncio

import pytest
from txn_world import ABORT, COMMIT, ORDERS, World, in_world

from managed_ledger.errors import CorruptStorage
from managed_ledger.ledger import ManagedLedger
from managed_ledger.position import EARLIEST, Position
from managed_ledger.storage.backend import EntryRun
from pybroker.base.names import TxnId
from pybroker.transaction.buffer.transactional_entries import (
    UntaggedSpan,
    marker,
    parse_tag,
    tag_of,
    transactional_entries,
    with_sent,
)
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.message_metadata import build_entry


def naming(txn_id: TxnId, payload: str) -> bytes:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=0)
    metadata.txnid_most_bits, metadata.txnid_least_bits = txn_id
    return build_entry(metadata, payload.encode())


async def write_without_tags(world: World, *entries: bytes) -> ManagedLedger:
    ledger = await world.ledger(ORDERS)
    await ledger.set_property("transactions", str(ledger.last_confirmed))
    await asyncio.gather(*map(ledger.append_one, entries))
    return ledger


@in_world
async def test_transactions_of_an_older_log_go_on(world: World) -> None:
    aborted, committed, going_on = [await world.begin_on(ORDERS) for _ in range(3)]
    await write_without_tags(
        world,
        naming(aborted, "aborted"),
        naming(committed, "committed"),
        marker(aborted, ABORT, 0),
        naming(going_on, "open"),
        marker(committed, COMMIT, 0),
    )
    world = await world.crashed()
    assert await world.read() == ["committed"]
    await world.send(going_on, "more")
    world = await world.crashed()
    assert await world.read() == ["committed"]
    await world.end(going_on, COMMIT)
    for _ in range(2):
        assert await world.read() == ["committed", "open", "more"]
        world = await world.crashed()


@pytest.mark.parametrize("stop", ["crashed", "restarted"])
def test_behind_the_older_entries_metadata_means_nothing(stop: str) -> None:
    @in_world
    async def life(world: World) -> None:
        txn_id = await world.begin_on(ORDERS)
        await write_without_tags(world, naming(txn_id, "old"))
        world = await getattr(world, stop)()
        await world.buffer()
        ledger = await world.ledger(ORDERS)
        await ledger.append_one(naming(txn_id, "claims"))
        await ledger.append_one(marker(txn_id, COMMIT, 0))
        world = await getattr(world, stop)()
        assert await world.read() == []
        await world.end(txn_id, ABORT)
        assert await world.read() == ["claims", ""]

    life()


@in_world
async def test_a_log_that_begins_with_tags_has_no_untagged_span(world: World) -> None:
    await world.send(None, "plain")
    await world.send(await world.begin_on(ORDERS), "a")
    span = UntaggedSpan.of((await world.ledger(ORDERS)).properties)
    assert span.after == span.up_to


@pytest.mark.parametrize(
    ("properties", "untagged"),
    [
        ({}, []),
        ({"transactions": "1:0"}, [1, 2, 3]),
        ({"transactions": "1:0", "transaction-tags": "1:2"}, [1, 2]),
        ({"transactions": "1:2", "transaction-tags": "1:2"}, []),
        ({"transactions": "0:7", "transaction-tags": "2:5"}, [0, 1, 2, 3]),
        ({"transactions": "2:-1", "transaction-tags": "2:5"}, []),
    ],
)
def test_metadata_is_believed_within_the_untagged_span_only(
    properties: dict[str, str], untagged: list[int]
) -> None:
    run = EntryRun(1, 0, [naming(TxnId(0, 5), "")] * 4, [1] * 4)
    found = transactional_entries(run, UntaggedSpan.of(properties))
    assert [entries.first for entries in found] == [Position(1, at) for at in untagged]


def test_an_older_entry_that_is_not_to_be_read_hides_no_transaction_behind_it() -> None:
    run = EntryRun(1, 0, [b"nonsense", naming(TxnId(0, 5), "")], [1] * 2)
    span = UntaggedSpan.of({"transactions": "0:7"})
    assert [entries.first for entries in transactional_entries(run, span)] == [Position(1, 1)]


def test_a_tag_tells_transaction_and_action() -> None:
    run = EntryRun(1, 0, [b""] * 4, [1] * 4)
    txn_id = TxnId(2**64 - 1, 0)
    run.tags = [
        (0, 1, tag_of(txn_id)),
        (2, 2, tag_of(txn_id, COMMIT)),
        (3, 3, tag_of(txn_id, ABORT)),
    ]
    assert list(transactional_entries(run, UntaggedSpan(EARLIEST, EARLIEST))) == [
        (txn_id, None, Position(1, 0), 2),
        (txn_id, COMMIT, Position(1, 2), 1),
        (txn_id, ABORT, Position(1, 3), 1),
    ]


@pytest.mark.parametrize("sent", [b"p", b""])
def test_a_tag_tells_how_its_entries_were_sent(sent: bytes) -> None:
    txn_id = TxnId(3, 2**64 - 1)
    assert parse_tag(with_sent(sent)) == (None, None, sent)
    assert parse_tag(with_sent(sent, tag_of(txn_id))) == (txn_id, None, sent)


@pytest.mark.parametrize(
    "tag", [b"\x00", b"\x01", b"\x02" + bytes(15), b"\x07", b"\x08" + bytes(16)]
)
def test_an_unknown_tag_is_refused(tag: bytes) -> None:
    with pytest.raises(CorruptStorage, match="run the version"):
        parse_tag(tag)
