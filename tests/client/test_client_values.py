"""Message ids, acknowledgement sets, routing, batches: values in, values out."""

import pickle
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybroker.base.errors import ProducerBusy
from pybroker.base.key_hash import java_string_hash
from pybroker.client import (
    CompressionType,
    HashingScheme,
    InvalidTxnStatus,
    MessageId,
    Outgoing,
    PartitionsRoutingMode,
    TransactionAborted,
    TransactionConflict,
    TransactionOutcomeUnknown,
    TxnId,
    UnsupportedCompression,
    encode_batch,
    partition_for_key,
)
from pybroker.client.compression import codec
from pybroker.client.connection.retry import LAST_DELAY_S, Backoff
from pybroker.client.consuming.acks import (
    MAX_PARTLY,
    NOTHING,
    AckGroup,
    all_bits,
    cumulatively,
    from_words,
    individually,
    to_words,
)
from pybroker.client.errors import PulsarException, from_wire
from pybroker.client.producing.routing import Router, murmur3_hash
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.decompression import CannotDecompress
from pybroker.wire.single_messages import split_batch


class TestMessageIds:
    def test_they_are_ordered_by_place(self):
        ids = [MessageId(0, 1, 2, 0), MessageId(0, 1, 2, 1), MessageId(0, 1, 3), MessageId(0, 2, 0)]
        shuffled = random.Random(1).sample(ids, len(ids))
        assert sorted(shuffled) == ids
        assert MessageId.earliest < ids[0] < ids[-1] < MessageId.latest

    def test_they_survive_serialization_and_pickling(self):
        message_id = MessageId(3, 1, 2, 4, batch_size=5)
        assert MessageId.deserialize(message_id.serialize()) == message_id
        assert MessageId.deserialize(message_id.serialize()).batch_size() == 5
        copy = pickle.loads(pickle.dumps(MessageId(3, 1, 2, topic="t")))
        assert (copy, copy.topic_name()) == (MessageId(3, 1, 2), "t")
        for end in (MessageId.earliest, MessageId.latest):
            assert MessageId.deserialize(end.serialize()) == end

    def test_what_remembers_its_topic_equals_what_does_not(self):
        ids = {MessageId(0, 1, 2, topic="t"), MessageId(0, 1, 2)}
        assert len(ids) == 1


