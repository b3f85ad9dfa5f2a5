"""The audit log for an operator: who did what, from where, on what, with which result."""

import logging
import queue
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from credentials import bearer
from permission_world import World
from raw_client import RawClient, Refused

import pybroker.testing
from pybroker.client import Client, InitialPosition
from pybroker.client.topic_questions import TopicQuestion
from pybroker.logs import audit
from pybroker.wire import pulsar_api_pb2 as pb

_T = pb.BaseCommand


class Said(logging.Handler):
    """Lines of one area, in order."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: queue.Queue[dict[str, Any]] = queue.Queue()

    def emit(self, record: logging.LogRecord) -> None:
        fields: dict[str, Any] = getattr(record, "fields", {})
        said = {"what": record.getMessage(), "level": record.levelname, **fields}
        self._lines.put(said)

    def take(self) -> dict[str, Any]:
        return self._lines.get(timeout=10)

    def next(self, what: str, on: str) -> dict[str, Any]:
        """The next line that contains `what` and is about `on`; earlier lines are dropped."""
        while True:
            line = self.take()
            if what in line["what"] and on in line.get("on", line.get("path")):
                return line

    def until(self, mark: str) -> list[str]:
        """The subjects of all lines, up to the one about `mark`."""
        about: list[str] = []
        while not about or mark not in about[-1]:
            about.append(self.take()["on"])
        return about


def listening(name: str) -> Iterator[Said]:
    logger, handler = logging.getLogger(name), Said()
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(before)


@pytest.fixture
def said() -> Iterator[Said]:
    yield from listening("pybroker.audit")


@pytest.fixture
def accesses() -> Iterator[Said]:
    yield from listening("pybroker.access")


# -- HTTP


def test_who_deletes_a_tenant_is_named(world: World, said: Said) -> None:
    world.admin("DELETE", f"tenants/{world.tenant}?force=true", by="admin")
    line = said.next("DELETE", f"tenants/{world.tenant}?force=true")
    assert (line["who"], line["result"], line["level"]) == ("admin", 204, "INFO")
    assert line["from"].startswith("127.0.0.1:")


def test_a_change_that_fails_is_told_with_its_reason(world: World, said: Said) -> None:
    world.admin("PUT", world.on_topic())
    said.next("PUT", world.on_topic())
    world.ask("PUT", world.on_topic())
    line = said.next("PUT", world.on_topic())
    assert line["result"] == 409
    assert "already exist" in line["why"]


def test_a_refused_token_is_told(world: World, said: Said) -> None:
    url = f"{world.broker.admin_url}/admin/v2/tenants"
    httpx.get(url, headers={"Authorization": "Bearer nonsense"})
    line = said.next("refused GET", "/admin/v2/tenants")
    assert (line["who"], line["result"], line["level"]) == ("-", 401, "WARNING")
    assert line["why"]


def test_a_forbidden_route_is_told_with_the_role(world: World, said: Said) -> None:
    world.ask("GET", "tenants", by="app")
    line = said.next("refused GET", "/admin/v2/tenants")
    assert (line["who"], line["result"]) == ("app", 401)


def test_a_page_of_another_site_is_told(world: World, said: Said) -> None:
    url = f"{world.broker.admin_url}/admin/v2/tenants/evil"
    httpx.put(url, headers={"Origin": "https://evil.example", **bearer("admin")})
    line = said.next("refused PUT", "/admin/v2/tenants/evil")
    assert "Origin" in line["why"]


def test_looking_is_not_audited(world: World, said: Said) -> None:
    world.admin("PUT", world.on_topic())
    said.next("PUT", world.on_topic())
    world.admin("GET", world.on_topic("/stats"))
    end = {"ledgerId": 1, "entryId": 0}
    world.ask("PUT", world.on_topic("/backlogSize"), end)
    world.admin("POST", world.on_topic("/terminate"))
    assert said.until("/terminate") == [f"/admin/v2/{world.on_topic('/terminate')}"]


def test_every_access_is_logged_where_that_is_asked_for(world: World, accesses: Said) -> None:
    world.ask("GET", "brokers/health?x=1")
    line = accesses.next("GET", "/admin/v2/brokers/health?x=1")
    assert (line["who"], line["status"], line["bytes"]) == ("boss", 200, 2)
    assert line["ms"] >= 0


# -- commands


def test_a_topic_and_a_subscription_that_a_client_makes_are_told(world: World, said: Said) -> None:
    world.grant("app", "produce", "consume")
    assert world.may_consume("app", "s")
    made = said.next("create topic", world.topic)
    assert (made["who"], made["result"]) == ("app", "ok")
    assert made["from"].startswith("127.0.0.1:")
    assert said.next("create subscription", world.topic)["who"] == "app"


@pytest.mark.slow
def test_subscriptions_that_one_command_makes_on_many_topics_are_one_line(said: Said) -> None:
    topics = [f"persistent://public/default/many-{number:03d}" for number in range(250)]
    with pybroker.testing.broker() as running, Client(running.service_url) as client:
        for topic in topics:
            client.create_producer(topic).close()
        said.next("create topic", topics[-1])
        questions = [TopicQuestion(topic) for topic in topics]
        for name in ("s", "s", "t"):  # the second command finds the first one's subscription
            client.ask_topics(questions, name, InitialPosition.Earliest)
        client.ask_topics(questions[:1], "alone", InitialPosition.Earliest)
    lines = [said.take() for _ in range(3)]
    assert {line["what"] for line in lines} == {"create subscription"}
    assert {line["who"] for line in lines} == {"-"}
    assert [line["on"] for line in lines] == [
        f"subscription s of {topics[0]}, and 249 more",
        f"subscription t of {topics[0]}, and 249 more",
        f"subscription alone of {topics[0]}",
    ]


def test_who_deletes_a_subscription_is_named(world: World, said: Said) -> None:
    world.grant("app", "consume")
    with world.client("app") as client:
        client.subscribe(world.topic, "s").unsubscribe()
    line = said.next("delete subscription", f"subscription s of {world.topic}")
    assert line["who"] == "app"


def test_what_goes_with_a_namespace_is_named(world: World, said: Said) -> None:
    world.admin("PUT", world.on_topic())
    world.admin("PUT", world.on_topic("/partitions", "p"), 3)
    world.admin("DELETE", f"namespaces/{world.namespace}?force=true")
    gone = [said.next("delete topic", world.namespace) for _ in range(2)]
    assert {line["on"] for line in gone} == {
        world.topic,
        f"persistent://{world.namespace}/p with 3 partitions",
    }
    assert {line["who"] for line in gone} == {"boss"}


def test_a_refused_login_is_told(world: World, said: Said) -> None:
    with pytest.raises(Refused):
        RawClient(world.broker.service_url, auth_method_name="token", auth_data=b"bad")
    line = said.next("refused CONNECT", "-")
    assert (line["who"], line["result"]) == ("-", "AuthenticationError")
    assert line["from"].startswith("127.0.0.1:")


def test_a_refused_command_is_told_with_role_and_topic(world: World, said: Said) -> None:
    assert not world.may_consume("nobody", "s")
    line = said.next("refused SUBSCRIBE", world.topic)
    assert (line["who"], line["result"]) == ("nobody", "AuthorizationError")
    assert line["on"] == f"{world.topic} s"


def test_a_long_name_is_cut(world: World, said: Said) -> None:
    body = pb.CommandGetTopicsOfNamespace(namespace="n" * 100_000)
    with world.raw("nobody") as client:
        client.request(_T.GET_TOPICS_OF_NAMESPACE, "getTopicsOfNamespace", body)
    line = said.next("refused GET_TOPICS_OF_NAMESPACE", "nnn")
    assert sum(len(str(value)) for value in line.values()) < 1500


def test_what_a_client_does_in_the_name_of_another_names_both(world: World, said: Said) -> None:
    fields = {"original_principal": "eve"}
    with world.raw("proxy", **fields) as client:
        body = pb.CommandProducer(topic=world.topic, producer_id=1)
        client.request(_T.PRODUCER, "producer", body)
    assert said.next("refused PRODUCER", world.topic)["who"] == "proxy/eve"


# -- limits


class Kinds(logging.Handler):
    """The kinds of lines written meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.said: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        self.said.add(record.__dict__["kind"])


