"""Transactional ids: epochs, remains of older sessions, expiry, and crashes in between."""

import asyncio
from unittest.mock import AsyncMock, patch

import pytest
from txn_world import COMMIT, ORDERS, World, in_world, in_world_with

from managed_ledger.errors import CorruptStorage, ManagedLedgerError
from pybroker.base.errors import InvalidTxnStatus, NotAllowed
from pybroker.base.names import TxnId
from pybroker.transaction.coordinator.log import log_records
from pybroker.transaction.coordinator.log.records import BindSession, NewTransaction
from pybroker.transaction.coordinator.sessions.fencing import end_older
from pybroker.transaction.coordinator.sessions.transactional_ids import (
    MAX_EPOCH,
    MAX_ID_CHARS,
    NOTES_PER_EXPIRATION,
    IdRecord,
    SessionRef,
    TransactionalId,
    TransactionalIds,
    check_id,
    digest,
    fenced,
)
from pybroker.transaction.txn_status import TxnStatus

ID = TransactionalId("alice", "orders/1 ü")
DAY_MS = 86_400_000


async def begin_in(world: World, session: SessionRef) -> TxnId:
    """Begins a transaction and sends a message in it."""
    coordinator = await world.coordinators.get(0)
    txn_id = await coordinator.new_transaction(60_000, None, session=session)
    await world.add(txn_id, ORDERS)
    await world.send(txn_id, "a")
    return txn_id


def status(world: World, txn_id: TxnId) -> TxnStatus | None:
    return world.coordinators.status(txn_id)


@in_world
async def test_epochs_count_sessions_and_outlive_the_broker(world: World) -> None:
    assert await world.coordinators.ids.begin(ID, "") == (ID, 1)
    assert await world.coordinators.ids.begin(TransactionalId(None, ID.name), "") == (
        TransactionalId(None, ID.name),
        1,
    )
    after = await world.crashed()
    assert await after.coordinators.ids.begin(ID, "") == (ID, 2)
    assert after.coordinators.ids.is_fenced(SessionRef(ID, 1))
    assert not after.coordinators.ids.is_fenced(SessionRef(ID, 2))


@in_world
async def test_an_epoch_is_given_when_it_is_durable(world: World) -> None:
    ids = world.coordinators.ids
    await ids.begin(ID, "")
    world.storage.holding = True
    beginning = asyncio.ensure_future(ids.begin(ID, ""))
    await asyncio.sleep(0.1)
    assert not ids.is_fenced(SessionRef(ID, 1))
    assert (await world.crashed()).coordinators.ids.get(ID) == ids.get(ID)
    world.storage.release()
    assert (await beginning).epoch == 2
    assert ids.is_fenced(SessionRef(ID, 1))


@in_world
async def test_an_epoch_that_could_not_be_written_was_not_given(world: World) -> None:
    ids = world.coordinators.ids
    await ids.begin(ID, "")
    world.storage.full = True
    with pytest.raises(ManagedLedgerError):
        await ids.begin(ID, "")
    world.storage.full = False
    assert (await ids.begin(ID, "")).epoch == 2


@in_world
async def test_open_transactions_of_older_sessions_are_aborted_and_no_others(world: World) -> None:
    ids = world.coordinators.ids
    older = await ids.begin(ID, "")
    other = await ids.begin(TransactionalId("bob", ID.name), "")
    mine, his, plain = (
        await begin_in(world, older),
        await begin_in(world, other),
        await world.begin(),
    )
    newer = await ids.begin(ID, "")
    its = await begin_in(world, newer)
    assert await end_older(world.coordinators, newer) == 1
    assert status(world, mine) is TxnStatus.ABORTED
    assert {status(world, each) for each in (his, plain, its)} == {TxnStatus.OPEN}
    with pytest.raises(InvalidTxnStatus, match=r"fenced by a newer session of .* 'orders/1 ü'"):
        await world.end(mine, COMMIT)


@in_world
async def test_what_was_decided_is_waited_for(world: World) -> None:
    ids = world.coordinators.ids
    older = await ids.begin(ID, "")
    txn_id = await begin_in(world, older)
    gate = asyncio.Event()

    async def wait(participant: str) -> None:
        await gate.wait()

    world.before_end = wait
    committing = asyncio.ensure_future(world.end(txn_id, COMMIT))
    await asyncio.sleep(0.1)
    newer = await ids.begin(ID, "")
    ending = asyncio.ensure_future(end_older(world.coordinators, newer))
    await asyncio.sleep(30)
    assert not ending.done()
    gate.set()
    assert await ending == 0
    await committing
    assert status(world, txn_id) is TxnStatus.COMMITTED


