"""Policies, compactions, transactions and delays in /metrics, under Pulsar's names."""

from collections.abc import Callable, Mapping

import httpx
import pytest
from compacting import compact, send
from publishing import publish

from pybroker.admin.metrics.topics import COMPACTION, SUBSCRIPTION_GAUGES, TOPIC_GAUGES
from pybroker.client import Client
from pybroker.testing import RunningBroker

P = "/admin/v2/persistent"
COMPACTION_NAMES = {metric.name for metric in COMPACTION}
Scrape = Callable[[], Mapping[str, float]]


@pytest.fixture
def scrape(admin: httpx.Client, topic: str) -> Scrape:
    """The samples of one topic, by name."""

    def samples() -> Mapping[str, float]:
        found = {}
        for line in admin.get("/metrics").text.splitlines():
            name, _, rest = line.partition("{")
            if f'topic="persistent://{topic}"' in rest:
                assert name not in found, f"{name} is there twice"
                found[name] = float(rest.rpartition(" ")[2])
        return found

    return samples


def test_each_metric_of_the_tables_is_there(
    admin: httpx.Client, client: Client, topic: str, scrape: Scrape
) -> None:
    admin.put(f"{P}/{topic}/subscription/audit")
    publish(client, topic, 2)
    named = [metric.name for metric in (*TOPIC_GAUGES, *SUBSCRIPTION_GAUGES)]
    assert len(set(named)) == len(named)
    found = scrape()
    assert set(named) <= found.keys()
    assert found["pulsar_subscription_consumers_count"] == 0
    assert found["pulsar_average_msg_size"] > 0
    assert not found.keys() & COMPACTION_NAMES, "it has never been compacted"


def test_a_compaction_is_told_of(
    admin_broker: RunningBroker, client: Client, topic: str, scrape: Scrape
) -> None:
    send(client, topic, *((f"k{number % 3}", b"x" * 100) for number in range(10)))
    for _ in range(2):  # the second compaction has nothing to do
        compact(admin_broker, topic)
    found = scrape()
    assert found.keys() >= COMPACTION_NAMES
    assert found["pulsar_compaction_removed_event_count"] == 7
    assert found["pulsar_compaction_succeed_count"] == 2
    assert found["pulsar_compaction_failed_count"] == 0
    assert found["pulsar_compaction_compacted_entries_count"] == 3
    assert found["pulsar_compaction_compacted_entries_size"] > 300
    assert found["pulsar_compaction_read_throughput"] > 0


def test_a_namespace_s_topics_are_counted(admin: httpx.Client, topic: str) -> None:
    namespace = topic.rpartition("/")[0]
    admin.put(f"{P}/{topic}")
    lines = admin.get("/metrics").text.splitlines()
    prefix = f'pulsar_topics_count{{cluster="standalone",namespace="{namespace}"}} '
    (line,) = (line for line in lines if line.startswith(prefix))
    assert float(line.rpartition(" ")[2]) >= 1


def test_a_split_of_a_scalable_topic_is_counted(scraped: Scrape) -> None:
    lines = {
        line.rpartition("}")[0].partition("{")[0] + line.rpartition("cluster=")[2]: line
        for line in scraped.text.splitlines()
        if line.startswith("pulsar_scalable_topic_")
    }
    said = "\n".join(lines.values())
    for labels, value in (
        ('segment_state="ACTIVE"}', 2),
        ('segment_state="SEALED"}', 1),
        ('operation="split",operation_trigger="manual",operation_status="success"}', 1),
        ('rebalance_reason="consumer_joined"}', 1),
        (
            '_operation_duration_seconds_count{cluster="standalone",operation="split",operation_status="success"}',
            1,
        ),
        ('_seal_duration_seconds_count{cluster="standalone",operation="split"}', 1),
        ('_takeover_duration_seconds_count{cluster="standalone",operation_status="success"}', 1),
        ('request_type="lookup",operation_status="success"}', 1),
        ('request_type="subscribe",operation_status="success"}', 1),
        ('_leaderless_count{cluster="standalone"}', 0),
        ('_segment_unwritable_count{cluster="standalone"}', 0),
        ('_entry_bucket_draining_count{cluster="standalone"}', 0),
        ('entry_bucket_violation="unstamped_batch"}', 1),
    ):
        assert f"{labels} {value}" in said, said
    assert scraped.values["pulsar_scalable_topic_controller_count"] == 1
