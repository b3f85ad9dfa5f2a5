"""Batches of the official C++, Python and Go clients, which state only their first sequence id."""

import asyncio
import struct
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from deduplication_world import Run, SequenceIds, World, one, with_world

from pybroker.base.names import TxnId
from pybroker.broker.deduplication import Duplicate, Examinations, Later, New, Refused, Rest
from pybroker.broker.deduplication.batch_ids import MAX_BYTES, MAX_MESSAGES
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.message_metadata import build_entry, parse_metadata, payload_of
from pybroker.wire.single_messages import split_batch

T1, T2 = TxnId(0, 1), TxnId(0, 2)
ZLIB = pb.CompressionType.ZLIB

Between = Callable[[World], Any]


def batch(
    ids: Sequence[int], told: bool = True, packed: bool = False, **fields: Any
) -> SequenceIds:
    """`told`: each message carries its own id."""
    payload = b""
    for each in ids:
        content = b"m%d" % each
        single = pb.SingleMessageMetadata(payload_size=len(content))
        if told:
            single.sequence_id = each
        encoded = single.SerializeToString()
        payload += struct.pack(">I", len(encoded)) + encoded + content
    metadata = pb.MessageMetadata(
        producer_name="p", sequence_id=ids[0], publish_time=0, num_messages_in_batch=len(ids)
    )
    metadata.uncompressed_size = len(payload)
    if packed:
        metadata.compression, payload = ZLIB, zlib.compress(payload)
    for name, value in fields.items():
        setattr(metadata, name, value)
    entry = build_entry(metadata, payload)
    return SequenceIds(ids[0], ids[0], entry=entry, messages=len(ids))


def encrypted(ids: Sequence[int]) -> SequenceIds:
    sealed = batch(ids)
    metadata = parse_metadata(sealed.entry)
    metadata.encryption_keys.add(key="k", value=b"sealed")
    return sealed._replace(entry=build_entry(metadata, b"sealed"))


def contents(piece: Rest) -> list[bytes]:
    return [content for _, content in split_batch(payload_of(piece.entry), piece.messages)]


async def nothing(world: World) -> None:
    pass


async def crash(world: World) -> None:
    await world.crash_and_recover()


async def crash_after_a_snapshot(world: World) -> None:
    await world.deduplication.snapshot()
    await world.crash_and_recover()


LIVES = pytest.mark.parametrize("between", [nothing, crash, crash_after_a_snapshot])


@LIVES
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("ids", [range(6), (0, 10, 25)], ids=["in a row", "with gaps"])
def test_the_last_message_s_id_counts(between: Between, packed: bool, ids: Sequence[int]) -> None:
    async def scenario(world: World) -> None:
        assert await world.publish(batch(ids, packed=packed))
        await between(world)
        assert world.deduplication.last_sequence_id("p") == ids[-1]
        assert not await world.publish(batch(ids, packed=packed))
        assert not await world.publish(batch(ids[1:], packed=packed))
        assert not await world.publish(one(ids[-1]))
        assert await world.publish(batch([ids[-1] + 1, ids[-1] + 2], packed=packed))

    with_world(scenario)


@LIVES
@pytest.mark.parametrize(
    "unreadable",
    [
        lambda ids: batch(ids, told=False),
        encrypted,
        lambda ids: batch(ids, compression=ZLIB),  # does not decompress
        lambda ids: batch(ids, packed=True, uncompressed_size=7),
        lambda ids: batch(ids, packed=True, uncompressed_size=MAX_BYTES + 1),
    ],
    ids=["without ids of their own", "encrypted", "damaged", "of another size", "too large"],
)
def test_a_batch_that_shows_no_ids_is_counted_up_from_its_first(
    between: Between, unreadable: Callable[[Sequence[int]], SequenceIds]
) -> None:
    async def scenario(world: World) -> None:
        assert await world.publish(unreadable(range(5, 9)))
        await between(world)
        assert world.deduplication.last_sequence_id("p") == 8
        assert not await world.publish(unreadable(range(5, 9)))
        assert await world.publish(one(9))

    with_world(scenario)


def test_a_batch_of_very_many_messages_is_counted() -> None:
    async def scenario(world: World) -> None:
        ids = range(0, 2 * (MAX_MESSAGES + 1), 2)
        assert await world.publish(batch(ids))
        assert world.deduplication.last_sequence_id("p") == MAX_MESSAGES

    with_world(scenario)


def test_an_entry_that_is_one_message_has_one_id_whatever_its_producer_states() -> None:
    async def scenario(world: World) -> None:
        lies = one(3)._replace(messages=4)
        assert await world.publish(lies)
        assert world.deduplication.last_sequence_id("p") == 3

    with_world(scenario)


@LIVES
def test_ids_stored_while_nothing_was_compared_are_known(between: Between) -> None:
    async def scenario(world: World) -> None:
        await world.publish_unchecked(batch([0, 10, 25], packed=True))
        await world.crash_and_recover()
        await between(world)
        assert world.deduplication.last_sequence_id("p") == 25
        assert not await world.publish(batch([10, 25]))

    with_world(scenario)


