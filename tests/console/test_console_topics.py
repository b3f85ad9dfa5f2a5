"""The topics' pages: correct figures, escaped text, and each action is confirmed."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from browsing import Browser, tile, words

import pybroker.testing
from pybroker.client import Client
from pybroker.console.api import Reply
from pybroker.console.pages.topics.decoding import Decoder
from pybroker.console.pages.topics.entries import whole_entry
from pybroker.testing import RunningBroker

EVIL = "<script>alert(1)</script>"
TOPIC = "persistent://public/default/orders"
URL = "/console/topics/persistent/public/default/orders"
ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}


@pytest.fixture(scope="module")
def plain() -> Iterator[RunningBroker]:
    with pybroker.testing.broker(http=True) as broker:
        yield broker


@pytest.fixture(scope="module")
def client(plain: RunningBroker) -> Iterator[Client]:
    client = Client(plain.service_url, enable_transaction=True)
    yield client
    client.close()


@pytest.fixture
def browser(plain: RunningBroker) -> Browser:
    return Browser(plain.admin_url)


@pytest.fixture(scope="module")
def orders(client: Client) -> Client:
    """Five messages; a subscription has acknowledged two of them."""
    consumer = client.subscribe(TOPIC, "billing")
    client.subscribe(TOPIC, EVIL).close()
    producer = client.create_producer(TOPIC, producer_name="shop" + EVIL)
    for number in range(5):
        producer.send(
            json.dumps({"id": number, "note": EVIL}).encode(),
            properties={EVIL: EVIL},
            partition_key=f"key-{number}",
        )
    for _ in range(2):
        consumer.acknowledge(consumer.receive(5000))
    consumer.close()
    return client


@pytest.fixture
def url(browser: Browser) -> str:
    """The page of a new topic."""
    number = sum("fresh-" in name for name in _topics(browser))
    path = f"public/default/fresh-{number}"
    assert browser.http.put(f"/admin/v2/persistent/{path}").status_code == 204
    return f"/console/topics/persistent/{path}"


def _topics(browser: Browser) -> list[str]:
    found: list[str] = browser.http.get("/admin/v2/persistent/public/default").json()
    return found


def stats(browser: Browser, url: str) -> Any:
    path = url.removeprefix("/console/topics/")
    return browser.http.get(f"/admin/v2/{path}/stats").json()


def test_the_list_shows_each_topic_and_then_its_figures(orders: Client, browser: Browser) -> None:
    page = browser.page("/console/topics?search=ORDERS")
    assert "public/default/orders" in words(page) and "1 topic" in words(page)
    rows = words(browser.page("/console/topics?search=orders&figures=1"))
    assert re.search(r"public/default/orders 0 0 8 .* 2 0 1$", rows), rows


def test_a_search_that_finds_nothing_says_so(browser: Browser) -> None:
    assert "No topic fits “<b>”" in words(browser.page("/console/topics?search=<b>"))


def test_a_topic_shows_its_subscriptions_and_their_backlog(
    orders: Client, browser: Browser
) -> None:
    page = browser.page(URL)
    assert tile(page, "Published") == "5"
    assert re.search(r"billing Exclusive 3 ", words(page))
    assert 'width="60.00%"' in page, "the lag is drawn as a share of the largest"


@pytest.mark.parametrize(
    "path", ["", "/messages", "/messages?show=hex", "/storage", "/policies", "/schemas", "/live"]
)
def test_nothing_hostile_is_markup(orders: Client, browser: Browser, path: str) -> None:
    page = browser.page(URL + path)
    assert EVIL not in page and "<script>" not in page
    assert " style=" not in page and " onclick=" not in page


def test_a_hostile_subscription_has_a_page(orders: Client, browser: Browser) -> None:
    (path,) = re.findall(r'href="([^"]*subscriptions/%3Cscript[^"]*)"', browser.page(URL))
    page = browser.page(path)
    assert EVIL not in page and tile(page, "Backlog") == "5 messages"


def test_messages_are_looked_at_and_none_is_taken(orders: Client, browser: Browser) -> None:
    page = words(browser.page(f"{URL}/messages?from=oldest&count=3"))
    assert "3 of 3 messages" in page and '{"id": 0, "note": "<script>alert(1)</script>"}' in page
    waiting = words(browser.page(f"{URL}/messages?from=subscription:billing&count=10"))
    assert "3 of 3 messages" in waiting and "key-2" in waiting and "key-1" not in waiting
    assert stats(browser, URL)["subscriptions"]["billing"]["msgBacklog"] == 3


def test_messages_are_filtered_and_found_by_position(orders: Client, browser: Browser) -> None:
    page = words(browser.page(f"{URL}/messages?from=oldest&filter=key-4"))
    assert "1 of 5 messages" in page
    (place,) = re.findall(r"\d+:4", page)
    assert "key-4" in words(browser.page(f"{URL}/messages?position={place}"))
    assert "ledger:entry" in words(browser.page(f"{URL}/messages?position=x"))
    assert "has no entry" in words(browser.page(f"{URL}/messages?position=999:1"))


def test_bytes_are_shown_as_such(orders: Client, browser: Browser) -> None:
    page = words(browser.page(f"{URL}/messages?from=oldest&count=1&show=hex"))
    assert "0000 7b 22 69 64 22 3a 20 30" in page


def test_a_batch_is_taken_apart(client: Client, browser: Browser, url: str) -> None:
    topic = "persistent://" + url.removeprefix("/console/topics/persistent/")
    producer = client.create_producer(topic, batching_enabled=True, batching_max_messages=3)
    for number in range(3):
        producer.send_async(b"part %d" % number, lambda *_: None, partition_key=f"k{number}")
    producer.flush()
    page = words(browser.page(f"{url}/messages?from=oldest&count=1"))
    assert "3 of 3 messages" in page and "part 2" in page and "k1" in page


def test_values_are_decoded_by_their_schema(browser: Browser, url: str) -> None:
    path = url.removeprefix("/console/topics/persistent/")
    schema = {"type": "AVRO", "schema": json.dumps(ORDER), "properties": {}}
    assert browser.http.post(f"/admin/v2/schemas/{path}/schema", json=schema).status_code == 200
    said = browser.do(f"{url}/messages/send", f"{url}/messages", payload='{"id": 41}')
    assert "Published as" in words(said)
    page = words(browser.page(f"{url}/messages"))
    assert '{ "id": 41 }' in page and "AVRO, schema version 0" in page
    assert '"name": "Order"' in words(browser.page(f"{url}/schemas"))


def test_of_a_value_that_is_nested_deeply_only_the_beginning_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pieces: list[str] = []
    write = json.JSONEncoder.iterencode

    def counted(encoder: json.JSONEncoder, value: Any) -> Iterator[str]:
        for piece in write(encoder, value):
            pieces.append(piece)
            yield piece

    monkeypatch.setattr(json.JSONEncoder, "iterencode", counted)
    depth = 500
    data = b"[" * depth + b"1," * 30_000 + b"1" + b"]" * depth
    reply = Reply(200, [(b"X-Pulsar-Base64-Schema-Version-B64encoded", b"AAAAAAAAAAA=")], data)
    message = whole_entry(reply)
    text, kind = Decoder([{"version": 0, "type": "JSON", "data": "{}"}]).shown(message, "")
    assert (text[:3], len(text), kind) == ("[\n ", 4096, "JSON, schema version 0")
    assert sum(map(len, pieces)) < 2 * len(text)


def test_a_message_is_sent_with_key_and_properties(browser: Browser, url: str) -> None:
    fields = {"payload": EVIL, "key": "a", "properties": "n=1\nx = y=z"}
    page = browser.do(f"{url}/messages/send", f"{url}/messages", **fields)
    assert "Published as" in words(page) and EVIL not in page
    assert "<dt>x</dt><dd>y=z</dd>" in page


def test_a_refusal_is_said_in_the_admin_apis_words(browser: Browser, url: str) -> None:
    page = browser.do(f"{url}/subscribe", url, subscription="twice", start="earliest")
    assert "Subscription twice was created" in words(page)
    page = browser.do(f"{url}/subscribe", url, subscription="twice", start="earliest")
    assert "already exists" in words(page)
    assert "already exists" not in words(browser.page(url)), "it is said once"


def test_a_cursor_is_moved_and_messages_skipped(browser: Browser, url: str) -> None:
    browser.do(f"{url}/subscribe", url, subscription="s", start="earliest")
    for number in range(4):
        browser.do(f"{url}/messages/send", f"{url}/messages", payload=str(number))
    of = f"{url}/subscriptions/s"

    def backlog() -> int:
        return int(stats(browser, url)["subscriptions"]["s"]["msgBacklog"])

    assert "tick the box" in words(browser.do(f"{of}/skip", of, count="1", back=of))
    assert backlog() == 4
    assert "Up to 1 entries were skipped" in words(browser.do(f"{of}/skip", of, count=1, sure=1))
    assert backlog() == 3
    assert "type s to confirm" in words(browser.do(f"{of}/skip-all", of, confirm="x", back=of))
    assert backlog() == 3
    browser.do(f"{of}/skip-all", of, confirm="s")
    assert backlog() == 0
    browser.do(f"{of}/reset", of, where="earliest", sure=1)
    assert backlog() == 4
    browser.do(f"{of}/reset", of, where="latest", sure=1)
    assert backlog() == 0
    browser.do(f"{of}/reset", of, where="time", time="2001-01-01T00:00", sure=1)
    assert backlog() == 4
    assert "ledger:entry" in words(browser.do(f"{of}/reset", of, where="position", sure=1))
    page = browser.do(f"{of}/delete", of, confirm="s")
    assert "Subscription s was deleted" in words(page)
    assert stats(browser, url)["subscriptions"] == {}


def test_a_topic_is_deleted_when_its_name_is_typed(browser: Browser, url: str) -> None:
    name = url.rsplit("/", 1)[1]
    assert "Nothing was done" in words(browser.do(f"{url}/delete", url, confirm="", back=url))
    assert "was deleted" in words(browser.do(f"{url}/delete", url, confirm=name))
    assert browser.open(url).status_code == 404


def test_a_policy_says_where_it_was_set(browser: Browser, url: str) -> None:
    path = url.removeprefix("/console/topics/")
    browser.http.post(f"/admin/v2/{path}/messageTTL?messageTTL=77")
    page = words(browser.page(f"{url}/policies"))
    assert re.search(r"messageTTL 77 the topic", page), page
    assert re.search(r"retention .* the broker", page)


def test_partitions_have_pages_of_their_own(browser: Browser) -> None:
    browser.http.put("/admin/v2/persistent/public/default/split/partitions", content="3")
    assert "split 3 partitions" in words(browser.page("/console/topics?search=split"))
    url = "/console/topics/persistent/public/default/split"
    assert tile(browser.page(url), "Partitions") == "3"
    assert "-partition-2/messages" in browser.page(f"{url}/messages")
    assert browser.open(f"{url}-partition-2").status_code == 200


def test_a_topic_that_keeps_nothing_has_a_page(client: Client, browser: Browser) -> None:
    consumer = client.subscribe("non-persistent://public/default/gone", "s")
    page = browser.page("/console/topics/non-persistent/public/default/gone")
    assert "keeps nothing" in words(page) and "s Exclusive 0" in words(page)
    consumer.close()


def test_the_form_leads_to_a_topic_by_its_name(browser: Browser) -> None:
    go = "/console/topics/go?topic="
    for name in ("orders", "public/default/orders", TOPIC):
        assert browser.open(go + name).headers["location"] == URL
    assert "is not a topic's name" in words(browser.page(go + "x://y"))


def test_a_topic_that_is_not_there_is_not_found(browser: Browser) -> None:
    answer = browser.open("/console/topics/persistent/public/default/never")
    assert answer.status_code == 404 and "never" in words(answer.text)


def test_an_avro_value_of_very_many_parts_is_not_decoded() -> None:
    definition = {"type": "array", "items": "null"}
    schema = {"version": 0, "type": "AVRO", "data": json.dumps(definition)}
    decoder, many, few = Decoder([schema]), b"\x80\xfa\x01\x00", b"\x06\x00"  # 16,000 parts, and 3
    reply = Reply(200, [(b"x-pulsar-base64-schema-version-b64encoded", b"AAAAAAAAAAA=")], b"")
    for data, what in ((many, "bytes"), (few, "AVRO")):
        message = whole_entry(replace(reply, body=data))
        assert decoder.shown(message, "")[1].startswith(what)


# -- changing policies


def policies_of(page: str) -> dict[str, str]:
    rows = re.findall(r'<tr><th scope="row">(\w+)</th>(.*?)</tr>', page, re.DOTALL)
    return {name: words(re.sub(r"<details.*?</details>", "", row)) for name, row in rows}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "value", "shown"),
    [
        ("maxProducersPerTopic", "7", "7"),
        ("messageTTL", "3600", "3600"),
        ("retention", '{"retentionTimeInMinutes": 5, "retentionSizeInMB": 6}', "InMinutes 5"),
    ],
)
def test_a_policy_is_set_and_removed(
    orders: Client, browser: Browser, policy: str, value: str, shown: str
) -> None:
    for url, back, here in (
        (URL, f"{URL}/policies", "the topic Change Remove"),
        ("/console/tenants/public/default", "/console/tenants/public/default", "the namespace"),
    ):
        page = browser.do(f"{url}/policies/set", back, policy=policy, value=value)
        assert f"{policy} was set" in words(page)
        row = policies_of(page)[policy]
        assert shown in row and here.split(" Change")[0] in row and "Remove" in row
        page = browser.do(f"{url}/policies/remove", back, policy=policy)
        assert f"{policy} was removed" in words(page)
        assert "Remove" not in policies_of(page)[policy]


@pytest.mark.parametrize("value", ["FULL", '"FULL"'])
def test_a_string_needs_no_quotes(orders: Client, browser: Browser, value: str) -> None:
    policy, back = "schemaCompatibilityStrategy", f"{URL}/policies"
    page = browser.do(f"{URL}/policies/set", back, policy=policy, value=value)
    assert policies_of(page)[policy].startswith("FULL the topic")
    browser.do(f"{URL}/policies/remove", back, policy=policy)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "value", "problem"),
    [
        ("maxProducersPerTopic", "many", "not a whole number"),
        ("maxProducersPerTopic", "{", "is not JSON"),
        ("maxProducersPerTopic", "[" * 100_000, "is not JSON"),
        ("maxProducersPerTopic", "", "Enter a value"),
        ("messageTTL", "soon", "messageTTL must be"),
        ("retention", '{"retentionTimeInMinutes": NaN}', "not a JSON number"),
        (EVIL, "1", "There is no policy"),
        ("../unload", "1", "There is no policy"),
    ],
)
def test_what_is_no_policy_s_value_is_refused_in_words(
    orders: Client, browser: Browser, policy: str, value: str, problem: str
) -> None:
    page = browser.do(f"{URL}/policies/set", f"{URL}/policies", policy=policy, value=value)
    assert 'class="notice failed"' in page and EVIL not in page
    (said,) = re.findall(r'<div class="notice failed".*?</div>', page, re.DOTALL)
    assert problem in words(said)
