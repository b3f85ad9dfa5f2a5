"""Parts of Kafka's protocol, driven with values: no broker, no socket."""

import asyncio
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from managed_ledger.position import Position
from pybroker.base.errors import NotAllowed, ServiceNotReady
from pybroker.base.names import TopicName
from pybroker.broker.policies.deleted_keys import COMPACTION_DELETE_RETENTION
from pybroker.broker.policies.table import COMPACTION_THRESHOLD, MAX_MESSAGE_SIZE, RETENTION
from pybroker.kafka.codec.frames import FrameReader
from pybroker.kafka.configs.kinds import fraction, some_of, whole
from pybroker.kafka.configs.topic_policies import configs_of, policies_of
from pybroker.kafka.conversion.entries import kafka_entry
from pybroker.kafka.errors import ErrorCode, KafkaError
from pybroker.kafka.fetched_bytes import FetchedBytes
from pybroker.kafka.intake import MAX_QUEUED, Intake
from pybroker.kafka.log.append_time import AppendTime
from pybroker.kafka.log.chunks import whole_message
from pybroker.kafka.log.offsets import Placed
from pybroker.kafka.log.partition_log import PartitionLog
from pybroker.kafka.log.reading import stored_batch
from pybroker.kafka.nodes import NO_NODE
from pybroker.kafka.producers.errors import OutOfOrderSequence
from pybroker.kafka.producers.refused import RefusedBatches
from pybroker.kafka.records.batch import build_batch, header_of
from pybroker.kafka.records.errors import TooManyBytes
from pybroker.kafka.records.record import Record, write_records
from pybroker.kafka.records.steps import at_once
from pybroker.kafka.session import Session
from pybroker.kafka.shared_nodes import SharedNodes, node_numbers
from pybroker.server.connections.frame_budget import FREE_BYTES
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.message_metadata import build_entry, split_entry


def error_of(work: Callable[[], Any]) -> ErrorCode:
    with pytest.raises(KafkaError) as raised:
        work()
    return raised.value.code


# -- configs


def test_numbers_within_their_bounds_are_allowed() -> None:
    check = whole(-1, 5)
    allowed = [
        text for text in ("-2", "-1", "0", "5", "6", "", "-", "x", "1.5", "٣") if check(text)
    ]
    assert allowed == ["-1", "0", "5"]
    allowed = [text for text in ("-0.1", "0", "0.5", "1", "1.1", "x", "nan") if fraction(text)]
    assert allowed == ["0", "0.5", "1"]
    assert some_of("a", "b")("a,b") and not some_of("a", "b")("a,c")


def test_policies_are_shown_as_configs_where_they_differ() -> None:
    said = dict(policies_of({}))
    policies: Any = {
        RETENTION: said[RETENTION],
        COMPACTION_DELETE_RETENTION: said[COMPACTION_DELETE_RETENTION],
        MAX_MESSAGE_SIZE: said[MAX_MESSAGE_SIZE] or 0,
        COMPACTION_THRESHOLD: 0,
    }
    assert configs_of(policies, {}) == {}
    for delete_s, shown in ((0, "0"), (2, "2000"), (-1, str(2**63 - 1))):
        found = configs_of(policies | {COMPACTION_DELETE_RETENTION: delete_s}, {})
        assert found == {"delete.retention.ms": shown}
    for minutes, size_mb, times in ((0, 0, ("0", "0")), (-1, -1, ("-1", "-1")), (2, 3, None)):
        kept = {"retentionTimeInMinutes": minutes, "retentionSizeInMB": size_mb}
        found = configs_of(policies | {RETENTION: kept}, {"retention.ms": "60000"})
        shown_all = (found["retention.ms"], found["retention.bytes"])
        assert shown_all == (times or ("120000", str(3 * 1024**2)))


# -- batches and entries


def batch(*values: bytes, **fields: Any) -> bytes:
    records = [Record(at, 0, None, value) for at, value in enumerate(values)]
    return build_batch(at_once(write_records(records)), len(values), len(values) - 1, **fields)


def test_a_copy_of_a_stored_batch_has_the_offset_of_its_place() -> None:
    data = batch(b"a", b"b")
    entry = kafka_entry(data, header_of(data), 100, 0, 7)
    for offset in (100, 300):
        found = stored_batch(Placed(1, entry, 2, offset))
        assert found is not None and header_of(found).base_offset == offset
    assert stored_batch(Placed(1, entry, 3, 100)) is None


class Chunks:
    """A ledger of entries that are read one by one."""

    def __init__(self, *entries: bytes) -> None:
        self.entries = entries

    def previous_position(self, position: Position) -> Position:
        return Position(position.ledger_id, position.entry_id - 1)

    def read_cached(self, position: Position, *_: object) -> Any:
        return SimpleNamespace(entries=[self.entries[position.entry_id]])


def chunk(number: int, payload: bytes, uuid: str = "u", producer: str = "p") -> bytes:
    metadata = pb.MessageMetadata(
        producer_name=producer, sequence_id=1, publish_time=1, uuid=uuid, chunk_id=number
    )
    metadata.num_chunks_from_msg = 3
    return build_entry(metadata, payload)


