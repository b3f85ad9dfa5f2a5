"""A commit's copy into the topic's log: what shares an append, and how much is in flight."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any
from unittest.mock import patch

import pytest
from txn_world import ORDERS, World
from virtual_loop import run_virtually

from managed_ledger.appender import Appended
from managed_ledger.errors import LedgerClosed, ManagedLedgerError
from managed_ledger.ledger import ManagedLedger
from managed_ledger.position import Position
from managed_ledger.storage.backend import EntryRun
from pybroker.base.names import TxnId
from pybroker.transaction.buffer.commit_order import copying
from pybroker.transaction.buffer.commit_order.copying import Copy, copy_what_is_told
from pybroker.transaction.buffer.commit_order_lag import lag_ms, note_lag
from pybroker.transaction.buffer.transactional_entries import parse_tag, tag_of, with_sent
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.message_metadata import build_entry

ID = TxnId(0, 7)
TAG = tag_of(ID)
NOW_MS = 1_700_000_000_000


class FakeLog:
    """Takes copies; each completes when the test says so."""

    def __init__(self, ledger: ManagedLedger) -> None:
        self.ledger = ledger
        self.appended: list[tuple[list[bytes], list[int], bytes]] = []
        self.in_flight: list[Appended] = []
        self.hidden: list[Position] = []

    def copy(
        self, txn_id: TxnId, entries: list[bytes], counts: list[int], tag: bytes, done: Appended
    ) -> None:
        assert txn_id == ID
        self.appended.append((list(entries), list(counts), tag))
        self.in_flight.append(done)

    def hide(self, position: Position) -> None:
        self.hidden.append(position)

    def land(self, error: Exception | None = None) -> None:
        done = self.in_flight.pop(0)
        done(None if error else Position(0, 0), error)


class OneMore:
    """Deduplication that marks the data of each message."""

    def sent_again(self, sent: bytes) -> bytes:
        return sent + b"+"

    def given_back(self, txn_id: TxnId) -> list[bytes]:
        return []


def published(lag: int, payload: bytes = b"m") -> bytes:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=NOW_MS - lag)
    return build_entry(metadata, payload)


def with_log(test: Callable[[FakeLog], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    async def life() -> None:
        world = await World().start()
        await test(FakeLog(await world.ledger(ORDERS)))

    def wrapped() -> None:
        run_virtually(life())

    wrapped.__name__ = test.__name__
    return wrapped


def new_copy(log: Any, sequence_ids: Any = None) -> Copy:
    return Copy(log, ID, sequence_ids, NOW_MS)


def run_of(first: int, *tagged: tuple[int, bytes]) -> EntryRun:
    """Entries with the given tags, `count` of each; entry i carries i messages."""
    tags, at = [], first
    for count, tag in tagged:
        tags.append((at, at + count - 1, tag))
        at += count
    numbers = range(first, at)
    return EntryRun(3, first, [b"%d" % n for n in numbers], list(numbers), tags)


@with_log
async def test_entries_of_a_tag_share_an_append_over_the_ends_of_what_was_read(
    log: FakeLog,
) -> None:
    sent = with_sent(b"s", TAG)
    copy = new_copy(log)
    copy.copy([run_of(5, (2, TAG)), run_of(8, (1, TAG), (2, sent))])
    assert log.appended == [([b"5", b"6", b"8"], [5, 6, 8], TAG)]
    copy.complete()
    copy.complete()
    assert log.appended[1:] == [([b"9", b"10"], [9, 10], sent)]


@with_log
async def test_a_full_append_is_followed_by_another(log: FakeLog) -> None:
    with patch.object(copying, "_APPENDED_BYTES", 2):
        copy = new_copy(log)
        copy.copy([run_of(n, (1, TAG)) for n in range(5)])
        copy.complete()
    assert [entries for entries, _, _ in log.appended] == [[b"0", b"1"], [b"2", b"3"], [b"4"]]


@with_log
async def test_what_deduplication_stores_with_a_copy_is_its_own(log: FakeLog) -> None:
    copy = new_copy(log, OneMore())
    copy.copy([run_of(0, (1, with_sent(b"s", TAG)), (1, TAG))])
    copy.complete()
    assert [parse_tag(tag) for _, _, tag in log.appended] == [(ID, None, b"s+"), (ID, None, None)]


@pytest.mark.parametrize("bound", ["_ON_THE_WAY_BYTES", "_ON_THE_WAY_APPENDS"])
def test_a_copy_waits_for_room(bound: str) -> None:
    @with_log
    async def test(log: FakeLog) -> None:
        copy, sent = new_copy(log), with_sent(b"s", TAG)
        with patch.object(copying, bound, 2):
            for n in range(4):
                copy.copy([run_of(n, (1, TAG if n % 2 else sent))])
            copy.complete()
            waiting = asyncio.ensure_future(copy.room())
            log.land()
            await asyncio.sleep(1)
            assert not waiting.done(), "three are on their way"
            log.land()
            await asyncio.sleep(1)
            assert waiting.done(), "two may be"
            log.land()
            settled = asyncio.ensure_future(copy.settled())
            await asyncio.sleep(1)
            assert not settled.done()
            log.land()
            await settled

    test()


@with_log
async def test_entries_without_bytes_are_waited_for_as_well(log: FakeLog) -> None:
    copy = new_copy(log)
    copy.copy([EntryRun(3, 0, [b""], [1], [(0, 0, TAG)])])
    copy.complete()
    settled = asyncio.ensure_future(copy.settled())
    await asyncio.sleep(1)
    assert not settled.done()
    log.land()
    await settled


@with_log
async def test_the_first_failure_is_told_and_all_appends_are_waited_for(log: FakeLog) -> None:
    copy, sent = new_copy(log), with_sent(b"s", TAG)
    copy.copy([run_of(0, (1, TAG), (1, sent), (1, TAG))])
    copy.complete()
    first, second = LedgerClosed("first"), LedgerClosed("second")
    log.land(first)
    log.land(second)
    with pytest.raises(LedgerClosed, match="first"):
        await copy.room()
    settled = asyncio.ensure_future(copy.settled())
    await asyncio.sleep(1)
    assert not settled.done()
    log.land()
    await settled


@with_log
async def test_what_an_abort_tells_is_hidden_where_it_is_written(log: FakeLog) -> None:
    copy_what_is_told(log, ID, [b"a", b"b"], NOW_MS)  # type: ignore[arg-type]
    assert [(counts, parse_tag(tag).sent) for _, counts, tag in log.appended] == [
        ([0], b"a"),
        ([0], b"b"),
    ]
    log.land(LedgerClosed("closed"))
    log.land()
    assert log.hidden == [Position(0, 0)]


# How much older than its place in the log a copied message may be


@with_log
async def test_a_copy_notes_the_age_of_its_first_entry_only(log: FakeLog) -> None:
    copy = new_copy(log)
    copy.copy([EntryRun(3, 0, [published(5000), published(9000)], [1, 1], [(0, 1, TAG)])])
    copy.copy([EntryRun(3, 2, [published(20_000)], [1], [(2, 2, TAG)])])
    assert lag_ms(log.ledger) == 8192


@with_log
async def test_the_age_is_noted_by_powers_of_two_and_never_shrinks(log: FakeLog) -> None:
    ledger = log.ledger
    assert lag_ms(ledger) == 0
    for age, noted in (
        (-1, 1024),
        (1024, 1024),
        (1025, 2048),
        (0, 2048),
        (2048, 2048),
        (8191, 8192),
        (8192, 8192),
    ):
        note_lag(ledger, published(age), NOW_MS)
        assert lag_ms(ledger) == noted, age


@with_log
async def test_an_age_that_is_known_is_not_written_again(log: FakeLog) -> None:
    note_lag(log.ledger, published(1000), NOW_MS)
    with patch.object(ManagedLedger, "set_property", side_effect=AssertionError("written")):
        for age in (-1000, 0, 1000, 1024):
            note_lag(log.ledger, published(age), NOW_MS)


@with_log
async def test_an_entry_without_metadata_has_no_age(log: FakeLog) -> None:
    note_lag(log.ledger, b"what a client made up", NOW_MS)
    assert lag_ms(log.ledger) == 0


def test_an_age_that_cannot_be_written_is_tried_again() -> None:
    async def life() -> list[str]:
        world = await World().start()
        ledger = await world.ledger(ORDERS)
        complaints: list[str] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: complaints.append(context["message"])
        )
        world.storage.full = True
        note_lag(ledger, published(5000), NOW_MS)
        await asyncio.sleep(1)
        assert lag_ms(ledger) == 0
        world.storage.full = False
        note_lag(ledger, published(5000), NOW_MS)
        assert lag_ms(ledger) == 8192
        await ledger.close()
        note_lag(ledger, published(50_000), NOW_MS)
        with pytest.raises(ManagedLedgerError):
            ledger.set_property("closed", "it is")
        return complaints

    assert run_virtually(life()) == []
