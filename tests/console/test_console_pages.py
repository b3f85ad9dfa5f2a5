"""The other pages: the figures are the broker's, and hostile text is escaped."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
from browsing import Browser, tile, words

import pybroker.testing
from pybroker.client import Client
from pybroker.console.assets import assets
from pybroker.console.pages.table import PAGES
from pybroker.testing import RunningBroker

EVIL = "<script>alert(1)</script>"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)


@pytest.fixture(scope="module")
def plain() -> Iterator[RunningBroker]:
    with pybroker.testing.broker(http=True, faults=True, kafka=True) as broker:
        yield broker


@pytest.fixture
def browser(plain: RunningBroker) -> Browser:
    return Browser(plain.admin_url)


@pytest.fixture
def client(plain: RunningBroker) -> Iterator[Client]:
    client = Client(plain.service_url, enable_transaction=True)
    yield client
    client.close()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.title)
def test_each_page_has_the_policy_and_one_heading(browser: Browser, page: object) -> None:
    path = getattr(page, "path", "")
    answer = browser.open(path)
    assert answer.status_code == 200
    assert answer.headers["content-security-policy"] == POLICY
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.text.count("<h1>") == 1 and 'aria-current="page"' in answer.text
    assert not re.search(r"<script(?! src=)|<style|\sstyle=|\son\w+=", answer.text)


def test_everything_that_is_served_is_small() -> None:
    assert sum(len(asset.content) for asset in assets().values()) < 150_000


def test_an_asset_is_kept_by_browsers(browser: Browser) -> None:
    (url,) = re.findall(r'src="(/console/assets/htmx[^"]*)"', browser.page("/console"))
    answer = browser.open(url)
    assert answer.headers["content-type"].startswith("text/javascript")
    assert "immutable" in answer.headers["cache-control"]
    assert browser.open("/console/assets/LICENSES.txt").status_code == 404
    assert browser.open("/console/assets/..%2Fsite.py").status_code == 404


def test_what_no_page_answers_is_not_found(browser: Browser) -> None:
    answer = browser.open("/console/nothing")
    assert answer.status_code == 404 and "There is no such page" in words(answer.text)


def test_the_overview_counts_what_there_is(browser: Browser, client: Client) -> None:
    producer = client.create_producer("overview")
    client.subscribe("overview", "s").close()
    producer.send(b"x")
    page = browser.page("/console")
    assert tile(page, "Backlog") == "1 messages"
    assert tile(page, "Connections") == "1"
    assert tile(page, "Producers") == "1"
    transaction = client.new_transaction(60_000)
    assert tile(browser.page("/console/overview/live"), "Open") == "1"
    transaction.abort()
    (sample,) = re.findall(r"data-sample='(\{.*?\})'", browser.page("/console"))
    assert json.loads(sample)["backlog"] == 1.0


def test_connections_are_listed_and_searched(browser: Browser, client: Client) -> None:
    client.create_producer("connected")
    page = words(browser.page("/console/connections"))
    assert "1 client is connected" in page and "127.0.0.1:" in page
    assert "No connection fits" in words(browser.page("/console/connections?search=%3Cb%3E"))
    said = browser.http.get("/admin/v2/brokers/connections?search=127.0.0.1").json()
    assert [each["producers"] for each in said["connections"]] == [1]
    assert said["total"] == 1


def test_tenants_and_namespaces_come_and_go(browser: Browser) -> None:
    tenants = "/console/tenants"
    assert "Tenant acme was created" in words(
        browser.do(tenants, tenants, name="acme", roles="ann, bob")
    )
    assert re.search(r"acme ann, bob 0", words(browser.page(tenants)))
    acme = f"{tenants}/acme"
    assert "already exists" in words(browser.do(tenants, tenants, name="acme"))
    assert "Namespace ns was created" in words(browser.do(f"{acme}/namespaces", acme, name="ns"))
    browser.do(f"{acme}/admins", acme, roles="carl")
    assert "Admins: carl" in words(browser.page(acme))
    assert "Nothing was done" in words(browser.do(f"{acme}/delete", acme, confirm="", back=acme))
    answer = browser.send(f"{acme}/delete", acme, confirm="acme")
    assert answer.status_code == 409 and "namespace" in words(answer.text)
    browser.do(f"{acme}/ns/delete", f"{acme}/ns", confirm="ns")
    assert "Tenant acme was deleted" in words(browser.do(f"{acme}/delete", acme, confirm="acme"))


def test_a_namespace_shows_its_effective_policies_and_their_origin(browser: Browser) -> None:
    browser.http.post("/admin/v2/namespaces/public/default/messageTTL", json=3600)
    page = words(browser.page("/console/tenants/public/default"))
    assert re.search(r"messageTTL 3600 the namespace", page)
    browser.http.delete("/admin/v2/namespaces/public/default/messageTTL")


def test_secrets_of_the_configuration_are_not_shown() -> None:
    with pybroker.testing.broker(http=True, token_secret_key="data:,swordfish") as broker:
        page = browser_page(broker, "/console/configuration?search=tokenSecretKey")
        assert "swordfish" not in page and "*****" in page


def browser_page(broker: RunningBroker, path: str) -> str:
    return Browser(broker.admin_url).page(path)


def test_what_can_be_changed_is_changed_and_taken_back(browser: Browser) -> None:
    url = "/console/configuration"
    key = "ttlDurationDefaultInSeconds"
    page = words(browser.do(f"{url}/change", url, key=key, value="77"))
    assert f"{key} is now 77" in page and re.search(rf"{key} 77 changed", page)
    assert "was reset to the value of the configuration file" in words(
        browser.do(f"{url}/take-back", url, key=key)
    )
    refused = words(browser.do(f"{url}/change", url, key=key, value="many"))
    assert "is many now" not in refused


def test_a_broker_within_another_process_has_no_log_to_show(browser: Browser) -> None:
    assert "embedded in another process" in words(browser.page("/console/logs"))


def test_a_spark_query_shows_its_last_batch_and_its_lag(browser: Browser, client: Client) -> None:
    producer = client.create_producer("input")
    client.subscribe("input", "pipeline").close()
    for _ in range(3):
        producer.send(b"row")
    control = "persistent://public/default/__spark-query-q1"
    client.subscribe(control, "query-q1").close()
    markers = client.create_producer(control)
    ends = {"pipeline": {"persistent://public/default/input": "1:0"}}
    markers.send(b"no marker")
    markers.send(json.dumps({"query_id": "other", "batch_id": 9, "ends": ends}).encode())
    markers.send(json.dumps({"query_id": "q1", "batch_id": 7, "ends": ends}).encode())
    page = words(browser.page("/console/pipelines"))
    assert re.search(r"q1 persistent://public/default/__spark-query-q1 7 .* ago 3 1 source", page)
    assert "public/default/input subscription pipeline, fence at 1:0 , 3 behind" in page
    named = words(browser.page(f"/console/pipelines?control={control}"))
    assert "1 source" in named
    evil = browser.page(f"/console/pipelines?control=a/{EVIL}")
    assert EVIL not in evil


def test_a_query_on_a_control_topic_of_the_users_choice_is_found(
    browser: Browser, client: Client
) -> None:
    control = "persistent://public/default/ledger-control"
    client.subscribe(control, "query-q2").close()
    marker = {"query_id": "q2", "batch_id": 4, "ends": {}}
    client.create_producer(control).send(json.dumps(marker).encode())
    assert f"q2 {control} 4 " in words(browser.page("/console/pipelines"))


@pytest.mark.parametrize(
    ("batch", "position"), [("Infinity", '""'), ("3", r'"\ud800"'), ("[]", '""'), ("1e999", "1")]
)
def test_a_hostile_marker_does_not_break_the_page(
    client: Client, browser: Browser, batch: str, position: str
) -> None:
    topic = "spark-query-hostile"
    client.subscribe(topic, "query-h").close()
    ends = rf'{{"s\ud800": {{"public/default/\ud800": {position}}}}}'
    marker = f'{{"query_id": "h", "batch_id": {batch}, "ends": {ends}}}'
    client.create_producer(topic).send(marker.encode())
    assert topic in words(browser.page("/console/pipelines"))


def test_of_a_marker_with_very_many_sources_some_are_looked_at(
    client: Client, browser: Browser
) -> None:
    topic = "spark-query-many"
    client.subscribe(topic, "query-m").close()
    ends = {"s": {f"public/default/no-{number}": "1:1" for number in range(2000)}}
    marker = json.dumps({"query_id": "m", "batch_id": 1, "ends": ends}).encode()
    client.create_producer(topic).send(marker)
    assert "100 sources" in words(browser.page("/console/pipelines"))


@pytest.mark.slow
def test_a_broker_whose_console_nobody_opens_has_not_imported_it() -> None:
    code = (
        "import sys, pybroker.process.app, pybroker.admin.application; "
        "import pybroker.console.entry_point; late = 'jinja2', 'pybroker.console.application'; "
        "print([name for name in sys.modules if name in late])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "[]\n"


ODD = ("x", "%3Cscript%3Ealert(1)%3C%2Fscript%3E", "..", "%00", "%ff", "a%2Fb", "%C3%A9", "9" * 19)
ODD_QUERY = (
    "page=-1&search=%00&first=99999999999999999999&count=0&position=%3C:1&from=subscription:"
    "&namespace=%3Cscript%3Ealert(1)%3C%2Fscript%3E&control=%3C&show=%FF&filter=%F0&topic=%2F"
)
GETS = sorted({view.path for page in PAGES for view in page.views if view.method == "GET"})


@pytest.mark.parametrize("query", ["", ODD_QUERY], ids=["plain", "odd"])
@pytest.mark.parametrize("path", GETS)
def test_odd_addresses_are_refused_in_words(browser: Browser, path: str, query: str) -> None:
    plain = re.sub(r"\{domain:domain\}", "persistent", path)
    plain = re.sub(r"\{(most|least):int\}", "9" * 19, plain)
    for filled in dict.fromkeys(re.sub(r"\{\w+:\w+\}", odd, plain) for odd in ODD):
        answer = browser.open(f"{filled}?{query}")
        assert answer.status_code < 500, (filled, words(answer.text))
        assert EVIL not in answer.text
