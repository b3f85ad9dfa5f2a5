"""Faults and the clock in the console: the same as in the admin API, in test mode only."""

import html
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import pytest
from browsing import Browser, tile, words
from credentials import TOKEN_SETTINGS, token

import pybroker.testing
from pybroker.client import Client
from pybroker.console.formats import duration
from pybroker.console.pages.faults import PAGE
from pybroker.console.stream import MEDIA_TYPE
from pybroker.faults import POINTS
from pybroker.testing import RunningBroker

URL = "/console/faults"
RULES = f"{URL}/rules"
API = "/admin/v3/faults"
EVIL = "<script>alert(1)</script>"
GETS = [view.path for view in PAGE.views if view.method == "GET"]
POSTS = [view.path for view in PAGE.views if view.method == "POST"]


@pytest.fixture(scope="module")
def of_module() -> Iterator[RunningBroker]:
    with pybroker.testing.broker(http=True, faults=True) as running:
        yield running


@pytest.fixture
def broker(of_module: RunningBroker) -> Iterator[RunningBroker]:
    yield of_module
    of_module.faults.clear()


@pytest.fixture
def browser(broker: RunningBroker) -> Browser:
    return Browser(broker.admin_url)


@pytest.fixture
def client(broker: RunningBroker) -> Iterator[Client]:
    with Client(broker.service_url) as connected:
        yield connected


def rules(browser: Browser) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = browser.http.get(f"{API}/rules").json()
    return found


def table(page: str, label: str) -> list[str]:
    """The rows of a table as words; none if the table is missing."""
    found = re.search(rf'aria-label="{label}".*?</table>', page, re.DOTALL)
    return [words(row) for row in re.findall(r"<tr>.*?</tr>", found[0] if found else "", re.DOTALL)]


# -- in test mode only


@pytest.mark.parametrize(
    "settings", [{"faults": False}, {"faults": True, **TOKEN_SETTINGS}], ids=["off", "roles"]
)
def test_without_test_mode_there_is_no_such_page(settings: dict[str, Any]) -> None:
    with pybroker.testing.broker(http=True, **settings) as running:
        browser = Browser(running.admin_url)
        if settings != {"faults": False}:
            browser.log_in(token("admin"))
        home = browser.page("/console")
        assert URL not in home and "Faults" not in words(home)
        for path in GETS:
            assert browser.open(path).status_code == 404
        missing = browser.open("/console/nothing").text
        assert browser.open(URL).text == missing
        data = {"form_token": browser.form_token("/console/tenants")}
        for path in POSTS:
            assert browser.http.post(path, data=data).status_code == 404


def test_in_test_mode_the_navigation_leads_there(browser: Browser) -> None:
    assert f'<a href="{URL}"' in browser.page("/console")


@pytest.mark.parametrize("path", POSTS)
def test_a_form_of_another_site_does_nothing(
    browser: Browser, broker: RunningBroker, path: str
) -> None:
    broker.faults.inject("seek.before", "drop")
    before = browser.http.get("/admin/v3/clock").json()["aheadMs"]
    fields = {"rule": "1", "by": "1h", "point": "seek.before", "action": "drop"}
    fields["form_token"] = browser.form_token(URL)
    answer = browser.http.post(path, data=fields, headers={"sec-fetch-site": "cross-site"})
    wrong = browser.http.post(path, data={**fields, "form_token": "0"})
    assert answer.status_code == wrong.status_code == 403
    assert len(rules(browser)) == 1
    assert browser.http.get("/admin/v3/clock").json()["aheadMs"] == before


# -- the table of points


def test_the_points_are_those_of_the_broker_by_step(browser: Browser) -> None:
    page = browser.page(URL)
    rows = table(page, "Fault points")[1:]
    assert len(rows) == len(POINTS)
    steps = dict.fromkeys(name.rpartition(".")[0] for name in POINTS)
    assert re.findall(r'scope="rowgroup"[^>]*><code>(.*?)</code>', page) == list(steps)
    for row, point in zip(rows, POINTS.values(), strict=True):
        assert point.state in row and ", ".join(point.actions) in row


@pytest.mark.parametrize("search", ["MARKER.before", "outcome is durable in this topic", "cut"])
def test_points_are_searched(browser: Browser, search: str) -> None:
    rows = table(browser.page(f"{URL}?search={search}"), "Fault points")[1:]
    assert 0 < len(rows) < len(POINTS)


def test_what_no_point_contains_is_said(browser: Browser) -> None:
    page = browser.page(f"{URL}?search={EVIL}")
    assert EVIL not in page and f"No point contains “{EVIL}”" in words(page)


