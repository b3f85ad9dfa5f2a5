"""Fault points over the admin API, for tests in any language, and `pybroker faults`."""

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from credentials import TOKEN_SETTINGS, token
from described import check_described

import pybroker.testing
from pybroker.client import Client, InitialPosition
from pybroker.commands.faults.main import main
from pybroker.faults import POINTS
from pybroker.testing import RunningBroker
from pybroker.testing.broker_process import BrokerProcess

LONG_MS = 30_000


@pytest.fixture
def broker() -> Iterator[RunningBroker]:
    with pybroker.testing.broker(http=True, faults=True) as running:
        yield running


@pytest.fixture
def admin(broker: RunningBroker) -> Iterator[httpx.Client]:
    with of(broker.admin_url) as asking:
        yield asking


def of(admin_url: str) -> httpx.Client:
    hooks = {"response": [check_described]}
    return httpx.Client(base_url=f"{admin_url}/admin/v3/", timeout=60, event_hooks=hooks)


@pytest.fixture
def client(broker: RunningBroker) -> Iterator[Client]:
    with Client(broker.service_url, enable_transaction=True) as connected:
        yield connected


def injected(admin: httpx.Client, point: str, action: str, **options: Any) -> dict[str, Any]:
    answer = admin.post("faults/rules", json={"point": point, "action": action, **options})
    assert answer.status_code == 200, answer.text
    rule: dict[str, Any] = answer.json()
    return rule


def test_the_table_is_that_of_the_process(admin: httpx.Client) -> None:
    found = {point["name"]: point for point in admin.get("faults/points").json()}
    assert found.keys() == POINTS.keys()
    for name, point in found.items():
        assert point["state"] == POINTS[name].state
        assert point["actions"] == list(POINTS[name].actions)


def test_a_held_step_is_waited_for_and_released(admin: httpx.Client, client: Client) -> None:
    number = injected(admin, "publish.before_receipt", "hold", topic="orders", once=True)["rule"]
    producer = client.create_producer("orders")
    with ThreadPoolExecutor(1) as threads:
        sending = threads.submit(producer.send, b"1")
        hit = admin.get(f"faults/rules/{number}/hit").json()
        assert (hit["struck"], hit["rule"]["holding"]) == (True, 1)
        assert not sending.done()
        assert admin.post(f"faults/rules/{number}/release").status_code == 204
        sending.result(30)
    assert admin.get(f"faults/rules/{number}").json()["spent"] is True
    assert admin.delete(f"faults/rules/{number}").status_code == 204
    assert admin.get(f"faults/rules/{number}").status_code == 404


def test_waiting_for_what_does_not_happen_ends_with_its_limit(admin: httpx.Client) -> None:
    number = injected(admin, "seek.before", "fail", error="NotAllowedError")["rule"]
    hit = admin.get(f"faults/rules/{number}/hit", params={"timeoutMs": 1}).json()
    assert (hit["struck"], hit["rule"]["hits"], hit["rule"]["error"]) == (
        False,
        0,
        "NotAllowedError",
    )
    admin.delete("faults/rules")
    assert admin.get("faults/rules").json() == []


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"point": "nope", "action": "drop"}, "There is no point"),
        ({"point": "seek.before", "action": "nope"}, "makes no sense"),
        ({"point": "seek.before"}, "action"),
        ({"point": "seek.before", "action": "drop", "times": -1}, "times"),
        ({"point": "seek.before", "action": "drop", "topic": "x" * 5000}, "2048 characters"),
        ({"point": "seek.before", "action": "delay", "seconds": "nan"}, "seconds"),
        ({"point": "seek.before", "action": "fail", "error": "Nope"}, "choose one of"),
        ({"point": ["seek.before"], "action": {}}, "point"),
        ({"point": "seek.before", "action": "drop", "topics": "orders"}, "no 'topics'"),
    ],
)
def test_a_rule_that_cannot_be_is_refused(
    admin: httpx.Client, body: dict[str, Any], says: str
) -> None:
    answer = admin.post("faults/rules", json=body)
    assert (answer.status_code, says in answer.json()["reason"]) == (400, True), answer.text


def test_behind_the_last_passing_there_is_none(admin: httpx.Client) -> None:
    for after in (1, 10**19):
        found = admin.get("faults/passings", params={"after": after})
        assert (found.status_code, found.json()["passings"]) == (200, []), found.text


def test_passings_are_counted_and_listed_in_order(admin: httpx.Client, client: Client) -> None:
    assert admin.get("faults/passings").json()["counts"] == {}  # recording begins
    producer = client.create_producer("orders")
    for _ in range(3):
        producer.send(b"1")
    found = admin.get("faults/passings").json()
    assert found["counts"]["publish.after_append"] == 3
    numbers = [passing["number"] for passing in found["passings"]]
    assert numbers == list(range(1, len(numbers) + 1))
    assert (
        len(admin.get("faults/passings", params={"after": 2, "limit": 1}).json()["passings"]) == 1
    )
    assert admin.get("faults/passings", params={"limit": 0}).status_code == 400