class TestAckSets:
    @given(st.integers(0, 2**200))
    def test_words_and_bits_are_the_same(self, bits: int):
        words = to_words(bits)
        assert from_words(words) == bits
        assert all(-(2**63) <= word < 2**63 for word in words)

    def test_one_message_and_all_up_to_one(self):
        assert individually(1, 2, 0, 3) == ((1, 2), (0b110, 3))
        assert cumulatively(1, 2, 1, 3) == ((1, 2), (0b100, 3))
        assert individually(1, 2, 0, 1) == individually(1, 2, -1, 0) == ((1, 2), NOTHING)
        assert cumulatively(1, 2, 2, 3) == ((1, 2), NOTHING)

    def test_a_batch_that_came_in_part_is_done_with_its_rest(self):
        group = AckGroup(by_batch_index=False)
        group.delivered((1, 2), 0b101, 0b101, 3)
        assert group.add([(1, 2, 0, 3)]) == []
        assert group.add([(1, 2, 2, 3)]) == [(1, 2)]
        assert group.take() == ([((1, 2), (0b010, 3))], None)

    def test_what_the_broker_left_out_of_a_batch_is_acknowledged_by_nobody(self):
        """A transaction may hold it, and abort before the others' acknowledgement arrives."""
        group = AckGroup(by_batch_index=True)
        group.delivered((1, 2), 0b11101, 0b11101, 5)
        group.add([(1, 2, 3, 5)])
        assert group.take() == ([((1, 2), (0b10111, 5))], None)
        assert group.add((1, 2, index, 5) for index in (0, 2, 4)) == [(1, 2)]
        assert group.take() == ([((1, 2), (0b00010, 5))], None)

    def test_what_came_before_the_rest_of_its_batch_is_acknowledged(self):
        """The rest comes when the transaction that held it aborts."""
        group = AckGroup(by_batch_index=True)
        group.delivered((1, 2), 0b11010, 0b11010, 5)
        group.delivered((1, 2), 0b00001, 0b00001, 5)
        group.add([(1, 2, 1, 5)])
        assert group.take() == ([((1, 2), (0b11101, 5))], None)
        assert group.add((1, 2, index, 5) for index in (0, 3, 4)) == [(1, 2)]
        assert group.take() == ([((1, 2), (0b00100, 5))], None)

    def test_a_cumulative_one_says_nothing_of_what_was_left_out_behind_it(self):
        group = AckGroup(by_batch_index=True)
        group.delivered((1, 2), 0b10110, 0b10110, 5)
        group.add_cumulative(1, 2, 1, 5)
        group.add([(1, 2, 2, 5)])
        assert group.take() == ([((1, 2), (0b11000, 5))], ((1, 2), (0b11100, 5)))

    def test_a_whole_batch_that_waits_to_be_sent_stays_whole(self):
        group = AckGroup(by_batch_index=True)
        group.add([(1, 2, -1, 0)])
        group.delivered((1, 2), 0b101, 0b101, 3)
        group.add([(1, 2, 0, 3)])
        assert group.take() == ([((1, 2), NOTHING)], None)

    def test_a_message_acknowledged_again_takes_back_nothing_of_its_batch(self):
        group = AckGroup(by_batch_index=True)
        group.add((1, 2, index, 3) for index in (0, 1, 2, 0))
        assert group.take() == ([((1, 2), NOTHING)], None)

    def test_a_batch_that_comes_again_takes_back_nothing_that_waits_to_be_sent(self):
        group = AckGroup(by_batch_index=True)
        group.add([(1, 2, 0, 3)])
        group.delivered((1, 2), 0b111, 0b111, 3)
        group.add([(1, 2, 1, 3)])
        assert group.take() == ([((1, 2), (0b100, 3))], None)

    @pytest.mark.parametrize("now", [0b100, 0b110])
    def test_nor_does_one_that_comes_again_without_other_parts(self, now: int):
        group = AckGroup(by_batch_index=True)
        group.delivered((1, 2), 0b011, 0b011, 3)
        group.add([(1, 2, 0, 3)])
        group.delivered((1, 2), now, now, 3)
        group.add([(1, 2, 2, 3)])
        assert group.take() == ([((1, 2), (0b010, 3))], None)

    def test_of_very_many_that_stay_in_part_the_first_are_forgotten(self):
        """If the rest is acknowledged in transactions, nothing else would remove the records."""
        group = AckGroup(by_batch_index=True)
        for entry_id in range(MAX_PARTLY + 1):
            group.delivered((1, entry_id), 0b011, 0b011, 3)
            group.add([(1, entry_id, 0, 3)])
        group.take()
        group.add([(1, 0, 1, 3), (1, MAX_PARTLY, 1, 3)])
        left = [((1, 0), (0b101, 3)), ((1, MAX_PARTLY), (0b100, 3))]
        assert group.take() == (left, None)

    def test_the_farthest_cumulative_one_counts(self):
        group = AckGroup(by_batch_index=True)
        for entry_id, index in ((5, 0), (5, 1), (4, -1)):
            group.add_cumulative(1, entry_id, index, 3 if index >= 0 else 0)
        assert group.take() == ([], ((1, 5), (0b100, 3)))

    def test_without_batch_indexes_a_cumulative_one_stops_before_the_batch(self):
        group = AckGroup(by_batch_index=False)
        group.add_cumulative(1, 5, 0, 3)
        assert group.take() == ([], ((1, 4), NOTHING))
        group.add_cumulative(1, 5, 2, 3)
        assert group.take() == ([], ((1, 5), NOTHING))

    @given(st.permutations(range(70)))
    def test_an_entry_is_done_with_exactly_at_its_last_message(self, order: list[int]):
        group = AckGroup(by_batch_index=True)
        done = [group.add([(1, 2, index, 70)]) for index in order]
        assert done == [[]] * 69 + [[(1, 2)]]
        assert all_bits(70) == 2**70 - 1


