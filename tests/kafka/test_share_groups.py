"""Share groups (KIP-932) over the wire: a Shared subscription for Kafka's clients."""

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
from kafka_produce import batch, create, produce
from kafka_words import add_partition, end, inited
from raw_kafka import RawKafka
from share_words import (
    ENDS,
    LEAVES,
    SHARE_DESCRIBE,
    ShareMember,
    from_the_beginning,
    set_config,
    share_beat,
)

from pybroker.base.names import TopicName
from pybroker.kafka.errors import ErrorCode
from pybroker.kafka.groups import share_group
from pybroker.kafka.records.batch import TRANSACTIONAL
from pybroker.kafka.shares.acquired import AckType, AcquiredEntry
from pybroker.testing import RunningBroker, broker

SHARE_OFFSETS, ALTER_SHARE_OFFSETS, DELETE_SHARE_OFFSETS = 90, 91, 92
DELETE_GROUPS, DELETE_TOPICS, LIST_GROUPS = 42, 20, 16
ACCEPT, RELEASE, REJECT, RENEW = AckType.ACCEPT, AckType.RELEASE, AckType.REJECT, AckType.RENEW


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


def filled(raw: RawKafka, topic: str, *batches: list[bytes]) -> None:
    """The topic, and a share group of its name that begins with it."""
    create(raw, topic)
    from_the_beginning(raw, topic)
    for values in batches:
        assert produce(raw, topic, batch(*values))[0] == 0


def test_a_member_gets_records_with_their_offsets_and_accepts_them(raw: RawKafka) -> None:
    filled(raw, "plain", [b"a", b"b"], [b"c"])
    member = ShareMember(raw, "plain", "A", "plain")
    assert member.fetch().values == {0: b"a", 1: b"b", 2: b"c"}
    assert member.lock_ms == 30_000
    assert member.fetch((0, 2, [ACCEPT])).ack_error == 0
    member.leave()
    assert ShareMember(raw, "plain", "B", "plain").fetch().values == {}


def test_what_a_member_holds_takes_no_memory_for_its_content(raw: RawKafka) -> None:
    filled(raw, "held", [b"x" * 100_000], [b"y"])
    assert len(ShareMember(raw, "held", "A", "held").fetch().values) == 2
    held = [each for each in gc.get_objects() if isinstance(each, AcquiredEntry)]
    assert held
    assert not any(each.batch for each in held)


def test_what_is_released_comes_again_and_is_counted(raw: RawKafka) -> None:
    filled(raw, "released", [b"a"], [b"b"], [b"c"])
    member = ShareMember(raw, "released", "A", "released")
    member.fetch()
    assert member.say((0, 0, [ACCEPT]), (1, 2, [RELEASE, REJECT])).ack_error == 0
    again = member.fetch()
    assert (again.values, again.counts) == ({1: b"b"}, {1: 2})


def test_one_record_of_a_batch_comes_again_when_all_are_decided(raw: RawKafka) -> None:
    filled(raw, "part", [b"a", b"b", b"c"])
    member = ShareMember(raw, "part", "A", "part")
    member.fetch()
    member.say((1, 1, [RELEASE]))
    assert member.fetch(wait_ms=0).values == {}, "two records of the batch are in use"
    assert member.fetch((0, 0, [ACCEPT]), (2, 2, [ACCEPT])).values == {1: b"b"}


def test_a_batch_is_given_up_after_five_deliveries(raw: RawKafka) -> None:
    filled(raw, "poison", [b"bad"], [b"good"])
    member = ShareMember(raw, "poison", "A", "poison")
    for count in range(1, 6):
        got = member.fetch()
        assert got.counts[0] == count
        member.say((0, 0, [RELEASE]))
        if 1 in got.values:
            member.say((1, 1, [ACCEPT]))
    assert member.fetch().values == {}


def test_two_members_share_a_partition(raw: RawKafka, other: RawKafka) -> None:
    filled(raw, "both", *([b"%d" % each] for each in range(10)))
    one, two = ShareMember(raw, "both", "A", "both"), ShareMember(other, "both", "B", "both")
    mine, yours = one.fetch(records=4), two.fetch(records=500)
    assert len(mine.values) == 4
    assert {**mine.values, **yours.values} == {each: b"%d" % each for each in range(10)}
    assert not mine.values.keys() & yours.values.keys()