def test_the_clock_is_moved(admin: httpx.Client, client: Client) -> None:
    consumer = client.subscribe("orders", "s", initial_position=InitialPosition.Earliest)
    txn = client.new_transaction(timeout_ms=3_600_000)
    producer = client.create_producer("orders")
    producer.send(b"times out", txn=txn)
    producer.send(b"behind it")
    before = admin.get("clock").json()["timestamp"]
    after = admin.post("clock/advance", json={"by": "2h"}).json()
    assert after["timestamp"] - before >= 7_200_000
    assert after["aheadMs"] > 7_000_000  # real time passes too
    assert consumer.receive(LONG_MS).data() == b"behind it"
    for by in ("yesterday", -1, "nan", 10**12):
        assert admin.post("clock/advance", json={"by": by}).status_code == 400


@pytest.mark.parametrize("settings", [TOKEN_SETTINGS], ids=["authentication"])
def test_it_is_not_offered_beside_authentication(settings: dict[str, Any]) -> None:
    headers = {"Authorization": f"Bearer {token('admin')}"}
    with pybroker.testing.broker(http=True, faults=True, **settings) as broker:
        answer = httpx.get(f"{broker.admin_url}/admin/v3/faults/points", headers=headers)
        assert answer.status_code == 404, answer.text
        assert "--test-mode" in answer.json()["reason"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--bind", "0.0.0.0"], "--bind 127.0.0.1"),
        (["--bind", "0.0.0.0", "--insecure"], "--bind 127.0.0.1"),
        (["--no-http"], "leave out --no-http"),
        (["--config"], "authenticationEnabled=false"),
    ],
)
def test_test_mode_does_not_start_beside_authentication_or_a_public_address(
    options: list[str], says: str, tmp_path: Path
) -> None:
    if options == ["--config"]:
        conf = tmp_path / "broker.conf"
        conf.write_text("authenticationEnabled=true\ntokenSecretKey=data:,x\n")
        options = ["--config", str(conf)]
    command = [sys.executable, "-m", "pybroker", "standalone", "--test-mode", *options]
    command += ["--data-dir", str(tmp_path / "data")]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert refused.returncode == 1
    assert says in refused.stderr


@pytest.mark.slow
def test_a_process_without_test_mode_offers_nothing(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as running, of(running.admin_url) as admin:
        for path in ("faults/points", "faults/rules", "faults/passings", "clock"):
            assert admin.get(path).status_code == 404
        rule = {"point": "publish.before_append", "action": "crash"}
        assert admin.post("faults/rules", json=rule).status_code == 404


@pytest.mark.slow
def test_a_crash_ends_the_process_at_the_point(tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path / "data", ["--test-mode"]) as process,
        of(process.admin_url) as admin,
        Client(process.service_url) as client,
    ):
        producer = client.create_producer("orders")
        producer.send(b"kept")
        injected(admin, "publish.after_append", "crash", topic="orders")
        with ThreadPoolExecutor(1) as threads:
            sending = threads.submit(producer.send, b"twice")
            process.wait_until_ended(60)
            process.kill()  # already dead: this only forgets the process
            process.start()
            sending.result(60)
        consumer = client.subscribe("orders", "s", initial_position=InitialPosition.Earliest)
        found = [consumer.receive(LONG_MS).data() for _ in range(3)]
    assert found == [b"kept", b"twice", b"twice"]


def test_the_command_line_drives_a_broker(
    broker: RunningBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    at = ["--admin-url", broker.admin_url]
    assert main(["clear", *at]) == 0
    assert main(["passings", *at]) == 0  # recording begins
    assert capsys.readouterr().out.split() == ["POINT", "PASSED"]
    hold = ["inject", "subscribe.before", "hold", "--subscription", "held", "--once", *at]
    assert main(hold) == 0
    number = capsys.readouterr().out.strip()
    with Client(broker.service_url) as client, ThreadPoolExecutor(1) as threads:
        subscribing = threads.submit(client.subscribe, "orders", "held")
        assert main(["wait", number, *at]) == 0
        assert main(["rules", *at]) == 0
        assert f"{number}     subscribe.before  hold    1/1   1      subscription=held" in (
            capsys.readouterr().out
        )
        assert main(["release", number, *at]) == 0
        subscribing.result(30)
    assert main(["wait", number, "--hits", "2", "--timeout", "0.1", *at]) == 1
    assert "struck 1 of 2 times" in capsys.readouterr().err
    assert main(["remove", number, *at]) == 0
    assert main(["remove", number, *at]) == 1
    assert "There is no rule" in capsys.readouterr().err
    assert main(["passings", *at]) == 0
    assert "subscribe.before" in capsys.readouterr().out
    assert main(["advance", "1h", *at]) == 0
    assert main(["advance", "soon", *at]) == 1
    assert "is not a duration" in capsys.readouterr().err


def test_the_url_may_stand_before_the_command(broker: RunningBroker) -> None:
    at = ["--admin-url", broker.admin_url]
    assert main([*at, "clear"]) == 0
    assert main(["--admin-url", "http://127.0.0.1:1", "clear", *at]) == 0


def test_the_points_are_listed_without_a_broker(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(POINTS)
    assert main(["list", "--json"]) == 0
    assert [point["name"] for point in json.loads(capsys.readouterr().out)] == list(POINTS)
