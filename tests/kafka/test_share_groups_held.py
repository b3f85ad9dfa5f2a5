"""Share groups: what a member holds up, and what it must not."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
from kafka_produce import batch, create, produce
from kafka_words import add_partition, inited
from raw_kafka import CLIENT_ID, RawKafka
from share_words import (
    LEAVES,
    SHARE_DESCRIBE,
    SHARE_FETCH,
    ShareMember,
    from_the_beginning,
    set_config,
    share_beat,
    topic_id,
)

from managed_ledger.errors import ManagedLedgerError
from pybroker.kafka.conversion.converted import FOR_PULSAR
from pybroker.kafka.errors import ErrorCode
from pybroker.kafka.records.batch import TRANSACTIONAL
from pybroker.kafka.shares.acquired import AckType
from pybroker.kafka.shares.share_consumer import Arrived, ShareConsumer
from pybroker.kafka.topic_ids import TopicIds
from pybroker.testing import RunningBroker, broker

ACCEPT, RELEASE = AckType.ACCEPT, AckType.RELEASE
PRODUCE, CREATE_TOPICS, ALTER_SHARE_OFFSETS = 0, 19, 91
ONE_RECORD = {"records": 1, "share_acquire_mode": 1}  # no more than that. Source: KIP-1206


@pytest.fixture(scope="module")
def running() -> Iterator[RunningBroker]:
    with broker(kafka=True) as started:
        yield started


@pytest.fixture
def raw(running: RunningBroker) -> Iterator[RawKafka]:
    with RawKafka(running.kafka_bootstrap) as connected:
        yield connected


@pytest.fixture
def other(running: RunningBroker) -> Iterator[RawKafka]:
    """Another client."""
    with RawKafka(running.kafka_bootstrap) as connected:
        yield connected


def filled(raw: RawKafka, topic: str, *values: bytes) -> None:
    """The topic with one batch, and a share group of its name that begins with it."""
    create(raw, topic)
    from_the_beginning(raw, topic)
    assert produce(raw, topic, batch(*values))[0] == 0


def numbers(count: int) -> list[bytes]:
    return [b"%d" % each for each in range(count)]


def one_record_each(raw: RawKafka, topic: str, partitions: int) -> None:
    asked = {"name": topic, "num_partitions": partitions, "replication_factor": 1}
    raw.ask(CREATE_TOPICS, 7, {"topics": [asked], "timeout_ms": 10_000})
    from_the_beginning(raw, topic)
    data = [{"index": each, "records": batch(b"x")} for each in range(partitions)]
    body = {"acks": -1, "timeout_ms": 10_000}
    raw.ask(PRODUCE, 9, body | {"topic_data": [{"name": topic, "partition_data": data}]})


def fetched_of(
    member: ShareMember, partitions: int, records: int, wait_ms: int = 200, **fields: Any
) -> set[int]:
    """The partitions of which there are records."""
    asked = [{"partition_index": each} for each in range(partitions)]
    body = {"group_id": member.group, "member_id": member.member, "min_bytes": 1}
    body |= {"share_session_epoch": member.epoch, "max_bytes": 1 << 20, "max_wait_ms": wait_ms}
    body |= {"max_records": records, "batch_size": records, **fields}
    topics = [{"topic_id": member.topic_id, "partitions": asked}]
    answer = member.raw.ask(SHARE_FETCH, 2, body | {"topics": topics})
    assert answer["error_code"] == 0, answer
    member.epoch += 1
    found = [each for topic in answer["responses"] for each in topic["partitions"]]
    return {each["partition_index"] for each in found if each["acquired_records"]}


def test_records_that_were_not_handed_out_go_to_another_member_in_time(
    running: RunningBroker, raw: RawKafka, other: RawKafka
) -> None:
    one_record_each(raw, "asked", 4)
    slow, quick = ShareMember(raw, "asked", "A", "asked"), ShareMember(other, "asked", "B", "asked")
    mine = fetched_of(slow, 4, records=1)
    assert len(mine) == 1
    running.clock.advance(31)
    assert fetched_of(quick, 4, records=100) == {0, 1, 2, 3}


def test_records_that_did_not_fit_go_to_another_member_uncounted(
    running: RunningBroker, raw: RawKafka, other: RawKafka
) -> None:
    filled(raw, "fits", b"a" * 1000)
    produce(raw, "fits", batch(b"b" * 1000))
    slow, quick = ShareMember(raw, "fits", "A", "fits"), ShareMember(other, "fits", "B", "fits")
    assert list(slow.fetch(max_bytes=1500).values) == [0]
    assert slow.say((0, 0, [ACCEPT])).ack_error == 0
    running.clock.advance(31)
    assert quick.fetch().counts == {1: 1}


def test_members_that_die_take_no_records_with_them_that_nobody_was_given(
    running: RunningBroker, raw: RawKafka
) -> None:
    filled(raw, "record-limit", *numbers(10))
    seen = set()
    for each in range(12):
        with RawKafka(running.kafka_bootstrap) as connected:
            member = ShareMember(connected, "record-limit", f"member-{each}", "record-limit")
            got = member.fetch(**ONE_RECORD)
            (offset,) = got.values
            seen.add(offset)
            if each % 2:
                assert member.say((offset, offset, [ACCEPT])).ack_error == 0
    rest = ShareMember(raw, "record-limit", "last", "record-limit").fetch()
    assert seen | rest.values.keys() == set(range(10))


def test_a_record_that_kills_each_member_is_given_up_alone(
    running: RunningBroker, raw: RawKafka
) -> None:
    filled(raw, "poisoned", *numbers(3))
    for count in range(1, 6):
        with RawKafka(running.kafka_bootstrap) as connected:
            member = ShareMember(connected, "poisoned", f"member-{count}", "poisoned")
            assert member.fetch(**ONE_RECORD).counts == {0: count}
    last = ShareMember(raw, "poisoned", "last", "poisoned")
    assert last.fetch().counts == {1: 1, 2: 1}
    last.say((1, 2, [RELEASE]))
    assert last.fetch().counts == {1: 2, 2: 2}


def test_a_member_is_told_of_a_failure_at_once_and_then_as_often_as_it_may_wait(
    running: RunningBroker, raw: RawKafka
) -> None:
    """It asks again at once, as long as somebody has the subscription for itself, for instance."""
    filled(raw, "taken", b"a")
    client = pulsar.Client(running.service_url)
    alone = client.subscribe("taken-partition-0", "taken")
    member = ShareMember(raw, "taken", "A", "taken")
    assert member.fetch(wait_ms=30_000).error != 0
    asked_s = time.monotonic()
    assert member.fetch(wait_ms=300).error != 0
    assert time.monotonic() - asked_s >= 0.29
    alone.close()
    assert produce(raw, "taken", batch(b"free"))[0] == 0
    assert member.fetch(wait_ms=30_000).texts == ["free"]
    client.close()


def test_a_partition_that_fails_does_not_keep_others_from_waiting(
    running: RunningBroker, raw: RawKafka, other: RawKafka
) -> None:
    one_record_each(raw, "others", 2)
    member = ShareMember(raw, "others", "A", "others")
    assert fetched_of(member, 3, records=10, wait_ms=30_000) == {0, 1}, "there is no partition 2"
    assert member.say((0, 0, [ACCEPT])).ack_error == 0
    body = {"group_id": "others", "member_id": "A", "share_session_epoch": member.epoch}
    body |= {"max_wait_ms": 30_000, "min_bytes": 1, "max_bytes": 1 << 20, "topics": []}
    raw.send(SHARE_FETCH, 2, body | {"max_records": 10, "batch_size": 10})
    assert produce(other, "others", batch(b"later"))[0] == 0
    (found,) = raw.receive()["responses"]
    assert {0, 2} == {each["partition_index"] for each in found["partitions"]}


def test_nothing_is_converted_for_members_alone_and_all_for_consumers_of_pulsars(
    running: RunningBroker, raw: RawKafka
) -> None:
    filled(raw, "as-stored", b"for a member")
    member, before = ShareMember(raw, "as-stored", "A", "as-stored"), FOR_PULSAR.size_bytes
    assert member.fetch().texts == ["for a member"]
    assert FOR_PULSAR.size_bytes == before
    client = pulsar.Client(running.service_url)
    kind = pulsar.ConsumerType.Shared
    consumer = client.subscribe("as-stored", "as-stored", consumer_type=kind)
    assert produce(raw, "as-stored", batch(b"for a consumer"))[0] == 0
    assert member.say((0, 0, [RELEASE])).ack_error == 0
    found = {consumer.receive(10_000).data() for _ in range(2)}
    assert found == {b"for a member", b"for a consumer"}
    consumer.close()
    assert member.fetch(wait_ms=5_000).texts == ["for a member", "for a consumer"]
    client.close()


def test_a_topic_that_the_broker_does_not_know_yet_is_fetched_when_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with broker(data_dir=tmp_path, kafka=True) as running:
        with RawKafka(running.kafka_bootstrap) as raw:
            filled(raw, "known", b"a")
            known = topic_id(raw, "known")
        running.kill_and_restart()
        with RawKafka(running.kafka_bootstrap) as raw:
            create(raw, "any")
            member = ShareMember(raw, "known", "A", "any")
            member.topic_id = known

            with monkeypatch.context() as patched:  # another client has just had them looked at
                patched.setattr(TopicIds, "may_look", lambda ids, now_s: False)
                assert member.fetch().error == ErrorCode.UNKNOWN_TOPIC_ID
            assert topic_id(raw, "known") == known
            assert fetched_of(member, 0, records=1) == {0}, "its session still has the partition"


def test_a_group_stores_no_topics_that_do_not_exist(running: RunningBroker, raw: RawKafka) -> None:
    create(raw, "exists")
    for each in range(11):
        names = [f"{each}-{index}" for index in range(100)]
        joined = share_beat(raw, "dreams", f"member-{each}", 0, ["exists", *names])
        assert joined["error_code"] == 0, "there is one topic"
        share_beat(raw, "dreams", f"member-{each}", LEAVES)
    (described,) = raw.ask(90, 1, {"groups": [{"group_id": "dreams", "topics": None}]})["groups"]
    assert [each["topic_name"] for each in described["topics"]] == ["exists"]


def test_the_sessions_of_a_connection_have_so_many_partitions_together(raw: RawKafka) -> None:
    create(raw, "places")
    for each, code in ((1, 0), (2, ErrorCode.INVALID_REQUEST)):
        member = ShareMember(raw, "places", f"member-{each}", "places")
        member.topic_id = bytes([each] * 16)
        asked = [{"partition_index": index} for index in range(6_000)]
        topics = [{"topic_id": member.topic_id, "partitions": asked}]
        assert member.ask_fetch(wait_ms=0, topics=topics)["error_code"] == code


def test_what_a_request_says_of_a_partition_in_two_places_is_one_after_the_other(
    raw: RawKafka,
) -> None:
    filled(raw, "twice", b"a", b"b")
    member = ShareMember(raw, "twice", "A", "twice")
    member.fetch()
    said = [
        {"first_offset": each, "last_offset": each, "acknowledge_types": [ACCEPT]}
        for each in range(2)
    ]
    parts = [{"partition_index": 0, "acknowledgement_batches": [each]} for each in said]
    topics = [{"topic_id": member.topic_id, "partitions": parts}]
    assert member.say(topics=topics).ack_error == 0
    member.leave()
    assert ShareMember(raw, "twice", "B", "twice").fetch().values == {}


def test_a_group_that_begins_by_a_reset_has_its_isolation_level(
    running: RunningBroker, raw: RawKafka
) -> None:
    create(raw, "reset")
    assert set_config(raw, "reset", "share.isolation.level", "read_uncommitted") == 0
    share_beat(raw, "reset", "A", 0, ["reset"])
    share_beat(raw, "reset", "A", LEAVES)
    producer = inited(raw, "reset")
    add_partition(raw, producer, "reset")
    fields = {"producer_id": producer.producer_id, "producer_epoch": producer.epoch}
    sent = batch(b"open", **fields, base_sequence=0, attributes=TRANSACTIONAL)
    assert produce(raw, "reset", sent, transactional_id="reset")[0] == 0
    moves = {"topic_name": "reset", "partitions": [{"partition_index": 0, "start_offset": 0}]}
    raw.ask(ALTER_SHARE_OFFSETS, 0, {"group_id": "reset", "topics": [moves]})
    assert ShareMember(raw, "reset", "A", "reset").fetch().texts == ["open"]


def test_an_entry_that_could_not_be_read_is_delivered_again(
    raw: RawKafka, other: RawKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(raw, "unread", b"a")

    async def fails(consumer: ShareConsumer, arrived: Arrived) -> None:
        raise ManagedLedgerError("the disk has an error")

    with monkeypatch.context() as patched:
        patched.setattr(ShareConsumer, "_read", fails)
        assert ShareMember(raw, "unread", "A", "unread").fetch().error != 0
    assert ShareMember(other, "unread", "B", "unread").fetch().counts == {0: 1}


def test_an_acknowledgement_that_is_not_stored_is_told(
    raw: RawKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(raw, "unstored", b"a")
    member = ShareMember(raw, "unstored", "A", "unstored")
    member.fetch()

    async def fails(consumer: ShareConsumer) -> None:
        raise ManagedLedgerError("the disk has an error")

    with monkeypatch.context() as patched:
        patched.setattr(ShareConsumer, "stored", fails)
        assert member.say((0, 0, [ACCEPT])).ack_error == ErrorCode.KAFKA_STORAGE_ERROR


def test_a_partition_that_a_session_forgets_is_not_fetched_any_more(raw: RawKafka) -> None:
    one_record_each(raw, "forgets", 2)
    member = ShareMember(raw, "forgets", "A", "forgets")
    assert fetched_of(member, 2, 10) == {0, 1}
    data = [{"index": each, "records": batch(b"y")} for each in range(2)]
    body = {"acks": -1, "timeout_ms": 10_000}
    raw.ask(PRODUCE, 9, body | {"topic_data": [{"name": "forgets", "partition_data": data}]})
    forgotten = [{"topic_id": member.topic_id, "partitions": [1]}]
    assert fetched_of(member, 0, 10, forgotten_topics_data=forgotten) == {0}


def test_a_share_fetch_counts_for_what_it_has_returned(
    running: RunningBroker, raw: RawKafka
) -> None:
    filled(raw, "counted", b"a")
    assert ShareMember(raw, "counted", "A", "counted").fetch().values
    assert 0 < running.call(_taken_bytes) < 10_000


async def _taken_bytes(started: Any) -> int:
    size: int = started._kafka.services.fetched.taken_bytes
    return size


def test_a_member_is_shown_with_its_client(raw: RawKafka) -> None:
    create(raw, "shown")
    assert share_beat(raw, "shown", "A", 0, ["shown"])["error_code"] == ErrorCode.NONE
    (found,) = raw.ask(SHARE_DESCRIBE, 1, {"group_ids": ["shown"]})["groups"]
    (member,) = found["members"]
    assert (member["client_id"], member["client_host"]) == (CLIENT_ID, "/127.0.0.1")
    assert member["subscribed_topic_names"] == ["shown"]


def test_a_member_of_a_share_group_is_never_static(raw: RawKafka) -> None:
    create(raw, "static")
    assert share_beat(raw, "static", "A", 0, ["static"])["error_code"] == ErrorCode.NONE
    assert share_beat(raw, "static", "A", -2)["error_code"] == ErrorCode.INVALID_REQUEST
    assert share_beat(raw, "static", "", 0, ["static"])["error_code"] == ErrorCode.INVALID_REQUEST