class TestRouting:
    @pytest.mark.parametrize(
        ("key", "java", "murmur"),
        [("", 0, 0), ("hello", 99162322, 0x248BFA47), ("hello, world", -1, 0x149BBB7F)],
    )
    def test_published_hashes(self, key: str, java: int, murmur: int):
        assert murmur3_hash(key) == murmur
        if java >= 0:
            assert java_string_hash(key) == java

    def test_a_hash_never_has_a_sign(self):
        # "polygenelubricants".hashCode() is Integer.MIN_VALUE: without the sign bit it is 0.
        assert java_string_hash("polygenelubricants") == 0
        text = "The quick brown fox jumps over the lazy dog"
        assert murmur3_hash(text) == 0x2E4FF723

    def test_java_hashes_utf16_code_units(self):
        assert java_string_hash("😀") == 0xD83D * 31 + 0xDE00

    def test_the_scheme_decides(self):
        assert partition_for_key("hello", 7) == 99162322 % 7
        assert partition_for_key("hello", 7, HashingScheme.Murmur3_32Hash) == 0x248BFA47 % 7

    def test_a_single_partition_may_be_kept(self):
        class Part:
            has_open_batch = False

        router = Router(
            [Part(), Part(), Part()],
            PartitionsRoutingMode.UseSinglePartition,
            HashingScheme.JavaStringHash,
            random.Random(1),
        )
        assert len({router.choose(Outgoing(b"x")) for _ in range(9)}) == 1


class TestBatches:
    @given(st.lists(st.tuples(st.binary(max_size=300), st.none() | st.text(max_size=5))))
    def test_what_is_encoded_is_split_into_the_same(self, wanted: list[tuple[bytes, str | None]]):
        batch = encode_batch([Outgoing(data, partition_key=key) for data, key in wanted])
        split = list(split_batch(batch.payload, batch.message_count))
        assert [data for _, data in split] == [data for data, _ in wanted]
        assert [single.partition_key for single, _ in split] == [key or "" for _, key in wanted]

    def test_the_short_form_is_what_protobuf_reads(self):
        batch = encode_batch([Outgoing(b"x" * 200, sequence_id=300)])
        ((single, data),) = split_batch(batch.payload, 1)
        assert (single.payload_size, single.sequence_id, data) == (200, 300, b"x" * 200)

    def test_an_encoded_batch_is_picklable(self):
        batch = encode_batch([b"a", b"b"], CompressionType.ZLib)
        assert pickle.loads(pickle.dumps(batch)) == batch

    def test_an_unknown_codec_is_an_error(self):
        with pytest.raises(UnsupportedCompression, match="Unknown compression"):
            codec(99)

    def test_nothing_is_unpacked_beyond_what_its_metadata_says(self):
        """A few bytes of zstd may hold gigabytes."""
        zstd = codec(CompressionType.ZSTD)
        packed = zstd.compress(bytes(10_000_000))
        assert len(packed) < 1000
        assert 1000 < len(zstd.decompress(packed, 1000)) < 2_000_000
        assert zstd.decompress(packed, 10_000_000) == bytes(10_000_000)
        snappy = codec(CompressionType.SNAPPY)
        with pytest.raises(CannotDecompress, match="1000 bytes that it claims"):
            snappy.decompress(snappy.compress(bytes(10_000_000)), 1000)


class TestErrors:
    def test_each_code_has_its_class(self):
        assert type(from_wire(23, "taken")) is TransactionConflict
        assert type(from_wire(21, "ended")) is InvalidTxnStatus
        assert type(from_wire(999, "what?")) is PulsarException

    def test_every_error_of_the_wire_has_a_class_of_its_own(self) -> None:
        found = [type(from_wire(number, "no")) for number in pb.ServerError.values()]
        assert len(set(found)) == len(pb.ServerError.values())
        assert [error.code for error in found] == pb.ServerError.values()

    def test_a_second_exclusive_producer_is_refused_as_busy(self) -> None:
        assert type(from_wire(pb.ProducerBusy, "it has one")) is ProducerBusy
        assert issubclass(TransactionAborted, InvalidTxnStatus)

    def test_an_unknown_outcome_keeps_its_transaction_through_pickling(self):
        error = pickle.loads(pickle.dumps(TransactionOutcomeUnknown(TxnId(1, 2))))
        assert error.txn_id == TxnId(1, 2)
        assert "(1,2)" in str(error)


def test_delays_grow_to_a_bound():
    backoff = Backoff(random.Random(1))
    delays = [backoff.next_delay_s() for _ in range(20)]
    assert delays[0] <= 0.1
    assert delays[:5] == sorted(delays[:5])
    assert max(delays) <= LAST_DELAY_S <= 1.0