def test_what_a_member_held_goes_to_another_when_its_connection_ends(
    running: RunningBroker, raw: RawKafka
) -> None:
    filled(raw, "dies", [b"a"], [b"b"])
    with RawKafka(running.kafka_bootstrap) as dying:
        assert len(ShareMember(dying, "dies", "A", "dies").fetch().values) == 2
    got = ShareMember(raw, "dies", "B", "dies").fetch(wait_ms=5_000)
    assert got.counts == {0: 2, 1: 2}, "its client may have died of them"


def test_a_lock_that_runs_out_gives_the_record_to_another(
    running: RunningBroker, raw: RawKafka, other: RawKafka
) -> None:
    filled(raw, "locks", [b"a"])
    late, next_one = (
        ShareMember(raw, "locks", "A", "locks"),
        ShareMember(other, "locks", "B", "locks"),
    )
    late.fetch()
    running.clock.advance(20)
    assert late.say((0, 0, [RENEW]), is_renew_ack=True).ack_error == 0
    running.clock.advance(20)
    assert next_one.fetch(wait_ms=0).values == {}, "the lock began anew"
    running.clock.advance(15)
    assert next_one.fetch().counts == {0: 2}
    assert late.say((0, 0, [ACCEPT])).ack_error == ErrorCode.INVALID_RECORD_STATE


def test_acceptances_survive_a_crash(tmp_path: Path) -> None:
    with broker(data_dir=tmp_path, kafka=True) as running:
        with RawKafka(running.kafka_bootstrap) as raw:
            filled(raw, "kept", [b"a", b"b"], [b"c"])
            member = ShareMember(raw, "kept", "A", "kept")
            member.fetch()
            assert member.say((0, 0, [ACCEPT]), (2, 2, [ACCEPT])).ack_error == 0
        running.kill_and_restart()
        with RawKafka(running.kafka_bootstrap) as raw:
            assert ShareMember(raw, "kept", "B", "kept").fetch().values == {1: b"b"}


def test_no_more_records_than_asked_for_where_the_client_says_so(raw: RawKafka) -> None:
    filled(raw, "strict", [b"a", b"b", b"c"])
    member = ShareMember(raw, "strict", "A", "strict")
    asked = {"records": 2, "share_acquire_mode": 1}
    assert member.fetch(**asked).values == {0: b"a", 1: b"b"}
    assert member.fetch((0, 1, [ACCEPT]), **asked).values == {2: b"c"}
    assert member.fetch((2, 2, [RELEASE]), **asked).values == {2: b"c"}


def test_messages_of_pulsars_clients_are_shared_too(running: RunningBroker, raw: RawKafka) -> None:
    create(raw, "pulsars")
    from_the_beginning(raw, "pulsars")
    client = pulsar.Client(running.service_url)
    producer = client.create_producer("pulsars")
    for content in (b"one", b"two"):
        producer.send(content)
    member = ShareMember(raw, "pulsars", "A", "pulsars")
    assert member.fetch().values == {0: b"one", 1: b"two"}
    member.say((0, 0, [ACCEPT]), (1, 1, [RELEASE]))
    member.leave()
    shared = pulsar.ConsumerType.Shared
    consumer = client.subscribe("pulsars", "pulsars", consumer_type=shared)
    assert consumer.receive(10_000).data() == b"two", "one subscription for both"
    client.close()


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ((0, 5, [ACCEPT]), ErrorCode.INVALID_RECORD_STATE),
        ((0, 2**62, [ACCEPT]), ErrorCode.INVALID_RECORD_STATE),
        ((-1, 0, [ACCEPT]), ErrorCode.INVALID_REQUEST),
        ((1, 0, [ACCEPT]), ErrorCode.INVALID_REQUEST),
        ((0, 1, [ACCEPT, ACCEPT, ACCEPT]), ErrorCode.INVALID_REQUEST),
        ((0, 1, []), ErrorCode.INVALID_REQUEST),
        ((0, 1, [ACCEPT, 9]), ErrorCode.INVALID_REQUEST),
        ((0, 1, [-1]), ErrorCode.INVALID_REQUEST),
        ((0, 1, [RENEW]), ErrorCode.INVALID_REQUEST),
    ],
)
def test_acknowledgements_that_make_no_sense_change_nothing(
    raw: RawKafka, said: tuple[int, int, list[AckType]], code: ErrorCode
) -> None:
    group = f"senseless-{said[0]}-{said[1]}-{len(said[2])}-{code}-{said[2][-1:]}".replace(" ", "")
    group = "".join(each if each.isalnum() else "-" for each in group)
    filled(raw, group, [b"a", b"b"])
    member = ShareMember(raw, group, "A", group)
    member.fetch()
    assert member.say(said).ack_error == code
    assert member.say((0, 1, [ACCEPT])).ack_error == 0