def test_it_is_counted_how_often_a_point_was_passed(browser: Browser, client: Client) -> None:
    browser.page(URL)  # starts recording
    client.create_producer("counted").send(b"x")
    counts = browser.http.get(f"{API}/passings?limit=1").json()["counts"]
    row = table(browser.page(f"{URL}?search=before_receipt"), "Fault points")[1]
    assert row.endswith(f" {counts['publish.before_receipt']}")


# -- rules


def test_the_form_offers_what_its_point_knows(browser: Browser) -> None:
    page = browser.page(f"{URL}?point=deliver.after")
    assert re.findall(r"<option[^>]*>(.*?)</option>", page) == ["crash", "cut"]
    assert 'name="subscription"' in page and 'name="producer"' not in page
    assert 'name="seconds"' not in page and 'name="error"' not in page
    assert POINTS["deliver.after"].state in words(page)
    choices = re.findall(r"<option>(.*?)</option>", browser.page(URL))
    assert choices == list(POINTS)


def test_a_point_that_does_not_exist_is_text(browser: Browser) -> None:
    page = browser.page(f"{URL}?point={EVIL}")
    assert EVIL not in page and f"There is no point “{EVIL}”" in words(page)


def test_a_rule_is_added_shown_and_removed(browser: Browser) -> None:
    fields = {"point": "publish.before_append", "action": "fail", "topic": "orders-*"}
    fields |= {"after": "2", "every": "3", "times": "5", "producer": "", "seconds": ""}
    fields |= {"error": "TopicNotFound", "message": "gone"}
    page = browser.do(RULES, URL, **fields)
    (rule,) = rules(browser)
    assert f"Rule {rule['rule']} was added: fail at publish.before_append" in words(page)
    said = {name: rule[name] for name in ("topic", "producer", "after", "every", "times", "error")}
    assert said == {"topic": "orders-*", "producer": None, "after": 2, "every": 3, "times": 5,
                    "error": "TopicNotFound"}  # fmt: skip
    (row,) = table(page, "Rules")[1:]
    assert "fail TopicNotFound: gone" in row and "topic orders-*" in row
    assert "one passing in 3, after the first 2, at most 5 times 0 0 0" in row
    said_then = words(browser.do(f"{RULES}/remove", URL, rule=str(rule["rule"])))
    assert f"Rule {rule['rule']} was removed" in said_then and "There are no rules" in said_then
    assert rules(browser) == []


@pytest.mark.parametrize(
    ("point", "action", "seconds", "shown"),
    [
        ("seek.before", "delay", "1.5", "delay by 1.5 s"),
        ("seek.before", "hold", "", "hold for at most 1 min"),
        ("seek.before", "crash", "", "crash – each passing, once"),
    ],
)
def test_what_an_action_does_is_shown(
    browser: Browser, point: str, action: str, seconds: str, shown: str
) -> None:
    page = browser.do(RULES, URL, point=point, action=action, seconds=seconds)
    assert shown in table(page, "Rules")[1].replace("\u202f", " ")


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"point": "nope", "action": "drop"}, "There is no point 'nope'"),
        ({"action": "nope"}, "'nope' makes no sense at seek.before: choose one of"),
        ({"action": "drop", "every": "0"}, "every must be a whole number of at least 1"),
        ({"action": "drop", "times": "many"}, "times must be a whole number"),
        ({"action": "drop", "after": "9" * 5000}, "after must be a whole number"),
        ({"action": "delay"}, "A delay needs its seconds"),
        ({"action": "delay", "seconds": "nan"}, "seconds must be a number"),
        ({"action": "hold", "seconds": "601"}, "at most 600"),
        ({"action": "fail", "error": EVIL}, "There is no error"),
        ({"action": "drop", "topic": "\U0001f4a5" * 5000}, "topic must have 1 to 2048 characters"),
        ({"action": "drop", "message": "m"}, "Only fail has an error and a message"),
        ({"action": "drop", "producer": "p"}, "producer is not known at seek.before"),
        ({}, "makes no sense"),
    ],
)
def test_a_rule_that_cannot_be_is_refused_in_a_sentence_and_can_be_corrected(
    browser: Browser, fields: dict[str, str], says: str
) -> None:
    filled = {"point": "seek.before", "subscription": f"kept {EVIL}", **fields}
    page = browser.do(RULES, URL, **filled)
    assert says in words(page) and 'class="notice failed"' in page and EVIL not in page
    if filled["point"] in POINTS:
        assert f'value="{html.escape(filled["subscription"])}"' in page
        assert re.findall(r'name="point" value="(.*?)"', page) == ["seek.before"]
    assert rules(browser) == []


