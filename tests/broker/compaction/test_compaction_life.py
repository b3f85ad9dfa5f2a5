"""The life of a compaction: restarts, crashes, failures, administrators, thresholds, deletion."""

import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from compacting import compact, http, logs_of, pairs, read, send
from raw_client import RawClient

import pybroker.testing
from pybroker.base.names import TopicName
from pybroker.broker.compaction import compactor
from pybroker.broker.namespaces.tenants import Conflict
from pybroker.client import Client
from pybroker.testing import RunningBroker
from pybroker.wire import pulsar_api_pb2 as pb


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with pybroker.testing.broker(http=True) as running:
        yield running


@pytest.mark.parametrize("crash", [False, True], ids=["restarted", "killed"])
def test_what_was_compacted_is_there_after_a_restart(
    tmp_path: Path, topic: str, crash: bool
) -> None:
    with pybroker.testing.broker(data_dir=tmp_path) as broker:
        with Client(broker.service_url) as client:
            send(client, topic, ("a", b"1"), ("a", b"2"), ("b", b"3"), ("b", b""))
            compact(broker, topic)
        broker.kill_and_restart() if crash else broker.restart()
        with Client(broker.service_url) as client:
            assert pairs(read(client, topic)) == [("a", b"2"), ("b", b"")]
            send(client, topic, ("c", b"4"))
            compact(broker, topic)
            assert pairs(read(client, topic)) == [("a", b"2"), ("b", b""), ("c", b"4")]
            assert logs_of(broker, topic)[0].endswith("/2")


def test_only_exclusive_and_failover_read_compacted(broker: RunningBroker, topic: str) -> None:
    with RawClient(broker.service_url) as raw:
        for kind in (pb.CommandSubscribe.Shared, pb.CommandSubscribe.Key_Shared):
            refused = raw.subscribe(topic, subType=kind, read_compacted=True)
            assert refused.error == pb.NotAllowedError
            assert "readCompacted only allowed on failover or exclusive" in refused.message


def test_a_deleted_topic_takes_what_was_compacted_with_it(
    broker: RunningBroker, client: Client, topic: str
) -> None:
    send(client, topic, ("a", b"1"))
    compact(broker, topic)
    assert len(logs_of(broker, topic)) == 1
    broker.call(lambda running: running.topics.delete(TopicName.parse(topic), force=True))
    assert logs_of(broker, topic) == []
    send(client, topic, ("b", b"2"))
    assert pairs(read(client, topic)) == [("b", b"2")]


def test_an_administrator_compacts_and_is_told(
    broker: RunningBroker, client: Client, topic: str
) -> None:
    send(client, topic, ("a", b"1"), ("a", b"2"))
    url = f"{broker.admin_url}/admin/v2/{topic.replace('://', '/')}"
    assert http("GET", f"{url}/compaction") == {"status": "NOT_RUN", "lastError": ""}
    assert http("PUT", f"{url}/compaction") is None
    broker.wait_until(lambda: http("GET", f"{url}/compaction")["status"] == "SUCCESS")
    stats = http("GET", f"{url}/stats")["compaction"]
    assert stats["lastCompactionRemovedEventCount"] == 1
    assert stats["lastCompactionSucceedTimestamp"] > 0 == stats["lastCompactionFailedTimestamp"]
    compacted = http("GET", f"{url}/internalStats")["compactedLedger"]
    assert (compacted["entries"], compacted["ledgerId"] >= 0) == (1, True)
    with pytest.raises(urllib.error.HTTPError, match="404"):
        http("PUT", f"{url}-nowhere/compaction")


def test_by_its_threshold_a_topic_is_compacted_unaided(topic: str) -> None:
    with (
        pybroker.testing.broker(
            broker_service_compaction_threshold_in_bytes=1000,
            broker_service_compaction_monitor_interval_in_seconds=1,
        ) as broker,
        Client(broker.service_url) as client,
    ):
        send(client, topic, *((f"k{i % 2}", b"x" * 100) for i in range(20)))

        def compacted() -> bool:
            async def look(running: Any) -> bool:
                found = await running.topics.get(topic)
                return found.compaction.horizon is not None

            return broker.call(look)

        broker.wait_until(compacted, timeout_s=30)
        assert len(read(client, topic)) == 2


