"""Groups of Kafka's clients in the console, the admin API, `pybroker admin` and the metrics."""

import io
import json
from collections.abc import Iterator
from contextlib import redirect_stdout
from typing import Any, Final
from urllib.parse import quote

import httpx
import pytest
from browsing import Browser, words
from kafka_produce import batch, create, produce
from raw_kafka import RawKafka

import pybroker.testing
from pybroker.commands.admin.main import main
from pybroker.testing import RunningBroker

OFFSET_COMMIT, JOIN_GROUP = 8, 11
EVIL: Final = "<b>é/ group"
GROUPS: Final = "/admin/v3/kafka/groups"
NAME: Final = "persistent://public/default/orders"


@pytest.fixture(scope="module")
def shown() -> Iterator[RunningBroker]:
    with pybroker.testing.broker(http=True, kafka=True, metrics_cache_ms=0) as broker:
        with RawKafka(broker.kafka_bootstrap) as raw:
            create(raw, "orders")
            produce(raw, "orders", batch(b"1", b"2", b"3"))
            commit(raw, EVIL, 1)
            commit(raw, "done", 3)
            join(raw, "done")
        yield broker


def commit(raw: RawKafka, group: str, offset: int) -> None:
    place = {"partition_index": 0, "committed_offset": offset, "committed_metadata": "<i>note"}
    topics = [{"name": "orders", "partitions": [place]}]
    raw.ask(OFFSET_COMMIT, 7, {"group_id": group, "member_id": "", "topics": topics})


def join(raw: RawKafka, group: str) -> None:
    body = {"group_id": group, "session_timeout_ms": 60_000, "rebalance_timeout_ms": 60_000}
    body |= {"member_id": "", "protocol_type": "consumer"}
    raw.send(JOIN_GROUP, 3, body | {"protocols": [{"name": "range", "metadata": b""}]})


def test_the_list_names_all_groups(shown: RunningBroker) -> None:
    page = Browser(shown.admin_url).page("/console/kafka-groups")
    assert "2 groups" in words(page)
    assert "<b>é" not in page
    assert EVIL in words(page)
    found = Browser(shown.admin_url).page("/console/kafka-groups?search=don")
    assert "1 group" in words(found)
    assert "done" in words(found)


def test_a_group_has_a_page_with_its_lag(shown: RunningBroker) -> None:
    page = Browser(shown.admin_url).page(f"/console/kafka-groups/group?name={quote(EVIL, safe='')}")
    assert "2 messages behind" in words(page)
    assert "<i>note" in words(page)
    assert "<i>note" not in page


def test_a_group_that_is_not_there_is_not_found(shown: RunningBroker) -> None:
    answer = Browser(shown.admin_url).open("/console/kafka-groups/group?name=nobody")
    assert answer.status_code == 404
    assert "There is no group nobody" in words(answer.text)


def test_a_broker_without_kafka_has_no_such_page() -> None:
    with pybroker.testing.broker(http=True) as plain:
        browser = Browser(plain.admin_url)
        assert "Kafka" not in browser.page("/console")
        assert browser.open("/console/kafka-groups").status_code == 404


def admin_says(shown: RunningBroker, *arguments: str) -> Any:
    out = io.StringIO()
    with redirect_stdout(out):
        assert main(["--admin-url", shown.admin_url, "kafka-groups", *arguments]) == 0
    return json.loads(out.getvalue())


def test_the_command_line_shows_lag(shown: RunningBroker) -> None:
    listed = admin_says(shown, "list")
    assert sorted(each["group"] for each in listed) == sorted(["done", EVIL])
    (place,) = admin_says(shown, "get", EVIL)["offsets"]
    assert (place["committedOffset"], place["endOffset"], place["lag"]) == (1, 3, 2)
    assert admin_says(shown, "end-offsets", "orders") == [{"partition": 0, "endOffset": 3}]


def test_metrics_count_members_and_lag(shown: RunningBroker) -> None:
    text = httpx.get(f"{shown.admin_url}/metrics").text
    lines = text.splitlines()
    lags = [line for line in lines if line.startswith("pybroker_kafka_group_lag{")]
    assert len(lags) == 2
    of_done = next(line for line in lags if 'group="done"' in line)
    assert f'topic="{NAME}' in of_done
    assert of_done.endswith(" 0")
    assert next(line for line in lags if line is not of_done).endswith(" 2")
    members = [
        line for line in text.splitlines() if line.startswith("pybroker_kafka_group_members{")
    ]
    assert next(line for line in members if 'group="done"' in line).endswith(" 1")
    short = httpx.get(f"{shown.admin_url}/metrics?topics=false").text
    assert "pybroker_kafka_group_lag{" not in short
    assert "pybroker_kafka_groups{" in short


def test_a_topic_that_is_not_there_has_no_end(shown: RunningBroker) -> None:
    answer = httpx.get(f"{shown.admin_url}/admin/v3/kafka/endOffsets/nothing")
    assert answer.status_code == 404


def test_offsets_of_a_topic_are_forgotten_on_request(shown: RunningBroker) -> None:
    with RawKafka(shown.kafka_bootstrap) as raw:
        create(raw, "gone")
        place = {"partition_index": 0, "committed_offset": 7, "committed_metadata": ""}
        topics = [{"name": "gone", "partitions": [place]}]
        raw.ask(OFFSET_COMMIT, 7, {"group_id": "forgets", "member_id": "", "topics": topics})
    assert admin_says(shown, "forget-topic", "gone", "-p", "1")
    assert admin_says(shown, "get", "forgets")["committedPartitions"] == 1
    assert admin_says(shown, "forget-topic", "gone")
    assert "forgets" not in [each["group"] for each in admin_says(shown, "list")]
