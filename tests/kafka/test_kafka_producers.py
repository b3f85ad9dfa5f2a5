"""Idempotent producers: what is stored once, what is answered as a copy, and what is refused."""

import asyncio
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from managed_ledger.errors import CorruptStorage
from managed_ledger.position import Position
from pybroker.kafka.log.producer_snapshots import encoded
from pybroker.kafka.producers.errors import (
    DuplicateSequence,
    InvalidProducerEpoch,
    OutOfOrderSequence,
    ProducerRefused,
)
from pybroker.kafka.producers.partition_producers import (
    EXPIRATION_MS,
    MOST_PRODUCERS,
    PartitionProducers,
    decode,
    encode_head,
    encode_producer,
)
from pybroker.kafka.producers.sequences import ProducerSequences, SentBatch
from pybroker.kafka.records.batch import LAST_SEQUENCE, BatchHeader, build_batch, header_of

WHERE = Position(3, 4)


def sent(first: int, count: int = 1, epoch: int = 0, producer_id: int = 7) -> BatchHeader:
    return header_of(
        build_batch(
            b"",
            count,
            count - 1,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=first,
        )
    )


class Partition:
    """A log of batches, which become durable when the test says so."""

    def __init__(self, producers: PartitionProducers | None = None, offset: int = 100) -> None:
        self.producers = PartitionProducers() if producers is None else producers
        self.offset = offset
        self.log: list[tuple[BatchHeader, int]] = []

    def send(self, header: BatchHeader, time_ms: int = 1_000) -> SentBatch:
        """The batch, reserved; a copy returns the first one."""
        known = self.producers.check(header)
        if known is not None:
            return known
        batch = self.producers.reserve(header, self.offset, time_ms)
        self.offset += header.record_count
        return batch

    def store(self, header: BatchHeader, time_ms: int = 1_000) -> SentBatch:
        batch = self.send(header, time_ms)
        if batch.answers is not None:
            self.log.append((header, batch.base_offset))
            self.producers.durable(header.producer_id, batch)
        return batch

    def crashed(self, snapshot: bytes = b"", since: int = 0) -> "Partition":
        found = PartitionProducers()
        if snapshot:
            where, found = decode(snapshot, "orders")
            assert where == WHERE
        for header, offset in self.log[since:]:
            found.read(header, offset, 1_000)
        return Partition(found, self.offset)

    def snapshot(self) -> bytes:
        return encode_head(WHERE) + b"".join(map(encode_producer, self.producers))


def answers_of(batch: SentBatch) -> list[int | Exception | None]:
    got: list[int | Exception | None] = []
    batch.when_durable(lambda offset, error: got.append(error or offset))
    return got


def stored(sequences: Iterable[int], **fields: int) -> Partition:
    partition = Partition()
    for first in sequences:
        partition.store(sent(first, **fields))
    return partition


def test_a_copy_has_the_offset_of_the_first() -> None:
    partition = Partition()
    offsets = [partition.store(sent(first, 3)).base_offset for first in (0, 3, 6, 9, 12)]
    assert offsets == [100, 103, 106, 109, 112]
    assert [partition.store(sent(first, 3)).base_offset for first in (12, 0, 6)] == [112, 100, 106]
    assert partition.offset == 115


def test_a_copy_of_a_batch_on_its_way_is_answered_when_that_is_durable() -> None:
    partition = Partition()
    batch = partition.send(sent(0))
    got = answers_of(partition.send(sent(0)))
    assert got == []
    partition.producers.durable(7, batch)
    assert got == [100]


def test_a_gap_is_out_of_order() -> None:
    partition = stored([0, 1])
    with pytest.raises(OutOfOrderSequence, match="sent sequence 3 where 2 is next"):
        partition.send(sent(3))


def test_a_batch_that_overlaps_the_next_is_out_of_order() -> None:
    with pytest.raises(OutOfOrderSequence):
        stored([0, 1]).send(sent(1, 2))


def test_what_is_older_than_the_window_is_a_duplicate_without_an_offset() -> None:
    with pytest.raises(DuplicateSequence, match="sequences 0 to 0"):
        stored(range(6)).send(sent(0))


def test_what_came_before_the_first_known_batch_is_no_duplicate() -> None:
    """It may never have arrived: to call it a duplicate would lose it."""
    partition = stored(range(50, 60))
    with pytest.raises(DuplicateSequence):
        partition.send(sent(50))
    with pytest.raises(OutOfOrderSequence):
        partition.send(sent(49))


