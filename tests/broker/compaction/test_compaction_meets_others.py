"""Compaction beside other events: trimming of consumed ledgers, unloads in the middle of it."""

import asyncio
from typing import Any

import pytest
from compacting import SOON_MS, compact, logs_of, pairs, read, send

from managed_ledger.ledger import ManagedLedger
from managed_ledger.position import Position
from pybroker.base.names import TopicName
from pybroker.broker.compaction import compactor
from pybroker.client import Client, InitialPosition
from pybroker.testing import RunningBroker


@pytest.mark.parametrize("which", [0, 3, 7, 16])
def test_a_seek_by_time_finds_what_only_compaction_has_kept(
    broker: RunningBroker, client: Client, topic: str, which: int
) -> None:
    options = {"initial_position": InitialPosition.Earliest, "is_read_compacted": True}
    consumer = client.subscribe(topic, "s", **options)
    for i in range(17):
        send(client, topic, (f"k{i}", b"%d" % i))
    sent = [consumer.receive(timeout_millis=SOON_MS) for _ in range(17)]
    compact(broker, topic)
    consumer.acknowledge_cumulative(sent[-1])
    consumer.close()
    broker.trim(topic)
    assert len(read(client, topic, compacted=False)) < 5
    consumer = client.subscribe(topic, "s", **options)
    from_ms = sent[which].publish_timestamp()
    consumer.seek(from_ms)
    wanted = [message.data() for message in sent if message.publish_timestamp() >= from_ms]
    assert [consumer.receive(timeout_millis=SOON_MS).data() for _ in wanted] == wanted


@pytest.mark.parametrize("cumulative", [True, False])
@pytest.mark.parametrize("entries", [20, 22])
def test_what_was_acknowledged_before_it_was_trimmed_does_not_come_again(
    broker: RunningBroker, client: Client, topic: str, cumulative: bool, entries: int
) -> None:
    options = {"initial_position": InitialPosition.Earliest, "is_read_compacted": True}
    consumer = client.subscribe(topic, "s", **options)
    send(client, topic, *((f"k{i}", b"%d" % i) for i in range(entries)))
    compact(broker, topic)
    for _ in range(entries):
        last = consumer.receive(timeout_millis=SOON_MS)
        if not cumulative:
            consumer.acknowledge(last)
    if cumulative:
        consumer.acknowledge_cumulative(last)
    consumer.close()
    broker.trim(topic)
    assert len(read(client, topic, compacted=False)) < 5
    consumer = client.subscribe(topic, "s", **options)
    send(client, topic, ("new", b"new"))
    assert consumer.receive(timeout_millis=SOON_MS).data() == b"new"


def test_an_unload_in_the_midst_of_a_compaction_leaves_nothing_of_it(
    broker: RunningBroker, client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(client, topic, ("a", b"1"), ("a", b"2"))

    async def endless(_: Any, log: Any, *__: Any) -> None:
        await log.append_one(b"a beginning")
        await asyncio.Event().wait()

    async def begin(running: Any) -> None:
        (await running.topics.get(topic)).compaction.start()

    with monkeypatch.context() as patch:
        patch.setattr(compactor, "compact", endless)
        broker.call(begin)
        broker.wait_until(lambda: logs_of(broker, topic))
        broker.call(lambda running: running.topics.unload(TopicName.parse(topic)))
    assert logs_of(broker, topic) == []
    compact(broker, topic)
    assert pairs(read(client, topic)) == [("a", b"2")]


def test_after_a_restart_what_was_read_of_the_trimmed_part_does_not_come_again(
    broker: RunningBroker, client: Client, topic: str
) -> None:
    options = {"initial_position": InitialPosition.Earliest, "is_read_compacted": True}
    other = client.subscribe(topic, "other")
    send(client, topic, *((f"k{i}", b"%d" % i) for i in range(20)))
    compact(broker, topic)
    for _ in range(20):
        last = other.receive(timeout_millis=SOON_MS)
    other.acknowledge_cumulative(last)
    other.close()  # answered after its acknowledgement
    broker.trim(topic)
    consumer = client.subscribe(topic, "s", **options)
    first = [consumer.receive(timeout_millis=SOON_MS) for _ in range(7)]
    consumer.acknowledge_cumulative(first[-1])
    consumer.close()
    broker.call(lambda running: running.topics.unload(TopicName.parse(topic)))
    consumer = client.subscribe(topic, "s", **options)
    rest = [consumer.receive(timeout_millis=SOON_MS) for _ in range(13)]
    assert [m.data() for m in first + rest] == [b"%d" % i for i in range(20)]


def test_what_a_compaction_held_back_is_looked_at_again_at_its_end(
    broker: RunningBroker, client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may have been consumed long ago, and no other event would trim them."""
    needed: list[Position] = []
    right = ManagedLedger.touch

    def touch(ledger: ManagedLedger) -> None:
        needed.extend(kept_from() for kept_from in ledger.trimmer.kept_from)
        right(ledger)

    send(client, topic, *((f"k{i}", b"%d" % i) for i in range(7)))
    monkeypatch.setattr(ManagedLedger, "touch", touch)
    compact(broker, topic)
    found = broker.call(lambda running: running.topics.get(topic))
    assert found.ledger.last_confirmed.after in needed