def test_a_policy_that_is_set_later_has_a_topic_compacted(topic: str) -> None:
    with (
        pybroker.testing.broker(
            http=True, broker_service_compaction_monitor_interval_in_seconds=1
        ) as broker,
        Client(broker.service_url) as client,
    ):
        send(client, topic, *((f"k{i % 2}", b"x" * 100) for i in range(20)))
        url = f"{broker.admin_url}/admin/v2/{topic.replace('://', '/')}"
        request = urllib.request.Request(
            f"{url}/compactionThreshold",
            b"1000",
            {"Content-Type": "application/json"},
            method="POST",
        )
        urllib.request.urlopen(request).close()
        broker.wait_until(
            lambda: http("GET", f"{url}/compaction")["status"] == "SUCCESS", timeout_s=30
        )
        assert len(read(client, topic)) == 2


@pytest.mark.parametrize("compacted_before", [False, True])
def test_a_crash_before_the_new_log_counts_leaves_the_old_one_alone(
    tmp_path: Path, topic: str, compacted_before: bool
) -> None:
    with pybroker.testing.broker(data_dir=tmp_path) as broker:
        with Client(broker.service_url) as client:
            send(client, topic, ("a", b"1"), ("a", b"2"))
            if compacted_before:
                compact(broker, topic)
            before = logs_of(broker, topic)
            broker.call(lambda running: _half_a_compaction(running, topic))
            assert len(logs_of(broker, topic)) == len(before) + 1
        broker.kill_and_restart()
        assert logs_of(broker, topic) == before
        with Client(broker.service_url) as client:
            expected = [("a", b"2")] if compacted_before else [("a", b"1"), ("a", b"2")]
            assert pairs(read(client, topic)) == expected
            send(client, topic, ("b", b"3"))
            compact(broker, topic)
            assert pairs(read(client, topic)) == [("a", b"2"), ("b", b"3")]


async def _half_a_compaction(running: Any, topic: str) -> None:
    found = await running.topics.get(topic)
    ledger = await found.compaction._open(2)
    await ledger.append_one(b"written by a compaction that did not come to its end")


def test_a_compaction_that_fails_says_why_and_the_next_one_works(
    broker: RunningBroker, client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(client, topic, ("a", b"1"), ("a", b"2"))

    async def broken(*_: Any) -> None:
        raise OSError("the disk is on fire")

    with monkeypatch.context() as patch:
        patch.setattr(compactor, "compact", broken)
        broker.call(lambda running: _try(running, topic))
    status = broker.call(lambda running: _status(running, topic))
    assert status == ("ERROR", "the disk is on fire")
    assert logs_of(broker, topic) == []
    compact(broker, topic)
    assert pairs(read(client, topic)) == [("a", b"2")]


@pytest.mark.parametrize("trimmed", [False, True], ids=["there", "trimmed"])
def test_where_what_was_kept_is_gone_a_compaction_begins_with_what_is_there(
    tmp_path: Path, topic: str, trimmed: bool
) -> None:
    with pybroker.testing.broker(data_dir=tmp_path) as broker, Client(broker.service_url) as client:
        send(client, topic, ("a", b"1"), ("b", b"2"))
        compact(broker, topic)

        async def lose(running: Any) -> None:
            loaded = await running.topics.get(topic)
            await loaded.factory.delete(name)
            if trimmed:
                await loaded.ledger.roll_over()
                await loaded.ledger.trim()

        (name,) = logs_of(broker, topic)
        broker.call(lose)
        if not trimmed:
            send(client, topic, ("b", b"3"))
        compact(broker, topic)
        assert pairs(read(client, topic)) == ([] if trimmed else [("a", b"1"), ("b", b"3")])


async def _try(running: Any, topic: str) -> None:
    found = await running.topics.get(topic)
    found.compaction.start()
    with pytest.raises(Conflict):
        found.compaction.start()
    await found.tasks.ended()


async def _status(running: Any, topic: str) -> tuple[str, str]:
    found = await running.topics.get(topic)
    return found.compaction.status.value, found.compaction.last_error