def test_a_producer_that_nobody_knows_begins_anywhere() -> None:
    assert stored([41]).store(sent(42)).base_offset == 101


def test_sequences_go_on_after_the_last_one() -> None:
    partition = stored([LAST_SEQUENCE - 1], count=4)
    assert partition.store(sent(2)).base_offset == 104
    assert partition.store(sent(LAST_SEQUENCE - 1, 4)).base_offset == 100
    with pytest.raises(OutOfOrderSequence):
        partition.send(sent(LAST_SEQUENCE - 2))


def test_a_new_epoch_begins_at_zero_and_fences_the_old() -> None:
    partition = stored([0, 1])
    with pytest.raises(OutOfOrderSequence):
        partition.send(sent(2, epoch=1))
    assert partition.store(sent(0, epoch=1)).base_offset == 102
    with pytest.raises(InvalidProducerEpoch, match="has epoch 1 here"):
        partition.send(sent(2, epoch=0))


def test_a_failed_append_leaves_the_sequence_free() -> None:
    partition = stored([0, 1])
    batch = partition.send(sent(2))
    got = answers_of(partition.send(sent(2)))
    partition.producers.failed(7, batch, OSError("full"))
    assert [str(each) for each in got] == ["full"]
    assert partition.store(sent(2)).base_offset == 103


def test_appends_that_fail_together_leave_all_sequences_free() -> None:
    partition = stored([0, 1])
    batches = [partition.send(sent(first)) for first in (2, 3, 4)]
    for batch in batches:
        partition.producers.failed(7, batch, OSError())
    assert partition.send(sent(1)).base_offset == 101
    with pytest.raises(OutOfOrderSequence):
        partition.send(sent(3))
    assert partition.store(sent(2)).base_offset == 105


def test_a_batch_whose_successor_is_stored_can_not_follow_it() -> None:
    partition = stored([0, 1])
    failing, later = partition.send(sent(2)), partition.send(sent(3))
    partition.producers.failed(7, failing, OSError())
    partition.producers.durable(7, later)
    with pytest.raises(OutOfOrderSequence):
        partition.send(sent(2))
    with pytest.raises(OutOfOrderSequence):
        partition.send(sent(2))
    assert partition.store(sent(4)).base_offset == 104


def test_the_first_batch_that_fails_leaves_nothing_behind() -> None:
    partition = Partition()
    partition.producers.failed(7, partition.send(sent(41)), OSError())
    assert not len(partition.producers)
    assert partition.store(sent(60)).base_offset == 101


def test_a_new_epoch_stays_although_its_first_batch_failed() -> None:
    partition = stored([0, 1])
    partition.producers.failed(7, partition.send(sent(0, epoch=3)), OSError())
    with pytest.raises(InvalidProducerEpoch):
        partition.send(sent(2))
    assert partition.store(sent(0, epoch=3)).base_offset == 103


def test_a_batch_of_the_old_epoch_that_becomes_durable_late_counts_for_it() -> None:
    partition = stored([0, 1])
    late = partition.send(sent(2))
    partition.store(sent(0, epoch=1))
    partition.producers.durable(7, late)
    assert partition.store(sent(1, epoch=1)).base_offset == 104


def test_after_a_crash_the_log_tells_the_windows() -> None:
    partition = stored(range(8)).crashed()
    assert partition.store(sent(7)).base_offset == 107
    with pytest.raises(DuplicateSequence):
        partition.send(sent(1))
    assert partition.store(sent(8)).base_offset == 108


@pytest.mark.parametrize("since", range(9))
def test_a_snapshot_and_the_log_after_it_may_overlap(since: int) -> None:
    before = stored(range(4))
    before.store(sent(0, producer_id=9))
    snapshot = before.snapshot()
    for first in range(4, 8):
        before.store(sent(first))
    after = before.crashed(snapshot, min(since, 5))
    assert after.snapshot() == before.snapshot()


def with_five_batches(producer_id: int) -> ProducerSequences:
    last, time_ms = LAST_SEQUENCE, 2**42
    found = ProducerSequences(producer_id, 32_767, last, 1_000_000, time_ms)
    for at in range(last - 9, last, 2):
        found.batches.append(SentBatch(32_767, at, at + 1, 2**62 + at, time_ms))
    return found