def test_a_session_has_its_epochs(raw: RawKafka) -> None:
    filled(raw, "epochs", [b"a"])
    member = ShareMember(raw, "epochs", "A", "epochs")
    member.epoch = 1
    assert member.ask_fetch()["error_code"] == ErrorCode.SHARE_SESSION_NOT_FOUND
    member.epoch = 0
    assert member.fetch().values == {0: b"a"}
    member.epoch = 7
    assert member.ask_fetch()["error_code"] == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    member.epoch = 0
    assert member.ask_fetch((0, 0, [ACCEPT]))["error_code"] == ErrorCode.INVALID_REQUEST
    member.epoch = ENDS
    assert member.fetch((0, 0, [ACCEPT])).ack_error == 0
    member.epoch = ENDS
    assert member.ask_fetch()["error_code"] == ErrorCode.SHARE_SESSION_NOT_FOUND


def test_members_join_share_partitions_and_leave(raw: RawKafka) -> None:
    create(raw, "joined")
    first = share_beat(raw, "joined", "A", 0, ["joined"])
    assert len(first["assignment"]["topic_partitions"]) == 1
    second = share_beat(raw, "joined", "B", 0, ["joined"])
    assert second["assignment"] == first["assignment"], "both have the only partition"
    assert second["member_epoch"] > first["member_epoch"]
    fenced = share_beat(raw, "joined", "A", 99)
    assert fenced["error_code"] == ErrorCode.FENCED_MEMBER_EPOCH
    (group,) = raw.ask(SHARE_DESCRIBE, 1, {"group_ids": ["joined"]})["groups"]
    assert group["group_state"] == "Stable"
    assert [each["member_id"] for each in group["members"]] == ["A", "B"]
    for member in ("A", "B"):
        assert share_beat(raw, "joined", member, LEAVES)["member_epoch"] == LEAVES
    (group,) = raw.ask(SHARE_DESCRIBE, 1, {"group_ids": ["joined"]})["groups"]
    assert (group["group_state"], group["members"]) == ("Empty", [])


