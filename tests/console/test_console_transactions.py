"""The transactions' pages: the admin API's facts, for permitted roles, with escaped text."""

import html
import re
from collections.abc import Iterator
from typing import Any

import pytest
from browsing import Browser, tile, words
from credentials import token
from permission_world import World

import pybroker.testing
from pybroker.client import Client
from pybroker.client.transactions.transaction import Transaction
from pybroker.console.pages.transactions.bar import bar
from pybroker.console.pages.transactions.lanes import MOST_LANES, draw
from pybroker.testing import RunningBroker

EVIL = "<script>alert(1)</script>"
TOPIC = "persistent://public/default/orders"
PAGE = "/console/transactions"
API = "/admin/v3/transactions"


def url_of(txn: Transaction) -> str:
    return "{}/{}/{}".format(PAGE, *txn.txn_id)


def name_of(txn: Transaction) -> str:
    return "({},{})".format(*txn.txn_id)


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


@pytest.fixture
def txn(client: Client, browser: Browser) -> Iterator[Transaction]:
    """An open transaction with a message, and a plain message after it."""
    txn = client.new_transaction(timeout_ms=60_000)
    producer = client.create_producer(TOPIC)
    producer.send(b"in", txn=txn)
    producer.send(b"behind")
    yield txn
    browser.http.post("{}/abortTransaction/{}/{}".format(API, *txn.txn_id))


def test_a_label_is_shown_and_is_no_markup(client: Client, browser: Browser) -> None:
    txn = client.new_transaction(timeout_ms=60_000)
    labelled = client.create_producer(TOPIC, properties={"txn.label": f"nightly {EVIL}"})
    labelled.send(b"in", txn=txn)
    for path in (PAGE, url_of(txn)):
        page = browser.page(path)
        assert "nightly" in words(page) and EVIL not in page
    txn.abort()