def test_a_snapshot_of_many_producers_fits_in_a_node_of_zookeepers() -> None:
    """The largest numbers that clients may send; a node takes a MiB with all that is around it."""
    many = [with_five_batches(2**62 + number) for number in range(MOST_PRODUCERS)]
    value = encode_head(WHERE) + b"".join(asyncio.run(encoded(many)))
    assert len(value) < 1_000_000
    found = list(decode(value, "orders")[1])
    assert [each.producer_id for each in found] == [each.producer_id for each in many]
    newest, idle = ([batch.base_offset for batch in found[at].batches] for at in (-1, 0))
    assert newest == [batch.base_offset for batch in many[-1].batches]
    assert idle == newest[-1:]
    assert (found[0].known, found[0].last) == (many[0].known, many[0].last)


def test_a_snapshot_of_few_producers_has_all_their_batches() -> None:
    few = [with_five_batches(number) for number in range(100)]
    assert asyncio.run(encoded(few)) == [encode_producer(each) for each in few]


def test_a_snapshot_leaves_out_what_is_not_durable() -> None:
    partition = stored([0])
    partition.send(sent(1))
    after = partition.crashed(partition.snapshot(), since=1)
    assert after.store(sent(1)).base_offset == 102


def test_a_torn_snapshot_is_refused() -> None:
    with pytest.raises(CorruptStorage, match="producers of orders"):
        decode(stored([0]).snapshot()[:-1], "orders")


def test_an_idle_producer_is_forgotten_after_seven_days() -> None:
    partition = stored([0])
    partition.store(sent(0, producer_id=8), time_ms=5_000)
    partition.producers.expire(1_000 + EXPIRATION_MS)
    assert [each.producer_id for each in partition.producers] == [8]


def test_a_producer_with_a_batch_on_its_way_is_not_forgotten() -> None:
    partition = Partition()
    partition.send(sent(0))
    partition.producers.expire(2_000 + EXPIRATION_MS)
    assert len(partition.producers) == 1


def test_the_longest_idle_producer_makes_room() -> None:
    partition = Partition(PartitionProducers(2))
    for producer_id, first in ((1, 0), (2, 0), (1, 1), (3, 0)):
        partition.store(sent(first, producer_id=producer_id))
    assert {each.producer_id for each in partition.producers} == {1, 3}


@given(
    st.lists(
        st.tuples(st.sampled_from(["send", "again", "fail", "crash", "epoch"]), st.integers(1, 3)),
        max_size=40,
    )
)
def test_every_batch_is_stored_once_and_in_order(steps: list[tuple[str, int]]) -> None:
    """A client that sends the next batch only once the last is stored, and anything again."""
    partition, epoch, first = Partition(), 0, 0
    acknowledged: list[tuple[BatchHeader, int]] = []
    for step, count in steps:
        if step == "crash":
            log, partition = partition.log, partition.crashed()
            partition.log = log
        elif step == "epoch":
            epoch, first = epoch + 1, 0
        elif step == "again" and acknowledged:
            header, offset = acknowledged[-min(count, len(acknowledged))]
            if header.producer_epoch == epoch:
                assert partition.store(header).base_offset == offset
        elif step == "fail":
            batch = partition.send(sent(first, count, epoch))
            partition.producers.failed(7, batch, OSError())
        elif step == "send":
            header = sent(first, count, epoch)
            acknowledged.append((header, partition.store(header).base_offset))
            first += count
    assert [(*each[0][9:], each[1]) for each in partition.log] == [
        (*each[0][9:], each[1]) for each in acknowledged
    ]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 12), st.integers(1, 3)), max_size=30))
def test_whatever_is_sent_the_log_has_no_copy_and_no_gap(sent_: list[tuple[int, int, int]]) -> None:
    partition = Partition()
    for epoch, first, count in sent_:
        try:
            partition.store(sent(first, count, epoch))
        except ProducerRefused:
            continue
    for (before, _), (after, _) in zip(partition.log, partition.log[1:], strict=False):
        new_epoch = after.producer_epoch > before.producer_epoch and after.base_sequence == 0
        follows = after.base_sequence == before.last_sequence + 1
        assert new_epoch or (after.producer_epoch == before.producer_epoch and follows)
