"""The subscription that a stream creates for itself, with a broker in this process; no Spark."""

import json
import urllib.request

import pytest

from pybroker.client import Client
from pybroker.spark.columns.shape import Shape, default_schema
from pybroker.spark.compat import ReadAllAvailable
from pybroker.spark.options import Mode, chosen
from pybroker.spark.reading.stream import PulsarStreamReader
from pybroker.testing import broker

TOPIC = "persistent://public/default/in"


@pytest.fixture
def running():
    with broker(http=True) as running:
        yield running


@pytest.fixture
def run(running):
    """The source in one run of the query."""
    readers = []

    def run(**options):
        given = {"service.url": running.service_url, "topic": TOPIC} | options
        reader = PulsarStreamReader(chosen(given, Mode.READ_STREAM), Shape.of(default_schema()))
        readers.append(reader)
        return reader

    yield run
    for reader in readers:
        reader.stop()


def subscriptions(running):
    url = f"{running.admin_url}/admin/v2/{TOPIC.replace('://', '/')}/subscriptions"
    with urllib.request.urlopen(url) as answer:
        return [name for name in json.load(answer) if not name.startswith("reader-")]


def first_batch(reader, client):
    start = reader.initialOffset()
    client.create_producer(TOPIC).send(b"v")
    end = reader.latestOffset(start, ReadAllAvailable())
    reader.partitions(start, end)
    return end


def test_a_first_batch_that_runs_again_leaves_no_second_subscription(running, run):
    with Client(running.service_url) as client:
        end = first_batch(run(), client)
        again = run()
        start = again.initialOffset()
        assert len(subscriptions(running)) == 2
        [task] = again.partitions(start, end)
        assert task.works[0].span.to == task.works[0].span.after._replace(entry_id=0)
        assert subscriptions(running) == [end["cursor"]]
        again.partitions(end, again.latestOffset(end, ReadAllAvailable()))
        again.commit(end)
        assert subscriptions(running) == [end["cursor"]]


def test_a_subscription_that_was_chosen_is_never_given_up(running, run):
    with Client(running.service_url) as client:
        end = first_batch(run(predefinedSubscription="before"), client)
        again = run(predefinedSubscription="now")
        again.partitions(again.initialOffset(), end)
        assert sorted(subscriptions(running)) == ["before", "now"]