@in_world
async def test_a_crash_after_the_epoch_leaves_a_fenced_transaction_that_is_ended_later(
    world: World,
) -> None:
    older = await world.coordinators.ids.begin(ID, "")
    txn_id = await begin_in(world, older)
    newer = await world.coordinators.ids.begin(ID, "")
    after = await world.crashed()
    ids = after.coordinators.ids
    begun = after.coordinators.begun(txn_id)
    assert begun is not None
    assert begun.session is not None
    assert ids.is_fenced(begun.session)
    assert await end_older(after.coordinators, newer) == 1
    assert status(after, txn_id) is TxnStatus.ABORTED
    assert await after.read() == []


@in_world
async def test_a_crash_in_the_middle_of_the_aborts_is_made_good(world: World) -> None:
    older = await world.coordinators.ids.begin(ID, "")
    txn_ids = [await begin_in(world, older) for _ in range(3)]
    newer = await world.coordinators.ids.begin(ID, "")
    world.storage.holding = True
    ending = asyncio.ensure_future(end_older(world.coordinators, newer))
    await asyncio.sleep(0.1)
    after = await world.crashed()
    assert {status(after, each) for each in txn_ids} == {TxnStatus.OPEN}
    await end_older(after.coordinators, newer)
    assert {status(after, each) for each in txn_ids} == {TxnStatus.ABORTED}
    world.storage.release()
    await ending


@in_world_with(transaction_metadata_snapshot_entries=4)
async def test_snapshots_keep_whose_a_transaction_is(world: World) -> None:
    session = await world.coordinators.ids.begin(ID, "")
    txn_id = await begin_in(world, session)
    late = await world.begin()
    await (await world.coordinators.get(0)).bind(late.least, session)
    for _ in range(20):
        await world.end(await world.begin(), COMMIT)
    await asyncio.sleep(1)
    after = await world.crashed()
    for each in (txn_id, late):
        begun = after.coordinators.begun(each)
        assert begun is not None
        assert begun.session == session
    assert await end_older(after.coordinators, SessionRef(ID, 2)) == 2


@in_world
async def test_a_coordinator_that_is_opened_again_is_waited_for(world: World) -> None:
    older = await world.coordinators.ids.begin(ID, "")
    txn_id = await begin_in(world, older)
    newer = await world.coordinators.ids.begin(ID, "")
    world.storage.full = True
    with pytest.raises(Exception, match="not served here"):
        await world.begin()
    assert world.coordinators.served() == []
    ending = asyncio.ensure_future(end_older(world.coordinators, newer))
    await asyncio.sleep(0.5)
    assert not ending.done()
    world.storage.full = False
    await ending
    assert status(world, txn_id) is TxnStatus.ABORTED


@in_world
async def test_a_coordinator_that_fails_while_it_aborts_is_waited_for(world: World) -> None:
    older = await world.coordinators.ids.begin(ID, "")
    txn_ids = [await begin_in(world, older) for _ in range(2)]
    newer = await world.coordinators.ids.begin(ID, "")
    world.storage.holding = True
    ending = asyncio.ensure_future(end_older(world.coordinators, newer))
    await asyncio.sleep(0.1)
    world.storage.full = True
    world.storage.release()
    await asyncio.sleep(0.1)
    world.storage.full = False
    await ending
    assert {status(world, each) for each in txn_ids} == {TxnStatus.ABORTED}


@in_world
async def test_a_session_begins_without_a_pause_when_nothing_hinders_it(world: World) -> None:
    older = await world.coordinators.ids.begin(ID, "")
    for _ in range(3):
        await begin_in(world, older)
    newer, began_s = await world.coordinators.ids.begin(ID, ""), world.clock.monotonic_s()
    assert await end_older(world.coordinators, newer) == 3
    assert world.clock.monotonic_s() == began_s


# -- last use, expiry, bounds


async def at(world: World, ms: int) -> TransactionalIds:
    await asyncio.sleep(max(0.0, ms / 1000 - world.clock.monotonic_s()))
    return world.coordinators.ids


@in_world
async def test_an_id_expires_seven_days_after_its_last_use(world: World) -> None:
    await world.coordinators.ids.begin(ID, "")
    await (await at(world, 5 * DAY_MS)).used(ID)
    assert not await (await at(world, 11 * DAY_MS)).expire(ID)
    assert await (await at(world, 12 * DAY_MS + 10_000)).expire(ID)
    assert len(world.coordinators.ids) == 0
    assert len((await world.crashed()).coordinators.ids) == 0


