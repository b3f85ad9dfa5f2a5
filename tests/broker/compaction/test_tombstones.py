"""How long a compacted log keeps the messages that delete a key, and who has to see them."""

from collections.abc import Iterator
from typing import Any

import pytest
from compacting import SOON_MS, compact, pairs, read, send

import pybroker.testing
from managed_ledger.position import EARLIEST, LATEST, Position
from pybroker.base.names import TopicName
from pybroker.broker.compaction.tombstones import PROPERTY, Tombstones, tombstones_of
from pybroker.broker.policies.deleted_keys import COMPACTION_DELETE_RETENTION
from pybroker.client import Client, ConsumerType, InitialPosition, MessageId
from pybroker.testing import RunningBroker

DAY_S = 86_400
OPTIONS: dict[str, Any] = {"initial_position": InitialPosition.Earliest, "is_read_compacted": True}


@pytest.fixture
def broker() -> Iterator[RunningBroker]:
    """Each test has its own, because it advances the clock."""
    with pybroker.testing.broker(
        http=True,
        broker_delete_inactive_topics_enabled=False,
        managed_ledger_max_entries_per_ledger=5,
        managed_ledger_min_ledger_rollover_time_minutes=0,
    ) as running:
        yield running


def view(client: Client, topic: str, view: dict[str, bytes], **options: Any) -> MessageId:
    """What a table view does: follows the topic from where it was. Returns the last id."""
    last = MessageId.earliest
    for message in read(client, topic, **options):
        last = message.message_id()
        if message.data():
            view[message.partition_key()] = message.data()
        else:
            view.pop(message.partition_key(), None)
    return last


def deletes(client: Client, topic: str) -> list[str]:
    return [key for key, value in pairs(read(client, topic)) if not value]


def test_a_reader_that_is_away_meanwhile_learns_what_was_deleted(
    broker: RunningBroker, client: Client, topic: str
) -> None:
    send(client, topic, *((f"k{i}", b"v") for i in range(6)))
    compact(broker, topic)
    known: dict[str, bytes] = {}
    last = view(client, topic, known)
    send(client, topic, ("k0", b""), ("k2", b""), ("k4", b""), ("last", b"y"))
    broker.clock.advance("23h")
    compact(broker, topic)
    broker.clock.advance("23h")
    compact(broker, topic)
    broker.restart()
    with Client(broker.service_url) as again:
        view(again, topic, known, start_message_id=last)
    assert sorted(known) == ["k1", "k3", "k5", "last"]


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Failover])
def test_a_durable_subscription_learns_what_was_deleted_however_late_it_comes(
    broker: RunningBroker, client: Client, topic: str, kind: ConsumerType
) -> None:
    send(client, topic, *((f"k{i}", b"v") for i in range(6)))
    compact(broker, topic)
    consumer = client.subscribe(topic, "s", consumer_type=kind, **OPTIONS)
    for _ in range(6):
        consumer.acknowledge(consumer.receive(timeout_millis=SOON_MS))
    consumer.close()
    send(client, topic, ("k0", b""), ("k2", b""), ("last", b"y"))
    for _ in range(3):
        compact(broker, topic)
        broker.clock.advance("10d")
        broker.trim(topic)
    consumer = client.subscribe(topic, "s", consumer_type=kind, **OPTIONS)
    rest = [consumer.receive(timeout_millis=SOON_MS) for _ in range(3)]
    assert pairs(rest) == [("k0", b""), ("k2", b""), ("last", b"y")]
    consumer.acknowledge_cumulative(rest[0])
    consumer.close()
    compact(broker, topic)
    assert deletes(client, topic) == ["k2"]
    consumer = client.subscribe(topic, "s", consumer_type=kind, **OPTIONS)
    consumer.acknowledge_cumulative(consumer.receive(timeout_millis=SOON_MS))
    consumer.close()
    compact(broker, topic)
    assert deletes(client, topic) == []


