"""The broker's sums are the same with or without topics, and its rates match the topics'."""

import re
from collections.abc import Mapping

import httpx
import pytest
from publishing import publish
from test_rates import HandClock

import pybroker.testing
from pybroker.admin.stats.flows import Flows
from pybroker.client import Client

SUMS = re.compile(r"^(pulsar_broker_\w+|pulsar_topics_count|pulsar_ml_\w+)(\{.*\}) (\S+)$", re.M)
OF_TIME = re.compile(r"rate|throughput|latency|lookup|Rate|Buckets")


def sums(admin: httpx.Client, query: str) -> Mapping[tuple[str, str], str]:
    found = SUMS.findall(admin.get(f"/metrics{query}").text)
    return {(name, labels): value for name, labels, value in found if not OF_TIME.search(name)}


def test_sums_are_the_same_without_topics() -> None:
    # A broker of its own: a shared one may delete inactive topics between two readings.
    with (
        pybroker.testing.broker(http=True) as broker,
        Client(broker.service_url) as client,
        httpx.Client(base_url=broker.admin_url) as admin,
    ):
        for namespace in ("default", "other"):
            admin.put(f"/admin/v2/namespaces/public/{namespace}")
            topic = f"public/{namespace}/orders"
            for name in ("a", "b"):
                admin.put(f"/admin/v2/persistent/{topic}/subscription/{name}").raise_for_status()
            publish(client, topic, 3)
            client.subscribe(topic, "a").receive(30_000)
        whole, light = sums(admin, ""), sums(admin, "?topics=false")
    assert len(light) > 10 and light == whole
    assert light["pulsar_topics_count", '{cluster="standalone",namespace="public/other"}'] == "1"


def test_rates_are_those_since_the_last_reading() -> None:
    clock = HandClock()
    flows = Flows(clock, 2)
    for counts, rates in (((5, 0), (0, 0)), ((25, 4), (10, 2)), ((25, 4), (0, 0))):
        reading = flows.reading()
        assert reading.of("a", counts) == rates
        reading.keep()
        clock.seconds += 2


def test_what_begins_at_nothing_is_known_from_then_on() -> None:
    clock = HandClock()
    flows = Flows(clock, 1)
    flows.reading().keep()
    reading = flows.reading()
    assert reading.of("a", (0,)) == (0,)
    reading.keep()
    clock.seconds += 1
    assert flows.reading().of("a", (7,)) == (7,)


def test_what_went_back_has_no_rate() -> None:
    clock = HandClock()
    flows = Flows(clock, 1)
    for counts, rate in ((100, 0.0), (30, 0.0), (40, 10.0)):
        reading = flows.reading()
        assert reading.of("a", (counts,)) == (rate,)
        reading.keep()
        clock.seconds += 1


@pytest.mark.parametrize("passed_s", [0.0, 0.5])
def test_a_quick_second_reading_repeats_the_rates(passed_s: float) -> None:
    clock = HandClock()
    flows = Flows(clock, 1)
    for counts in (0, 10):
        reading = flows.reading()
        reading.of("a", (counts,))
        reading.keep()
        clock.seconds += 1
    clock.seconds += passed_s - 1
    again = flows.reading()
    assert again.of("a", (10_000,)) == (10,)
    again.keep()
    clock.seconds += 1
    assert flows.reading().of("a", (10 + 10 * 2,)) == (20 / (1 + passed_s),)


def test_of_two_readings_at_once_one_is_kept() -> None:
    clock = HandClock()
    flows = Flows(clock, 1)
    first = flows.reading()
    first.of("a", (0,))
    first.keep()
    clock.seconds += 1
    one, other = flows.reading(), flows.reading()
    assert one.of("a", (10,)) == other.of("a", (10,)) == (10,)
    one.keep()
    other.keep()
    clock.seconds += 1
    assert flows.reading().of("a", (10,)) == (0,)


def test_owners_that_left_are_forgotten() -> None:
    clock = HandClock()
    flows = Flows(clock, 1)
    for owners in (("a", "b"), ("b",)):
        reading = flows.reading()
        for owner in owners:
            reading.of(owner, (1,))
        reading.keep()
        clock.seconds += 1
    assert set(flows.counts) == {"b"}
