"""Requests in the form of Apache Pulsar's own Java client and pulsar-admin."""

import httpx

from pybroker.client import Client, InitialPosition
from pybroker.testing import RunningBroker

NAMESPACES = "/admin/v2/namespaces"
PAUSE = "dispatcherPauseOnAckStatePersistent"
WHOLE = "0x00000000_0xffffffff"


def test_a_group_is_a_text_without_quotes(admin: httpx.Client, namespace: str) -> None:
    path = f"{NAMESPACES}/{namespace}/antiAffinity"
    assert admin.post(path, content=b"apart").status_code == 204
    assert admin.get(path).json() == "apart"
    assert admin.post(path, json="beside").status_code == 204
    query = {"property": namespace.split("/")[0]}
    found = admin.get("/admin/namespaces/standalone/antiAffinity/beside", params=query)
    assert found.json() == [namespace]


def test_a_group_that_is_no_text_is_refused(admin: httpx.Client, namespace: str) -> None:
    path = f"{NAMESPACES}/{namespace}/antiAffinity"
    assert admin.post(path, content=b"\xff").status_code == 400
    assert admin.post(path, content=b'"half').status_code == 400


def test_what_is_set_without_a_body_is_set(admin: httpx.Client, namespace: str, topic: str) -> None:
    for base in (f"{NAMESPACES}/{namespace}", f"/admin/v2/persistent/{topic}"):
        before = admin.get(f"{base}/{PAUSE}").text
        assert admin.post(f"{base}/{PAUSE}").status_code == 204
        assert admin.get(f"{base}/{PAUSE}").json() is True
        assert admin.delete(f"{base}/{PAUSE}").status_code == 204
        assert admin.get(f"{base}/{PAUSE}").text == before


def test_spaces_in_names_come_as_plus_signs(
    admin: httpx.Client, admin_broker: RunningBroker, namespace: str
) -> None:
    path = f"/admin/v2/persistent/{namespace}/my+topic%2B"
    assert admin.put(f"{path}/subscription/my+sub%2B").status_code == 204
    assert admin.get(f"{path}/subscriptions").json() == ["my sub+"]
    topic = f"persistent://{namespace}/my topic+"
    assert admin.get(f"/admin/v2/persistent/{namespace}").json() == [topic]
    with Client(admin_broker.service_url) as client:
        client.create_producer(topic).send(b"m")
        assert client.subscribe(topic, "my sub+").receive(timeout_millis=30_000).data() == b"m"
    assert admin.get(f"/lookup/v2/topic/persistent/{namespace}/my+topic%2B").status_code == 200
    assert admin.delete(f"{path}/subscription/my+sub%2B").status_code == 204


def test_a_namespace_stays_where_it_is(admin: httpx.Client, namespace: str) -> None:
    path = f"{NAMESPACES}/{namespace}/migration"
    assert admin.post(path, json=False).status_code == 204
    assert admin.post(path, json=True).status_code == 400
    assert admin.post(f"{NAMESPACES}/public/nowhere/migration", json=False).status_code == 404


def test_no_namespace_has_a_cluster_in_its_name(admin: httpx.Client) -> None:
    assert admin.get("/admin/namespaces/public/standalone").json() == []
    assert admin.get("/admin/namespaces/nobody/standalone").status_code == 404
    assert admin.get("/admin/namespaces/public/mars").status_code == 404


def test_topics_that_keep_nothing_are_no_obstacle(
    admin: httpx.Client, admin_broker: RunningBroker, namespace: str, topic: str
) -> None:
    fleeting = f"non-persistent://{namespace}/fleeting"
    with Client(admin_broker.service_url) as client:
        client.create_producer(fleeting)
        client.subscribe(topic, "audit", initial_position=InitialPosition.Earliest).close()
        listed = admin.get(f"/admin/v2/non-persistent/{namespace}/{WHOLE}").json()
        assert listed == [fleeting]
        assert admin.post(f"{NAMESPACES}/{namespace}/clearBacklog").status_code == 204
        assert admin.post(f"{NAMESPACES}/{namespace}/unsubscribe/audit").status_code == 204
    assert admin.get(f"/admin/v2/persistent/{topic}/subscriptions").json() == []


def test_a_terminated_topics_log_says_so(admin: httpx.Client, topic: str) -> None:
    path = f"/admin/v2/persistent/{topic}"
    assert admin.get(f"{path}/internalStats").json()["state"] == "LedgerOpened"
    admin.post(f"{path}/terminate")
    assert admin.get(f"{path}/internalStats").json()["state"] == "Terminated"