def joined(*entries: bytes) -> bytes | None:
    metadata, start = split_entry(entries[-1])
    ledger: Any = Chunks(*entries)
    last = Position(1, len(entries) - 1)
    found = asyncio.run(whole_message(ledger, last, metadata, entries[-1][start:]))
    if found is None:
        return None
    metadata, start = split_entry(found.entry)
    assert not metadata.HasField("chunk_id") and not metadata.HasField("uuid")
    assert len(found.earlier) == 2
    return found.entry[start:]


def test_a_message_is_whole_if_all_of_its_chunks_are_there() -> None:
    others = (chunk(0, b"x", uuid="v"), chunk(1, b"x", producer="q"), b"no entry")
    first, second, last = chunk(0, b"a"), chunk(1, b"b"), chunk(2, b"c")
    assert joined(first, second, last) == b"abc"
    assert joined(first, *others, second, *others, last) == b"abc"
    assert joined(*others, second, last) is None
    assert joined(first, *others, last) is None


def test_records_have_their_own_times_unless_their_topic_says_otherwise() -> None:
    stored: list[Any] = [None]
    metadata = SimpleNamespace(get=lambda key: stored[0])
    topic: Any = SimpleNamespace(metadata=metadata, name=TopicName.parse("orders"))
    times = AppendTime(topic)
    assert not times.is_on
    for said, is_on in (("LogAppendTime", True), ("CreateTime", False)):
        properties = {"kafka.message.timestamp.type": said}
        stored[0] = SimpleNamespace(value=json.dumps({"properties": properties}))
        assert times.is_on is is_on
    stored[0] = SimpleNamespace(value="{}")
    assert not times.is_on


def test_a_batch_that_the_topics_policies_refuse_is_refused() -> None:
    log: Any = PartitionLog.__new__(PartitionLog)
    refusals: list[Any] = [None]
    gate = SimpleNamespace(pieces=lambda entries: [(0, 1, each) for each in refusals])
    log.topic = SimpleNamespace(gate=gate)
    log._check(b"entry")
    refusals.append(ServiceNotReady("it moves"))
    with pytest.raises(ServiceNotReady):
        log._check(b"entry")
    refusals[1] = NotAllowed("it is too large")
    with pytest.raises(TooManyBytes, match="too large"):
        log._check(b"entry")
    log.topic.gate = None
    log._check(b"entry")


def test_who_was_refused_a_batch_begins_with_it() -> None:
    refused, place = RefusedBatches(), ("a", 0)

    def of(sequence: int, producer_id: int = 7) -> bytes:
        fields = {"producer_epoch": 0, "base_sequence": sequence}
        return batch(b"x", producer_id=producer_id, **fields)

    def begin(sequence: int, where: tuple[str, int] = place, producer_id: int = 7) -> None:
        refused.check_beginning(where, header_of(of(sequence, producer_id)))

    refused.add(place, of(3))
    refused.add(place, of(4))
    begin(3)
    begin(4, ("a", 1))
    begin(4, producer_id=8)
    with pytest.raises(OutOfOrderSequence):
        begin(4)
    refused.stored(place, header_of(of(3)))
    begin(4)
    refused.add(place, b"short")
    refused.add(place, batch(b"x"))
    for producer_id in range(10, 1010):
        refused.add(place, of(3, producer_id))
    with pytest.raises(OutOfOrderSequence):
        begin(4, producer_id=10)
    refused.add(place, of(3, 2000))
    begin(4, producer_id=10)  # the oldest is forgotten
    with pytest.raises(OutOfOrderSequence):
        begin(4, producer_id=11)


# -- connections


def test_a_response_counts_until_its_connection_fetches_again() -> None:
    room, first, second = FetchedBytes(1_000_000), Session(1), Session(2)
    assert room.take(first, 900_000) == 900_000
    assert room.take(second, 900_000) == 100_000
    room.used(first, 500_000)
    assert room.taken_bytes == 600_000
    assert room.take(second, 900_000) == 500_000
    assert room.take(first, 900_000) == 500_000
    assert room.take(Session(3), 900_000) == 64 * 1024
    for each in (first, second):
        assert len(each.at_end) == 1
        for at_end in each.at_end:
            at_end()
    assert room.taken_bytes == 64 * 1024


def test_a_session_is_shown_by_its_address_and_the_clients_name() -> None:
    session = Session(1, "127.0.0.1:9")
    assert str(session) == "127.0.0.1:9"
    session.client_id = "theirs"
    assert str(session) == "127.0.0.1:9 (theirs)"


class Budget:
    """Gives room when a test says so."""

    def __init__(self) -> None:
        self.has_room, self.taken, self.waiting = True, 0, []

    def take(self, size: int, granted: Callable[[], None], machine: str) -> bool:
        if self.has_room:
            self.taken += size
        else:
            self.waiting.append(granted)
        return self.has_room

    def give_back(self, size: int, granted: Callable[[], None], machine: str) -> None:
        self.taken -= size