def test_a_group_is_of_one_kind_at_a_time(raw: RawKafka) -> None:
    create(raw, "kinds")
    share_beat(raw, "kinds", "A", 0, ["kinds"])
    asked = {"group_id": "kinds", "member_id": "C", "member_epoch": 0}
    asked |= {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": ["kinds"]}
    refused = raw.ask(68, 1, asked | {"topic_partitions": []})
    assert refused["error_code"] == ErrorCode.GROUP_ID_NOT_FOUND


def test_configs_of_groups_are_checked_and_shown(raw: RawKafka) -> None:
    assert set_config(raw, "conf", "share.record.lock.duration.ms", "1") == ErrorCode.INVALID_CONFIG
    assert set_config(raw, "conf", "no.such", "1") == ErrorCode.INVALID_CONFIG
    assert set_config(raw, "conf", "share.record.lock.duration.ms", "20000") == 0
    asked = {"resource_type": 32, "resource_name": "conf", "configuration_keys": None}
    (shown,) = raw.ask(32, 4, {"resources": [asked]})["results"]
    values = {each["name"]: each["value"] for each in shown["configs"]}
    assert values["share.record.lock.duration.ms"] == "20000"
    assert values["share.auto.offset.reset"] == "latest"


def described(raw: RawKafka, group: str, topics: list[str] | None = None) -> dict[str, Any]:
    """Of each topic's first partition: where the group is, and its lag."""
    asked: dict[str, Any] = {"group_id": group, "topics": topics}
    (found,) = raw.ask(SHARE_OFFSETS, 1, {"groups": [asked]})["groups"]
    assert found["error_code"] == 0, found
    return {
        each["topic_name"]: (
            each["partitions"][0]["start_offset"],
            each["partitions"][0]["lag"],
        )
        for each in found["topics"]
    }


def subscriptions(running: RunningBroker, topic: str) -> list[str]:
    async def found(started: Any) -> list[str]:
        served = await started.topics.served(TopicName.parse(f"{topic}-partition-0"))
        return list(served.subscriptions)

    return running.call(found)


def test_a_groups_offsets_are_shown_moved_and_deleted(
    running: RunningBroker, raw: RawKafka
) -> None:
    filled(raw, "offsets", [b"a", b"b", b"c"], [b"d"])
    share_beat(raw, "offsets", "A", 0, ["offsets"])
    member = ShareMember(raw, "offsets", "A", "offsets")
    member.fetch()
    assert described(raw, "offsets") == {"offsets": (0, 4)}
    member.say((0, 2, [ACCEPT]))
    assert described(raw, "offsets") == {"offsets": (3, 1)}
    moves = {"topic_name": "offsets", "partitions": [{"partition_index": 0, "start_offset": 1}]}
    asked = {"group_id": "offsets", "topics": [moves]}
    assert raw.ask(ALTER_SHARE_OFFSETS, 0, asked)["error_code"] == ErrorCode.NON_EMPTY_GROUP
    member.leave()
    share_beat(raw, "offsets", "A", LEAVES)
    assert (
        raw.ask(ALTER_SHARE_OFFSETS, 0, asked)["responses"][0]["partitions"][0]["error_code"] == 0
    )
    again = ShareMember(raw, "offsets", "B", "offsets")
    assert again.fetch().texts == ["b", "c", "d"]
    again.leave()
    forget = {"group_id": "offsets", "topics": [{"topic_name": "offsets"}]}
    assert raw.ask(DELETE_SHARE_OFFSETS, 0, forget)["responses"][0]["error_code"] == 0
    assert described(raw, "offsets") == {}
    moved = raw.ask(ALTER_SHARE_OFFSETS, 0, asked)["responses"][0]["partitions"][0]
    assert moved["error_code"] == 0
    assert described(raw, "offsets") == {"offsets": (0, -1)}, "in the middle of its batch"
    assert raw.ask(DELETE_GROUPS, 2, {"groups_names": ["offsets"]})["results"][0]["error_code"] == 0
    assert "offsets" not in subscriptions(running, "offsets"), "nothing holds messages back"
    unknown = raw.ask(DELETE_SHARE_OFFSETS, 0, forget | {"group_id": "nobody"})
    assert unknown["error_code"] == ErrorCode.GROUP_ID_NOT_FOUND


def test_open_and_aborted_messages_are_hidden(raw: RawKafka) -> None:
    filled(raw, "hidden", [b"a"])
    producers = [inited(raw, f"hidden-{each}") for each in range(2)]
    for each, producer in enumerate(producers):
        add_partition(raw, producer, "hidden")
        fields = {"producer_id": producer.producer_id, "producer_epoch": producer.epoch}
        sent = batch(b"open", **fields, base_sequence=0, attributes=TRANSACTIONAL)
        assert produce(raw, "hidden", sent, transactional_id=f"hidden-{each}")[0] == 0
    member = ShareMember(raw, "hidden", "A", "hidden")
    assert member.fetch().texts == ["a"]
    end(raw, producers[0], committed=False)
    end(raw, producers[1], committed=True)
    assert member.fetch((0, 0, [ACCEPT])).texts == ["open"], "the other one was aborted"


def test_a_message_in_chunks_is_one_record(running: RunningBroker, raw: RawKafka) -> None:
    create(raw, "chunks")
    from_the_beginning(raw, "chunks")
    client = pulsar.Client(running.service_url)
    producer = client.create_producer("chunks", chunking_enabled=True, batching_enabled=False)
    content = bytes(range(256)) * (6 << 12)
    producer.send(content)
    member = ShareMember(raw, "chunks", "A", "chunks")
    got = member.fetch(wait_ms=5_000)
    assert list(got.values.values()) == [content]
    (offset,) = got.values
    assert member.say((offset, offset, [ACCEPT])).ack_error == 0
    member.leave()
    assert ShareMember(raw, "chunks", "B", "chunks").fetch().values == {}
    client.close()


def join_topics(raw: RawKafka, group: str, member: str, topics: list[str]) -> int:
    code: int = share_beat(raw, group, member, 0, topics)["error_code"]
    return code


def test_topics_that_were_deleted_make_room_for_others(
    running: RunningBroker, raw: RawKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share_group, "_MOST_TOPICS", 2)
    names = [f"room-{each}" for each in range(3)]
    for each in names:
        create(raw, each)
    assert join_topics(raw, "room", "A", names[:2]) == 0
    share_beat(raw, "room", "A", LEAVES)
    assert join_topics(raw, "room", "A", names[2:]) == ErrorCode.INVALID_REQUEST
    raw.ask(DELETE_TOPICS, 5, {"topic_names": names[:1], "timeout_ms": 9_000})
    running.clock.advance(2)
    assert join_topics(raw, "room", "A", names[2:]) == 0
    assert sorted(described(raw, "room")) == names[1:]


def test_offsets_that_were_deleted_make_room_for_other_topics(
    raw: RawKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share_group, "_MOST_TOPICS", 1)
    for each in ("former", "later"):
        create(raw, each)
    assert join_topics(raw, "replaced", "A", ["former"]) == 0
    share_beat(raw, "replaced", "A", LEAVES)
    assert join_topics(raw, "replaced", "A", ["later"]) == ErrorCode.INVALID_REQUEST
    forget = {"group_id": "replaced", "topics": [{"topic_name": "former"}]}
    assert raw.ask(DELETE_SHARE_OFFSETS, 0, forget)["responses"][0]["error_code"] == 0
    assert join_topics(raw, "replaced", "A", ["later"]) == 0
    assert sorted(described(raw, "replaced")) == ["later"]


def test_a_share_group_stays_while_it_may_have_positions() -> None:
    with (
        broker(kafka=True, kafka_offsets_retention_minutes=60) as running,
        RawKafka(running.kafka_bootstrap) as raw,
    ):
        filled(raw, "lasting", [b"a"])
        for group in ("lasting", "nothing"):
            share_beat(raw, group, "A", 0, [group])
            share_beat(raw, group, "A", LEAVES)
        running.clock.advance("2h")
        answer = raw.ask(LIST_GROUPS, 5, {"states_filter": [], "types_filter": []})
        assert [each["group_id"] for each in answer["groups"]] == ["lasting"]


@pytest.mark.parametrize("deleted_first", [True, False])
def test_a_share_group_expires_once_its_topics_are_deleted(deleted_first: bool) -> None:
    with (
        broker(kafka=True, kafka_offsets_retention_minutes=60) as running,
        RawKafka(running.kafka_bootstrap) as raw,
    ):
        for topic in ("former", "gone"):
            filled(raw, topic, [b"a"])
        epoch = share_beat(raw, "group", "A", 0, ["former", "gone"])["member_epoch"]
        assert not share_beat(raw, "group", "A", epoch)["error_code"]
        if not deleted_first:
            share_beat(raw, "group", "A", LEAVES)
        names = {"topic_names": ["former", "gone"], "timeout_ms": 9_000}
        raw.ask(DELETE_TOPICS, 5, names)
        if deleted_first:
            share_beat(raw, "group", "A", LEAVES)
        running.clock.advance("2h")
        answer = raw.ask(LIST_GROUPS, 5, {"states_filter": [], "types_filter": []})
        assert answer["groups"] == []


def test_a_topic_that_is_created_again_is_known_to_its_group_again(
    running: RunningBroker, raw: RawKafka
) -> None:
    create(raw, "again")
    epoch = share_beat(raw, "again", "A", 0, ["again"])["member_epoch"]
    raw.ask(DELETE_TOPICS, 5, {"topic_names": ["again"], "timeout_ms": 9_000})
    create(raw, "again")
    running.clock.advance(2)
    share_beat(raw, "again", "A", epoch)
    share_beat(raw, "again", "A", LEAVES)
    assert sorted(described(raw, "again")) == ["again"]