@pytest.fixture
def kinds() -> Iterator[Kinds]:
    logger, handler = logging.getLogger("pybroker.audit"), Kinds()
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(before)


def refused_at(address: str) -> None:
    audit.refused(audit.Actor("", address), "CONNECT", "", "AuthenticationError", "no")


def test_refusals_of_one_address_do_not_use_up_the_lines_of_another(kinds: Kinds) -> None:
    for port in (1, 2):
        for host in ("10.0.0.1", "10.0.0.2"):
            refused_at(f"{host}:{port}")
    assert kinds.said == {"refusals from 10.0.0.1", "refusals from 10.0.0.2"}


def test_a_machine_has_no_more_lines_for_its_many_ipv6_addresses(kinds: Kinds) -> None:
    for number in range(10):
        refused_at(f"2001:db8::{number}:50123")
    assert len(kinds.said) == 1


def test_changes_by_one_role_do_not_use_up_the_lines_of_another_behind_the_same_address(
    kinds: Kinds,
) -> None:
    for who in ("eve", "admin"):
        with audit.acting_as(audit.Actor(who, "10.0.0.1:50123")):
            audit.done("delete topic", "t")
    assert kinds.said == {"changes by eve from 10.0.0.1", "changes by admin from 10.0.0.1"}


def test_a_method_that_is_as_long_as_a_head_may_be_does_not_fill_the_disk(
    world: World, said: Said
) -> None:
    world.ask("X" * 50_000, "tenants")
    assert len(said.next("XXX", "tenants")["what"]) == 300