class Reading:
    """A transport that may be read or not."""

    def __init__(self) -> None:
        self.is_read = True

    def is_closing(self) -> bool:
        return False

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 9)

    def resume_reading(self) -> None:
        assert not self.is_read
        self.is_read = True

    def pause_reading(self) -> None:
        assert self.is_read
        self.is_read = False


def intake() -> tuple[Intake, Any, Any, list[int]]:
    budget, transport, came = Budget(), Reading(), list[int]()
    reader = FrameReader(1 << 30, lambda key: 1 << 30)
    opened: Any = Intake(reader, budget, lambda: came.append(1))  # type: ignore[arg-type]
    opened.open(transport)
    return opened, budget, transport, came


def framed(size: int) -> bytes:
    return size.to_bytes(4, "big") + bytes(size)


def test_a_large_request_is_read_when_there_is_room_for_it() -> None:
    received, budget, transport, came = intake()
    whole_frame = framed(2 * FREE_BYTES)
    budget.has_room = False
    received.receive(whole_frame[:100])
    assert not transport.is_read
    for _ in range(10):
        assert not received.is_stuck()  # it was not read
    budget.waiting.pop()()
    assert transport.is_read
    received.receive(whole_frame[100:])
    assert len(came) == len(received) == 1
    received.take().release()
    assert len(received) == 0


def test_a_large_request_counts_until_it_is_answered_or_dropped() -> None:
    for answers in (True, False):
        received, budget, _, _ = intake()
        whole_frame = framed(2 * FREE_BYTES)
        received.receive(whole_frame[:100])
        assert budget.taken == len(whole_frame)
        received.receive(whole_frame[100:])
        assert budget.taken == len(whole_frame)
        if answers:
            frame = received.take()
            frame.release()
            frame.release()
        else:
            received.stop()
        assert budget.taken == 0
    received, budget, _, _ = intake()
    received.receive(framed(2 * FREE_BYTES)[:100])
    received.stop()
    assert budget.taken == 0


def test_so_many_requests_wait_and_no_more_are_read() -> None:
    received, _, transport, _ = intake()
    for _ in range(MAX_QUEUED - 1):
        received.receive(framed(10))
    assert transport.is_read
    received.receive(framed(10))
    assert not transport.is_read
    received.take()
    assert transport.is_read
    received.receive(framed(1024 * 1024 + 1)[: 1024 * 1024 - 630])
    assert transport.is_read


def test_a_request_that_stays_incomplete_is_stuck_at_the_third_look() -> None:
    received, _, _, _ = intake()
    assert not any(received.is_stuck() for _ in range(5))
    received.receive(framed(10)[:6])
    assert [received.is_stuck() for _ in range(3)] == [False, False, True]
    received.receive(bytes(8))
    assert not any(received.is_stuck() for _ in range(5))


# -- nodes of a cluster


class Members:
    """A cluster of brokers; who serves a partition is what a test says."""

    broker_id = "b1"

    def __init__(self) -> None:
        self.addresses = {
            "b1": ("kafka://one:9092", None),
            "b2": ("kafka://two:9092", "kafka+ssl://two:9093"),
        }
        self.owner: Any = None
        self.ownership = self

    def kafka_addresses(self) -> Any:
        return dict(self.addresses)

    def id_of(self, address: Any) -> str | None:
        return address if address in self.addresses else None

    async def owner_of(self, partition: TopicName) -> Any:
        if isinstance(self.owner, Exception):
            raise self.owner
        return self.owner


def test_a_client_is_told_who_leads_or_why_nobody_does() -> None:
    members = Members()
    nodes, topic = SharedNodes(members), TopicName.parse("orders")  # type: ignore[arg-type]
    plain, encrypted = Session(1), Session(2, is_encrypted=True)
    numbers = node_numbers(members.addresses)
    assert nodes.own_id == numbers["b1"]

    def leader(session: Session = plain) -> tuple[int, str, int]:
        found = asyncio.run(nodes.leader_of(topic, session))
        return found.id, found.host, found.port

    assert leader() == (numbers["b1"], "one", 9092)
    assert error_of(lambda: leader(encrypted)) is ErrorCode.LISTENER_NOT_FOUND
    members.owner = "b2"
    assert leader() == (numbers["b2"], "two", 9092)
    assert leader(encrypted) == (numbers["b2"], "two", 9093)
    members.owner = "gone"
    assert error_of(leader) is ErrorCode.LEADER_NOT_AVAILABLE
    members.owner = ServiceNotReady("it moves")
    assert error_of(leader) is ErrorCode.LEADER_NOT_AVAILABLE
    assert {each.host for each in nodes.seen_by(plain)} == {"one", "two"}
    assert [each.host for each in nodes.seen_by(encrypted)] == ["two"]
    del members.addresses["b1"]
    assert nodes.own_id == NO_NODE
    assert [each.host for each in nodes.seen_by(plain)] == ["two"]


def test_brokers_whose_numbers_would_be_equal_have_different_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pybroker.kafka.shared_nodes.crc32", lambda data: 2**31 - 1)
    assert sorted(node_numbers(["a", "b", "c"]).values()) == [0, 1, 2**31 - 1]