@LIVES
@pytest.mark.parametrize("packed", [False, True])
def test_only_the_new_messages_of_a_batch_are_stored(between: Between, packed: bool) -> None:
    async def scenario(world: World) -> None:
        await world.publish(batch(range(6)))
        await between(world)
        piece = world.ask(batch(range(4, 8), packed=packed))
        assert isinstance(piece, Rest)
        assert contents(piece) == [b"m6", b"m7"]
        metadata = parse_metadata(piece.entry)
        assert (metadata.sequence_id, metadata.num_messages_in_batch) == (6, 2)
        world.fail(piece.taken, OSError("lost"))
        assert await world.publish(batch(range(4, 8), packed=packed))
        await between(world)
        assert world.deduplication.last_sequence_id("p") == 7
        assert not await world.publish(batch(range(2, 8)))

    with_world(scenario)


def test_a_batch_that_cannot_be_divided_is_refused() -> None:
    async def scenario(world: World) -> None:
        await world.publish(encrypted(range(6)))
        piece = world.ask(encrypted(range(4, 8)))
        assert isinstance(piece, Refused)
        assert "already stored in part" in str(piece.error)

    with_world(scenario)


@LIVES
def test_what_an_abort_gave_back_is_new_in_a_batch_and_the_rest_is_not(between: Between) -> None:
    async def scenario(world: World) -> None:
        await world.publish(batch([0, 1]))
        await world.publish(batch([2, 3]), txn_id=T1)
        await world.publish(batch([4, 5]))
        assert world.copied(batch(range(6))) == T1
        await world.end(T1, abort=True)
        await between(world)
        piece = world.ask(batch(range(7)), txn_id=T2)
        assert isinstance(piece, Rest)
        assert contents(piece) == [b"m2", b"m3", b"m6"]
        assert piece.taken.ranges == [(2, 3), (6, 6)]

    with_world(scenario)


@LIVES
def test_a_transaction_s_own_batch_is_stored_once_in_it(between: Between) -> None:
    async def scenario(world: World) -> None:
        await world.publish(batch([0, 1, 2]), txn_id=T1)
        await between(world)
        assert not await world.publish(batch([1, 2]), txn_id=T1)
        assert world.copied(batch([2, 3])) == T1
        piece = world.ask(batch([1, 2, 3]), txn_id=T1)
        assert isinstance(piece, Rest)
        assert contents(piece) == [b"m3"]

    with_world(scenario)


@pytest.mark.parametrize("stored", [False, True])
def test_the_rest_of_a_batch_waits_until_its_beginning_is_durable(stored: bool) -> None:
    async def scenario(world: World) -> None:
        flying = world.take(batch([0, 1, 2]))
        waiting = world.ask(batch([2, 3]))
        assert isinstance(waiting, Later)
        ready: list[bool] = []
        waiting.when_ready(lambda: ready.append(True))
        await asyncio.sleep(0)
        assert not ready
        if stored:
            flying.stored()
        else:
            world.fail(flying, OSError("lost"))
        await asyncio.sleep(0)
        assert ready
        assert isinstance(world.ask(batch([2, 3])), Rest if stored else New)

    with_world(scenario)


def test_a_turn_of_the_loop_examines_a_limited_amount() -> None:
    async def scenario(world: World) -> None:
        examinations = Examinations(bytes_a_turn=1)
        sent = [one(0), batch([1, 2], packed=True), one(3), batch([4, 5]), one(6)]
        turns = []
        while sent:
            found = list(world.deduplication.pieces("p", Run(sent, None), examinations))
            turns.append([(type(each), each.start, each.stop) for each in found])
            await asyncio.sleep(0)
            sent = sent[found[-1].start :] if isinstance(found[-1], Later) else []
        assert turns == [[(New, 0, 3), (Later, 3, 5)], [(New, 0, 2)]]
        assert world.deduplication._state("p").top == 6

    with_world(scenario)


def test_batches_that_state_their_highest_id_are_not_examined() -> None:
    async def scenario(world: World) -> None:
        examinations = Examinations(bytes_a_turn=1)
        sent = [batch([each, each + 1])._replace(highest=each + 1) for each in range(0, 100, 2)]
        (piece,) = world.deduplication.pieces("p", Run(sent, None), examinations)
        assert isinstance(piece, New)
        assert not examinations.must_wait

    with_world(scenario)


def test_a_refused_batch_may_be_sent_again_whole() -> None:
    async def scenario(world: World) -> None:
        refused = batch([0, 10, 25], packed=True)
        world.deduplication.refused_all("p", Run([refused], None), Examinations())
        await world.publish(one(30))
        assert isinstance(world.ask(refused), New)
        assert isinstance(world.ask(one(30)), Duplicate)

    with_world(scenario)