@in_world
async def test_the_last_use_is_written_once_a_day(world: World) -> None:
    ids = world.coordinators.ids
    await ids.begin(ID, "")
    written = world.storage.metadata.get("transactional-ids/=alice/orders%2F1%20%C3%BC")
    await (await at(world, DAY_MS - 10_000)).used(ID)
    assert world.storage.metadata.get("transactional-ids/=alice/orders%2F1%20%C3%BC") == written
    await (await at(world, DAY_MS + 10_000)).used(ID)
    assert world.storage.metadata.get("transactional-ids/=alice/orders%2F1%20%C3%BC") != written


@in_world
async def test_a_use_is_noted_after_a_seventh_of_the_time_or_when_the_clock_was_set(
    world: World,
) -> None:
    ids, now_ms = world.coordinators.ids, world.clock.now_ms()
    seventh = ids.expiration_ms // NOTES_PER_EXPIRATION
    for ago_ms, noted in ((0, 0), (1, 0), (seventh - 1, 0), (seventh, 1), (-1, 1)):
        ids._known[ID] = IdRecord(1, now_ms - ago_ms)
        with patch.object(TransactionalIds, "_write", AsyncMock()) as write:
            await ids.used(ID)
        assert write.await_count == noted, ago_ms
    await ids.used(TransactionalId(None, "unknown"))
    assert len(ids) == 1


@in_world
async def test_a_use_while_a_session_begins_does_not_undo_its_epoch(world: World) -> None:
    ids = world.coordinators.ids
    await ids.begin(ID, "")
    await at(world, 2 * DAY_MS)
    world.storage.holding = True
    beginning = asyncio.ensure_future(ids.begin(ID, ""))
    await asyncio.sleep(0.1)
    noting = asyncio.ensure_future(ids.used(ID))
    await asyncio.sleep(0.1)
    world.storage.release()
    await asyncio.gather(beginning, noting)
    known = (await world.crashed()).coordinators.ids.get(ID)
    assert known is not None and known.epoch == 2


@in_world
async def test_an_id_expires_behind_its_time_and_not_while_a_session_begins(world: World) -> None:
    ids, now_ms = world.coordinators.ids, world.clock.now_ms()
    assert not await ids.expire(ID), "nobody knows it"
    await ids.begin(ID, "")
    ids._known[ID] = IdRecord(1, now_ms - ids.expiration_ms)
    assert not await ids.expire(ID)
    ids._known[ID] = IdRecord(1, now_ms - ids.expiration_ms - 1)
    world.storage.holding = True
    beginning = asyncio.ensure_future(ids.begin(ID, ""))
    await asyncio.sleep(0)
    assert not await ids.expire(ID)
    world.storage.release()
    assert (await beginning).epoch == 2


@in_world
async def test_an_id_that_another_broker_uses_meanwhile_does_not_expire(world: World) -> None:
    ids, metadata = world.coordinators.ids, world.storage.metadata
    await ids.begin(ID, "")
    ids._known[ID] = IdRecord(1, world.clock.now_ms() - ids.expiration_ms - 1)
    world.storage.holding = True
    expiring = asyncio.ensure_future(ids.expire(ID))
    await asyncio.sleep(0)
    (key,) = metadata.keys("transactional-ids/=alice/")
    used = metadata.put(key, b"a session of the broker that has taken the coordinator")
    world.storage.release()
    await asyncio.gather(expiring, used)
    assert metadata.get(key) is not None


@in_world_with(max_transactional_ids_per_principal=2)
async def test_ids_that_expire_make_room_and_those_of_before_a_crash_take_it(world: World) -> None:
    for name in "ab":
        await world.coordinators.ids.begin(TransactionalId("alice", name), "")
    world = await world.crashed()
    ids = world.coordinators.ids
    await at(world, 8 * DAY_MS)

    async def is_refused(name: str) -> bool:
        try:
            await ids.begin(TransactionalId("alice", name), "")
        except NotAllowed:
            return True
        return False

    assert await is_refused("c")
    assert await ids.expire(TransactionalId("alice", "a"))
    assert not await is_refused("c")
    assert await is_refused("d")
    assert await ids.expire(TransactionalId("alice", "b"))
    assert not await is_refused("d")
    await asyncio.sleep(8 * DAY_MS / 1000)
    for name in "cd":
        assert await ids.expire(TransactionalId("alice", name))
    assert not ids._of_owner, "nobody is remembered for nothing"


@in_world
async def test_an_id_whose_epochs_are_used_up_has_no_more_sessions(world: World) -> None:
    ids = world.coordinators.ids
    ids._known[ID] = IdRecord(MAX_EPOCH - 1, world.clock.now_ms())
    assert (await ids.begin(ID, "")).epoch == MAX_EPOCH
    with pytest.raises(NotAllowed, match="no sessions left: use another"):
        await ids.begin(ID, "")


