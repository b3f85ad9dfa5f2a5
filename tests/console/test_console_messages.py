"""Searching messages by key, property and place in their values, and following a topic."""

import json
import threading
from collections.abc import Iterator

import pytest
from browsing import Browser, words
from test_console_streams import events, opened

import pybroker.testing
from pybroker.client import Client
from pybroker.console.api import Refused
from pybroker.console.pages.topics.searching import MOST_TERMS, NOTHING, Search
from pybroker.testing import RunningBroker

EVIL = "<script>alert(1)</script>"
URL = "/console/topics/persistent/public/default/sales/messages"


@pytest.fixture(scope="module")
def plain() -> Iterator[RunningBroker]:
    with pybroker.testing.broker(http=True) as broker:
        yield broker


@pytest.fixture(scope="module")
def client(plain: RunningBroker) -> Iterator[Client]:
    """Six sales: JSON, text, and bytes."""
    with Client(plain.service_url) as client:
        producer = client.create_producer("sales")
        for number, city in enumerate(("Paris", "New York", "Rome")):
            value = {"id": number, "paid": number == 1, "lines": [{"item": f"item-{number}"}]}
            producer.send(
                json.dumps(value).encode(), properties={"city": city}, partition_key=f"k{number}"
            )
        producer.send(b"id 7 in words", properties={"city": "Oslo"})
        producer.send(b"\xff\xfe")
        producer.send(b"[" * 60_000)
        yield client


def found(plain: RunningBroker, search: str) -> str:
    answer = Browser(plain.admin_url).http.get(URL, params={"from": "oldest", "filter": search})
    assert answer.status_code == 200, answer.text
    return words(answer.text)


@pytest.mark.parametrize(
    ("search", "count", "place"),
    [
        ("", 6, "item-0"),
        ("key=k1", 1, "item-1"),
        ("key=K1", 0, ""),
        ("property.city=Rome", 1, "item-2"),
        ('property.city="New York"', 1, "item-1"),
        ("property.city=Rome key=k1", 0, ""),
        ("$.id=2", 1, "item-2"),
        ("$.paid=true", 1, "item-1"),
        ("$.lines[0].item=item-0", 1, "item-0"),
        ("$.lines[1].item", 0, ""),
        ("$.lines", 3, "item-0"),
        ("$.id=2 rome", 1, "item-2"),
        ("oslo", 1, "id 7 in words"),
        ("id", 4, "id 7 in words"),
    ],
)
def test_messages_are_found_by(
    plain: RunningBroker, client: Client, search: str, count: int, place: str
) -> None:
    page = found(plain, search)
    if count:
        assert f"{count} of 6 messages" in page and place in page
    else:
        assert "None of 6 messages" in page


def test_a_search_that_is_none_says_how_to_write_it(plain: RunningBroker, client: Client) -> None:
    many = " ".join(map(str, range(MOST_TERMS + 1)))
    for search, said in (
        ("$.a[x]=1", "Write a path like $.lines[0].price=5, not $.a[x]"),
        (many, f"Search for at most {MOST_TERMS} words"),
    ):
        answer = Browser(plain.admin_url).http.get(URL, params={"filter": search})
        assert answer.status_code == 400 and said in words(answer.text)
    with pytest.raises(Refused, match="one key"):
        Search.of("key=a key=b")


def test_a_quote_without_an_end_is_a_word_and_a_long_path_is_refused() -> None:
    assert Search.of("it's").words == ("it's",)
    with pytest.raises(Refused, match="Write a path"):
        Search.of("$" + ".a" * 21)
    (path,) = Search.of("$.a").paths
    assert path.is_met_by({"a": None}) and not path.is_met_by(NOTHING)


def test_a_topic_that_is_followed_shows_each_new_message_that_fits(
    plain: RunningBroker, client: Client
) -> None:
    producer = client.create_producer("tail")
    producer.send(b"first")
    browser = Browser(plain.admin_url)
    base = URL.replace("sales", "tail")
    page = browser.page(f"{base}?follow=1&filter=fits")
    assert (
        'data-stream="/console/topics/persistent/public/default/tail/messages/live?follow=1' in page
    )
    assert "data-stream" not in browser.page(base)
    with opened(browser, f"{base}/live?follow=1&filter=fits") as answer:
        coming = events(answer)
        kind, part = next(coming)
        assert kind == "part" and "None of 1 messages" in words(part)
        sending = threading.Thread(target=lambda: (producer.send(b"no"), producer.send(b"it fits")))
        sending.start()
        assert any("it fits" in part for _, part in coming)
        sending.join()


def test_what_is_searched_for_is_no_markup(plain: RunningBroker, client: Client) -> None:
    browser = Browser(plain.admin_url)
    for path in (URL, f"{URL}/live"):
        page = browser.http.get(path, params={"filter": EVIL, "follow": f'"{EVIL}'}).text
        assert EVIL not in page and "<script>" not in page