def test_what_waits_is_shown_and_released(browser: Browser, client: Client) -> None:
    browser.do(RULES, URL, point="publish.before_receipt", action="hold", topic="held", times="1")
    (rule,) = rules(browser)
    number = str(rule["rule"])
    nothing = words(browser.do(f"{RULES}/release", URL, rule=number))
    assert f"Nothing waits at rule {number}" in nothing
    producer = client.create_producer("held")
    with ThreadPoolExecutor(1) as threads:
        sending = threads.submit(producer.send, b"x")
        assert browser.http.get(f"{API}/rules/{number}/hit", timeout=60).json()["struck"]
        page = browser.page(URL)
        assert tile(page, "Held steps") == "1" and "finished" in table(page, "Rules")[1]
        assert not sending.done()
        said = words(browser.do(f"{RULES}/release", URL, rule=number))
        assert f"Steps that waited at rule {number} continue" in said
        sending.result(30)
    assert tile(browser.page(URL), "Held steps") == "0"


def test_all_rules_are_removed_at_once(browser: Browser, broker: RunningBroker) -> None:
    for _ in range(3):
        broker.faults.inject("seek.before", "drop")
    assert tile(browser.page(URL), "Rules") == "3"
    assert "All rules were removed" in words(browser.do(f"{RULES}/clear", URL))
    assert rules(browser) == []


@pytest.mark.parametrize("number", ["", "999999", "x", "../rules", "9" * 5000, EVIL])
@pytest.mark.parametrize("what", ["remove", "release"])
def test_a_rule_that_is_not_there_is_named(
    browser: Browser, broker: RunningBroker, what: str, number: str
) -> None:
    broker.faults.inject("seek.before", "hold")
    page = browser.do(f"{RULES}/{what}", URL, rule=number)
    assert "There is no rule" in words(page) and EVIL not in page
    assert len(rules(browser)) == 1


def test_of_very_many_rules_the_latest_are_shown(browser: Browser, broker: RunningBroker) -> None:
    for _ in range(202):
        last = broker.faults.inject("seek.before", "drop").number
    page = browser.page(URL)
    rows = table(page, "Rules")[1:]
    assert len(rows) == 200 and rows[0].startswith(f"{last} ")
    assert "2 older rules are not shown" in words(page)


# -- passings


def test_the_last_passings_come_first(browser: Browser, client: Client) -> None:
    browser.page(URL)  # starts recording
    browser.do(RULES, URL, point="producer.open.before", action="delay", seconds="0.01")
    for number in range(8):
        client.create_producer(f"passed-{number}").close()
    page = browser.page(URL)
    counts = browser.http.get(f"{API}/passings?limit=1").json()["counts"]
    rows = table(page, "Last passings")[1:]
    numbers = [int(row.split()[0]) for row in rows]
    passed = sum(counts.values())
    assert numbers == list(range(passed, passed - 25, -1))
    assert any("producer.open.before delay public/default/passed-7" in row for row in rows)
    assert tile(page, "Passings").replace("\u202f", "") == str(passed)


def test_hostile_names_stay_text(browser: Browser, client: Client) -> None:
    browser.page(URL)  # starts recording
    browser.do(RULES, URL, point="subscribe.before", action="delay", seconds="0.01",
               subscription=f"*{EVIL}*", topic="*")  # fmt: skip
    client.subscribe("hostile", f"s {EVIL}").close()
    page = browser.page(URL)
    assert EVIL not in page
    assert any(f"subscription *{EVIL}*" in row for row in table(page, "Rules"))
    assert any(f"s {EVIL}" in row for row in table(page, "Last passings"))


def test_the_live_part_is_a_stream(browser: Browser) -> None:
    page = browser.page(URL)
    assert f'data-stream="{URL}/live"' in page
    with browser.http.stream("GET", f"{URL}/live", headers={"accept": MEDIA_TYPE}) as answer:
        assert answer.headers["content-type"].startswith(MEDIA_TYPE)
        event = list(islice(answer.iter_lines(), 10))
    assert "event: part" in event and any("Broker time" in line for line in event)


# -- the clock


def test_the_clock_is_advanced(browser: Browser) -> None:
    before = browser.http.get("/admin/v3/clock").json()
    page = browser.do(f"{URL}/clock", URL, by="1d 2h")
    after = browser.http.get("/admin/v3/clock").json()
    moved_ms = after["aheadMs"] - before["aheadMs"]
    assert 25 * 3_600_000 < moved_ms <= 26 * 3_600_000  # real time passes, too
    assert "The broker's clock now shows 20" in words(page)
    assert tile(page, "Ahead of the machine") == words(duration(round(after["aheadMs"] / 1000)))


@pytest.mark.parametrize("by", ["", "soon", "-1h", "200000000000h", EVIL])
def test_what_is_no_duration_is_refused(browser: Browser, by: str) -> None:
    before = browser.http.get("/admin/v3/clock").json()["aheadMs"]
    page = browser.do(f"{URL}/clock", URL, by=by)
    assert "is not a duration" in words(page) and EVIL not in page
    assert browser.http.get("/admin/v3/clock").json()["aheadMs"] == before
