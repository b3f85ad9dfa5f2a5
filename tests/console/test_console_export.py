"""Messages as a file: all of them, whatever their content, and no more than requested."""

import base64
import json
from collections.abc import Iterator

import pytest
from browsing import Browser

import pybroker.testing
from pybroker.client import Client
from pybroker.testing import RunningBroker

EVIL = "<script>alert(1)</script>"
TOPIC = "persistent://public/default/exported"
URL = "/console/topics/persistent/public/default/exported/messages/export"


@pytest.fixture(scope="module")
def plain() -> Iterator[RunningBroker]:
    with pybroker.testing.broker(http=True) as broker:
        client = Client(broker.service_url, enable_transaction=True)
        client.subscribe(TOPIC, "s")
        producer = client.create_producer(TOPIC, producer_name="shop")
        producer.send(EVIL.encode(), {EVIL: "\r\n"}, "key")
        producer.send(b"\xff\x00")
        batches = client.create_producer(TOPIC, producer_name="batches", batching_enabled=True)
        for number in range(300):
            batches.send_async(b"%d" % number, None)
        batches.flush()
        transaction = client.new_transaction(600_000)
        producer.send(b"open", txn=transaction)
        yield broker
        transaction.abort()
        client.close()


@pytest.fixture
def browser(plain: RunningBroker) -> Browser:
    return Browser(plain.admin_url)


def lines(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def test_all_messages_are_lines_of_json(browser: Browser) -> None:
    answer = browser.open(URL)
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert answer.headers["content-disposition"] == 'attachment; filename="exported.jsonl"'
    first, second, *batched, last = lines(answer.text)
    assert first["value"] == EVIL and first["properties"] == {EVIL: "\r\n"}
    assert first["key"] == "key" and first["producer"] == "shop"
    assert second["valueBase64"] == base64.b64encode(b"\xff\x00").decode() and "value" not in second
    assert [each["value"] for each in batched] == [str(number) for number in range(300)]
    assert last["value"] == "open" and last["uncommitted"] is True and last["transaction"]


def test_raw_values_stand_behind_their_lengths_without_what_no_consumer_gets(
    browser: Browser,
) -> None:
    answer = browser.open(f"{URL}?format=raw&from=oldest")
    data, values = answer.content, []
    while data:
        size = int.from_bytes(data[:4])
        values.append(data[4 : 4 + size])
        data = data[4 + size :]
    assert values[:2] == [EVIL.encode(), b"\xff\x00"]
    assert values[2:] == [b"%d" % number for number in range(300)]


def test_so_many_entries_from_the_nth_on(browser: Browser) -> None:
    (only,) = lines(browser.open(f"{URL}?first=2&count=1").text)
    assert "valueBase64" in only
    (newest,) = lines(browser.open(f"{URL}?from=newest&count=1").text)
    assert newest["value"] == "open"
    assert lines(browser.open(f"{URL}?from=subscription:s&count=1").text)[0]["value"] == EVIL
    assert browser.open(f"{URL}?from=subscription:s&first=999").text == ""


def test_what_is_not_there_is_refused_in_words(browser: Browser) -> None:
    assert browser.open(URL.replace("exported", "none")).status_code == 404
    assert browser.open(f"{URL}?format=x").status_code == 400
    browser.http.put("/admin/v2/persistent/public/default/split/partitions", content="2")
    assert browser.open(URL.replace("exported", "split")).status_code == 409
    assert browser.http.put("/admin/v2/persistent/public/default/empty").status_code == 204
    assert browser.open(URL.replace("exported", "empty")).text == ""