def test_nothing_new_need_come_before_old_deletions_are_dropped(
    broker: RunningBroker, client: Client, topic: str
) -> None:
    send(client, topic, ("a", b"1"), ("a", b""), ("b", b"2"))
    compact(broker, topic)
    broker.restart()
    with Client(broker.service_url) as again:
        broker.clock.advance("23h59m")
        compact(broker, topic)
        assert deletes(again, topic) == ["a"]
        broker.clock.advance("1m")
        compact(broker, topic)
        assert pairs(read(again, topic)) == [("b", b"2")]
        assert generation(broker, topic) == 2
        broker.clock.advance("2d")
        compact(broker, topic)
        assert generation(broker, topic) == 2  # there was nothing to drop


def generation(broker: RunningBroker, topic: str) -> int:
    async def look(running: Any) -> int:
        return int((await running.topics.get(topic)).compaction._record.generation)

    return broker.call(look)


def test_an_aborted_deletion_deletes_nothing_and_is_not_kept(
    broker: RunningBroker, client: Client, topic: str
) -> None:
    producer = client.create_producer(topic)
    producer.send(b"1", partition_key="a")
    producer.send(b"2", partition_key="b")
    aborted, committed = client.new_transaction(), client.new_transaction()
    producer.send(b"", partition_key="a", txn=aborted)
    producer.send(b"", partition_key="b", txn=committed)
    aborted.abort()
    committed.commit()
    compact(broker, topic)
    assert pairs(read(client, topic)) == [("a", b"1"), ("b", b"")]
    broker.clock.advance("1d")
    compact(broker, topic)
    assert pairs(read(client, topic)) == [("a", b"1")]


@pytest.mark.parametrize(("retention_s", "left"), [(0, []), (3600, []), (-1, ["a"])])
def test_a_policy_says_how_long(
    broker: RunningBroker, client: Client, topic: str, retention_s: int, left: list[str]
) -> None:
    async def set_policy(running: Any) -> None:
        name, policies = TopicName.parse(topic), running.topics.policies
        await policies.set_for_topic(name, COMPACTION_DELETE_RETENTION, retention_s)

    send(client, topic, ("a", b"1"), ("a", b""), ("b", b"2"))
    broker.call(set_policy)
    compact(broker, topic)
    assert deletes(client, topic) == ([] if retention_s == 0 else ["a"])
    broker.clock.advance("1h")
    compact(broker, topic)
    assert deletes(client, topic) == left


# -- spans


def after_compactions(every_s: int, until_s: int, retention_s: int) -> Tombstones:
    found = Tombstones(0)
    for number, now_s in enumerate(range(0, until_s, every_s), 1):
        drop_to = found.may_drop_to(now_s * 1000, retention_s, [])
        found = found.after(number, Position(0, now_s), drop_to, now_s * 1000, retention_s)
    return found


@pytest.mark.parametrize("every_s", [10, 60, 3600, DAY_S * 2])
def test_deletions_stay_for_the_retention_and_little_longer(every_s: int) -> None:
    """Positions are seconds."""
    found = after_compactions(every_s, 10 * DAY_S, DAY_S)
    last_s = (10 * DAY_S - 1) // every_s * every_s
    now_s = last_s + every_s
    assert len(found.compacted) <= 22
    dropped_s = found.may_drop_to(now_s * 1000, DAY_S, []).entry_id
    assert now_s - DAY_S - DAY_S // 20 - every_s <= dropped_s <= now_s - DAY_S


def test_they_are_stored_with_their_log_only() -> None:
    found = after_compactions(3600, 3 * DAY_S, DAY_S)
    stored = {PROPERTY: found.encode()}
    assert tombstones_of(stored, found.generation) == found
    assert tombstones_of(stored, found.generation + 1) == Tombstones(found.generation + 1)
    assert tombstones_of({}, 0) == Tombstones(0)


def test_a_longer_retention_keeps_what_is_left() -> None:
    found = after_compactions(3600, 3 * DAY_S, DAY_S)
    for retention_s in (DAY_S * 30, -1):
        now_ms = 4 * DAY_S * 1000
        assert found.may_drop_to(now_ms, retention_s, []) == found.dropped_to
        assert found.may_drop_to(now_ms, DAY_S, []) > found.dropped_to
    assert found.may_drop_to(now_ms, 0, []) == LATEST
    assert found.may_drop_to(now_ms, 0, [EARLIEST, LATEST]) == found.dropped_to