@in_world
async def test_an_epoch_of_an_expired_id_is_never_given_again(world: World) -> None:
    for _ in range(3):
        await world.coordinators.ids.begin(ID, "")
    assert await (await at(world, 8 * DAY_MS)).expire(ID)
    after = await world.crashed()
    assert (await after.coordinators.ids.begin(ID, "")).epoch == 4


@in_world
async def test_an_id_that_a_session_takes_while_it_expires_stays(world: World) -> None:
    ids = world.coordinators.ids
    await ids.begin(ID, "")
    await at(world, 8 * DAY_MS)
    world.storage.holding = True
    expiring = asyncio.ensure_future(ids.expire(ID))
    beginning = asyncio.ensure_future(ids.begin(ID, ""))
    noting = asyncio.ensure_future(ids.used(ID))
    await asyncio.sleep(0.1)
    assert not await ids.expire(ID)
    world.storage.release()
    await asyncio.gather(expiring, beginning, noting)
    known = (await world.crashed()).coordinators.ids.get(ID)
    assert known is not None
    assert known.epoch == 2


@in_world_with(max_transactional_ids_per_principal=2)
async def test_a_principal_has_a_limited_number_of_ids(world: World) -> None:
    ids = world.coordinators.ids
    for name in "ab":
        await ids.begin(TransactionalId("alice", name), "")
    with pytest.raises(NotAllowed, match="maxTransactionalIdsPerPrincipal"):
        await ids.begin(TransactionalId("alice", "c"), "")
    await ids.begin(TransactionalId("alice", "a"), "")
    await ids.begin(TransactionalId("bob", "c"), "")
    await ids.begin(TransactionalId(None, "c"), "")


@in_world_with(max_transactional_ids_per_principal=2)
async def test_ids_that_begin_at_the_same_time_do_not_pass_the_limit(world: World) -> None:
    ids = world.coordinators.ids
    world.storage.full = True
    with pytest.raises(ManagedLedgerError):  # the failed id takes no place
        await ids.begin(TransactionalId("alice", "z"), "")
    world.storage.full = False
    began = await asyncio.gather(
        *(ids.begin(TransactionalId("alice", name), "") for name in "abcd"), return_exceptions=True
    )
    assert [isinstance(each, NotAllowed) for each in began] == [False, False, True, True]
    assert len(ids) == 2


@in_world
async def test_the_names_of_the_last_sixteen_sessions_are_known(world: World) -> None:
    ids = world.coordinators.ids
    for number in range(20):
        await ids.begin(ID, f"s{number}")
    known = (await world.crashed()).coordinators.ids.get(ID)
    assert known is not None
    assert known.session == "s19"
    assert known.fenced == tuple(f"s{number}" for number in range(3, 19))


# -- names


def test_an_id_has_one_to_256_characters() -> None:
    for name in ("x", "x" * MAX_ID_CHARS):
        check_id(name)
    for name in ("", "x" * (MAX_ID_CHARS + 1)):
        with pytest.raises(NotAllowed, match="1 to 256 characters"):
            check_id(name)


def test_a_session_s_name_is_stored_as_a_short_digest() -> None:
    assert digest("") == ""
    assert digest("a" * 1000) != digest("b" * 1000)
    assert [len(digest(name)) for name in ("a", "a" * 1000)] == [32, 32]


def test_who_is_fenced_reads_why() -> None:
    refusal = str(fenced(TxnId(3, 4), SessionRef(ID, 1)))
    assert refusal.startswith("Transaction (3,4) accepts no more operations: it was fenced by a")
    assert "transactional id 'orders/1 ü', and is aborted" in refusal


# -- stored records


def test_a_bound_transaction_is_stored_so_that_older_versions_refuse_it() -> None:
    bound = BindSession(7, SessionRef(TransactionalId("a", "x"), 3))
    nobody_s = BindSession(7, SessionRef(TransactionalId(None, "x"), 3))
    for record, stored in (
        (bound, "0201280703010161" + "0178"),
        (nobody_s, "02012807030000" + "0178"),
    ):
        assert log_records.encode_entry([record]).hex() == stored
        assert log_records.decode_entry(bytes.fromhex(stored), "test") == [record]
    assert log_records.encode_entry([NewTransaction(1, 2, 3, None)])[0] == 1


@in_world
async def test_a_record_of_a_later_version_is_refused_with_a_sentence(world: World) -> None:
    await world.coordinators.ids.begin(ID, "")
    key = "transactional-ids/=alice/orders%2F1%20%C3%BC"
    stored = world.storage.metadata.get(key)
    assert stored is not None
    await world.storage.metadata.put(key, b"\x02" + stored.value[1:])
    with pytest.raises(CorruptStorage, match="run the version that wrote it"):
        await world.crashed()