def said(browser: Browser, path: str) -> Any:
    answer = browser.http.get(f"{API}/{path}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_list_shows_what_the_admin_api_says(txn: Transaction, browser: Browser) -> None:
    page = browser.page(PAGE)
    (listed,) = (e for e in said(browser, "live")["transactions"] if e["txnId"] == name_of(txn))
    assert tile(page, "Live") == str(said(browser, "live")["live"])
    assert tile(page, "Blocked entries") == str(said(browser, "blocking")["blockedEntries"])
    row = words(page[page.index(f'id="t%28{txn.txn_id[0]}') :])
    assert f">{name_of(txn)} ○ OPEN" in row
    assert "public/default/orders" in row and f"{listed['blockedEntries']} entries" in row
    assert f'href="{url_of(txn)}"' in page


def test_the_list_is_updated_in_parts_and_keeps_its_filters(
    txn: Transaction, browser: Browser
) -> None:
    page = browser.page(f"{PAGE}?topic=order&sort=bytes&order=asc&age=0")
    (again,) = re.findall(r'data-stream="([^"]*)"', page)
    part = browser.page(html.unescape(again))
    assert part.startswith("<div") and name_of(txn) in part
    assert 'aria-sort="ascending"' in page and "topic=order" in again
    assert "No transaction matches" in words(browser.page(f"{PAGE}?topic=elsewhere"))
    assert "No transaction matches" in words(browser.page(f"{PAGE}?age=3600"))
    assert name_of(txn) in browser.page(f"{PAGE}?state=GONE&sort=%3Cb%3E&page=x")


def test_a_transaction_is_drawn_with_a_lane_for_each_participant(
    txn: Transaction, client: Client, browser: Browser
) -> None:
    client.create_producer(f"{TOPIC}-too").send(b"x", txn=txn)
    page = browser.page(url_of(txn))
    found = said(browser, "timeline/{}/{}".format(*txn.txn_id))
    assert tile(page, "State") == "○ OPEN" and tile(page, "Messages").startswith("2 ")
    assert page.count('<g class="lane open">') == len(found["participants"]) == 2
    cause = said(browser, "segments/public/default/orders")["cause"]
    assert cause.split(" wrote at ")[0] in html.unescape(page)
    assert found["participants"][0]["firstPosition"] in words(page)
    assert "As a table" in words(page) and "<desc" in page

    txn.commit()
    page = browser.page(url_of(txn))
    assert tile(page, "State") == "✓ COMMITTED"
    assert page.count('<g class="lane commit">') == 2 and "data-stream" not in page
    assert "Commit requested by its client" in words(page)
    ended = words(browser.page(f"{PAGE}/ended"))
    assert f"{name_of(txn)} ✓ COMMITTED" in ended


def test_a_topics_page_draws_its_log_with_the_transaction_in_the_way(
    txn: Transaction, browser: Browser
) -> None:
    page = browser.page("/console/topics/persistent/public/default/orders")
    found = said(browser, "segments/public/default/orders")
    assert found["cause"].split(" wrote at ")[0] in words(page)
    assert f'href="{found_url(found)}"' in page and 'class="log-bar"' in page
    assert page.count('<rect class="piece') == len(found["segments"])
    txn.commit()
    other = browser.page("/console/topics/persistent/public/default/orders/live")
    assert name_of(txn) not in other


def test_a_message_of_no_transaction_is_blocked_and_not_uncommitted(
    txn: Transaction, browser: Browser
) -> None:
    path = "/console/topics/persistent/public/default/orders/messages?from=newest&count=2"
    behind, of_it = browser.page(path).split("<tbody>")[1].split("<tr>")[1:3]
    assert "blocked" in words(behind) and "not committed" not in words(behind)
    assert "not committed" in words(of_it) and f"transaction {name_of(txn)}" in words(of_it)
    assert "text, 2 bytes" in words(of_it)


def test_a_transaction_that_ended_with_no_participants_expects_none(
    client: Client, browser: Browser
) -> None:
    empty = client.new_transaction()
    page = browser.page(PAGE)
    assert "none yet" in words(page[page.index(f'id="t%28{"%2C".join(map(str, empty.txn_id))}') :])
    empty.abort()
    assert "none yet" not in words(browser.page(f"{PAGE}/ended"))


def found_url(found: dict[str, Any]) -> str:
    """The URL of the transaction that holds readers back."""
    (oldest,) = (e["txnId"] for e in found["transactions"] if e["holdsReadersBack"])
    return f"{PAGE}/{oldest.strip('()').replace(',', '/')}"


def test_an_abort_asks_for_the_id_and_a_reason_that_the_owner_hears(
    txn: Transaction, browser: Browser
) -> None:
    url, reason = url_of(txn), f"it is old {EVIL}"

    def sent(**fields: Any) -> str:
        return words(browser.do(f"{url}/abort", url, back=url, **fields))

    assert "Nothing was done: type" in sent(confirm="yes", reason=reason)
    assert "enter a reason" in sent(confirm=name_of(txn), reason=" ")
    assert said(browser, "timeline/{}/{}".format(*txn.txn_id))["status"] == "OPEN"
    page = browser.do(f"{url}/abort", url, back=url, confirm=name_of(txn), reason=reason)
    assert f"Transaction {name_of(txn)} was aborted" in words(page)
    assert EVIL not in page and EVIL in words(page)
    assert "an administrator" in words(page) and tile(page, "State") == "✕ ABORTED"
    assert EVIL not in browser.page(f"{PAGE}/ended")


def test_a_form_without_its_token_aborts_nothing(txn: Transaction, browser: Browser) -> None:
    answer = browser.http.post(
        f"{url_of(txn)}/abort", data={"confirm": name_of(txn), "reason": "x"}
    )
    assert answer.status_code == 403
    assert said(browser, "timeline/{}/{}".format(*txn.txn_id))["status"] == "OPEN"


@pytest.mark.parametrize("path", ["/0/999999", "/999/0"])
def test_what_never_was_is_not_found(browser: Browser, path: str) -> None:
    assert browser.open(PAGE + path).status_code == 404


def test_nothing_hostile_is_markup(client: Client, browser: Browser, plain: RunningBroker) -> None:
    evil = Client(plain.service_url, enable_transaction=True, transactional_id=EVIL)
    topic = "persistent://public/default/<img src=x onerror=alert(1)>"
    txn = evil.new_transaction()
    evil.create_producer(topic).send(b"x", txn=txn)
    consumer = evil.subscribe(TOPIC, EVIL)
    client.create_producer(TOPIC).send(b"plain")
    consumer.acknowledge(consumer.receive(5000), txn=txn)
    for path in (PAGE, url_of(txn), f"{url_of(txn)}/live"):
        page = browser.page(path)
        assert EVIL in html.unescape(page) and EVIL not in page and "<img" not in page
        assert " style=" not in page and " onerror=" not in page.replace("x onerror=", "")
    page = browser.page(f"{PAGE}?topic=%22%3E{EVIL}&owner={EVIL}")
    assert EVIL not in page
    txn.abort()
    assert EVIL not in browser.page(f"{PAGE}/ended")
    evil.close()


# -- permissions


def test_a_role_sees_its_own_transactions_and_cannot_abort(
    world: World, broker: RunningBroker
) -> None:
    world.grant("alice", "produce", "consume")
    client = world.client("alice", enable_transaction=True)
    txn = client.new_transaction()
    client.create_producer(world.topic).send(b"x", txn=txn)
    browsers = {role: Browser(broker.admin_url) for role in ("admin", "alice", "boss")}
    for role, browser in browsers.items():
        browser.log_in(token(role))
    mine = browsers["alice"].page(PAGE)
    assert name_of(txn) in mine and "What blocks readers" not in mine
    assert "Abort" not in words(browsers["alice"].page(url_of(txn)))
    assert "Abort" in words(browsers["admin"].page(url_of(txn)))
    others = browsers["boss"].page(PAGE)
    assert name_of(txn) not in others and world.topic not in others
    refused = browsers["boss"].open(url_of(txn))
    assert refused.status_code == 403 and world.namespace not in refused.text
    answer = browsers["alice"].send(
        f"{url_of(txn)}/abort", PAGE.replace("/transactions", ""), confirm=name_of(txn), reason="x"
    )
    assert answer.status_code == 303
    assert "super-user" in words(browsers["alice"].page(url_of(txn)))
    assert "OPEN" in browsers["admin"].page(url_of(txn))
    txn.abort()
    client.close()


# -- drawings


def timeline_with(count: int, **more: Any) -> dict[str, Any]:
    participant = {
        "topic": "t",
        "subscription": None,
        "addedTimestamp": 1500,
        "followedTimestamp": None,
        "firstPosition": None,
        "attempts": 0,
    }
    return {
        "openTimestamp": 1000,
        "endTimestamp": None,
        "timestamp": 2000,
        "decidedTimestamp": None,
        "status": "OPEN",
        "timeoutMs": 60_000,
        "topicCount": count,
        "subscriptionCount": 0,
        "participants": [participant] * count,
        **more,
    }


def test_lanes_stand_where_things_happened_and_are_bounded() -> None:
    drawn = draw(timeline_with(MOST_LANES + 5))
    assert drawn is not None and (len(drawn.lanes), drawn.unshown) == (MOST_LANES, 5)
    assert drawn.lanes[0].begin == "49.25%" and drawn.lanes[0].width == "47.75%"
    assert (drawn.deadline, drawn.now, drawn.ended) == (None, "97.00%", None)
    late = draw(timeline_with(1, timeoutMs=500))
    assert late is not None and late.deadline == "49.25%"
    assert draw({"txnId": "(0,0)", "status": "COMMITTED"}) is None


def test_a_time_that_goes_back_stays_within_the_drawing() -> None:
    found = timeline_with(1, timestamp=500)
    drawn = draw(found)
    assert drawn is not None and drawn.lanes[0].begin == "97.00%"


def test_the_bar_of_a_log_fills_its_width() -> None:
    one = {"from": "0:1", "to": "0:1", "entries": 1, "txnId": "(0,1)"}
    many = {"from": "0:2", "to": "0:9", "entries": 1_000_000, "txnId": None}
    found = {"segments": [one, many, one], "readableEntries": 7}
    drawn = bar(TOPIC, found)
    widths = [float(piece.width[:-1]) for piece in drawn.pieces]
    assert sum(widths) == pytest.approx(70, abs=0.01) and min(widths) > 0.1
    assert [piece.kind for piece in drawn.pieces] == ["t0", "plain", "t0"]
    assert drawn.stable_at == "30.000%" and drawn.key == [("t0", "(0,1)")]
    assert bar(TOPIC, {"segments": [], "readableEntries": 7}).stable_at == "100.000%"


# -- prepared transactions


def test_a_prepared_one_is_listed_with_its_age_name_and_abort(
    client: Client, browser: Browser, txn: Transaction
) -> None:
    txn.prepare("shop <b>")
    page = browser.page(f"{PAGE}?state=PREPARED")
    assert name_of(txn) in page
    listed = words(page)
    assert "PREPARED" in listed and "shop <b>" in listed and "<b>" not in page
    shown = browser.page(url_of(txn))
    assert "its owner decides" in tile(shown, "Prepared for")
    assert "Prepared as" in shown and f"{url_of(txn)}/abort" in shown
