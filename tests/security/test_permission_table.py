"""Every command and every route has a row in the table of permissions.

A client without the required permission gets the refusal and nothing else, whether or not the named
thing exists. Over HTTP, where an admin of the tenant would be needed, a tenant that does not exist
is not found, as in Apache Pulsar.
"""

from collections.abc import Iterator
from typing import Any
from unittest.mock import MagicMock

import httpx
import pytest
from credentials import TOKEN_SETTINGS, bearer, token
from raw_client import RawClient
from rows import check_each
from starlette.routing import Route

import pybroker.testing
from pybroker.admin.application import AREAS
from pybroker.admin.http.permitted import plain_path
from pybroker.security.authorization import Need
from pybroker.security.permissions import COMMANDS, ROUTES, route_row
from pybroker.server.guarded import guarded_handlers
from pybroker.server.handlers import HANDLERS
from pybroker.testing import RunningBroker
from pybroker.wire import pulsar_api_pb2 as pb

_T = pb.BaseCommand
HERE, GONE = "persistent://public/default/here", "persistent://nobody/nowhere/gone"
NO_TENANT = {"reason": "Tenant does not exist"}
FORBIDDEN = 4  # ServerError.AuthorizationError
FREE = (Need.NOTHING, Need.LOGIN, Need.OWN)
SETTINGS: dict[str, Any] = TOKEN_SETTINGS | {
    "authorization_enabled": True,
    "super_user_roles": ("admin",),
}


def declared_methods(route: Route) -> set[str]:
    """Starlette adds HEAD to GET."""
    methods = set(route.methods or ())
    return methods - {"HEAD"} if "GET" in methods else methods


DECLARED = {
    area.__name__: [
        (method, plain_path(route.path))
        for route in area(MagicMock()).routes()
        for method in sorted(declared_methods(route))
    ]
    for area in AREAS
}


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with pybroker.testing.broker(http=True, **SETTINGS) as running:
        url = f"{running.admin_url}/admin/v2/persistent/public/default/here"
        assert httpx.put(url, headers=bearer("admin")).status_code == 204
        assert httpx.put(url + "/subscription/s", headers=bearer("admin")).status_code == 204
        yield running


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with httpx.Client() as client:
        yield client


# -- the table is complete


def test_every_command_has_a_row_and_no_other_thing() -> None:
    assert set(COMMANDS) == set(HANDLERS) | {_T.SEND}


def test_every_route_has_a_row() -> None:
    parts = {
        Need.TENANT_ADMIN: "{tenant}",
        Need.USE_NAMESPACE: "{namespace}",
        Need.LOOKUP: "{topic}",
        Need.PRODUCE: "{topic}",
        Need.CONSUME: "{namespace}",
    }

    def check(declared: tuple[str, str]) -> None:
        assert parts.get(route_row(*declared).need, "") in declared[1]

    check_each([each for area in DECLARED.values() for each in area], check, name=" ".join)


def test_whoever_changes_the_segments_of_a_topic_is_a_super_user() -> None:
    others = ("/subscriptions/", "/permissions/", "/autoScalePolicy")
    changes = [
        path
        for method, path in DECLARED["ScalableRoutes"]
        if method == "POST" and not any(part in path for part in others)
    ]
    assert len(changes) == 4, "split, merge, rebucket, migrate"
    assert {route_row("POST", path).need for path in changes} == {Need.SUPER_USER}


def test_a_route_without_a_row_is_an_error() -> None:
    with pytest.raises(LookupError, match=r"permissions\.py"):
        route_row("GET", "/admin/v2/something-new")


def test_no_row_is_open_but_the_metrics() -> None:
    assert {row.path for row in ROUTES if row.need is Need.NOTHING} == {"/metrics", "/metrics/"}


# -- commands


def body_of(kind: int, topic: str) -> tuple[str, Any]:
    """A command about `topic` that would have an effect."""
    field = HANDLERS[kind].field
    body = getattr(pb.BaseCommand(), field).__class__()
    known = {
        "topic": topic,
        "subscription": "s",
        "namespace": topic.removeprefix("persistent://").rpartition("/")[0],
        "partitions": [topic],
        "subType": pb.CommandSubscribe.Shared,
        "txn_action": pb.COMMIT,
        "mode": pb.CommandGetTopicsOfNamespace.ALL,
        "watcher_id": 1,
        "producer_id": 1,
        "consumer_id": 1,
        "request_id": 1,
        "topics_pattern": ".*",
        "session_id": 1,
        "watch_id": 1,
        "consumer_name": "c",
        "consumer_type": pb.STREAM,
    }
    for name, value in known.items():
        described = body.DESCRIPTOR.fields_by_name.get(name)
        if described is None:
            continue
        if isinstance(value, list):
            getattr(body, name).extend(value)
        elif described.message_type is None:
            setattr(body, name, value)
    if kind == _T.ADD_SUBSCRIPTION_TO_TXN:
        body.subscription.add(topic=topic, subscription="s")
    if kind == _T.ASK_TOPICS:
        body.question.add(topic=topic)
    if kind == _T.END_TXN_ON_SUBSCRIPTION:
        body.subscription.topic, body.subscription.subscription = topic, "s"
    if kind == _T.GET_OR_CREATE_SCHEMA:
        schema = pb.Schema(name="n", schema_data=b"", type=pb.Schema.String)
        body.schema.CopyFrom(schema)
    return field, body


# Commands without a request id, and what answers them.
FIRST_UPDATES = {
    _T.SCALABLE_TOPIC_LOOKUP: _T.SCALABLE_TOPIC_UPDATE,
    _T.WATCH_SCALABLE_TOPICS: _T.WATCH_SCALABLE_TOPICS_UPDATE,
}


def answer(client: RawClient, kind: int, topic: str) -> tuple[int, str]:
    """The code and the text of a refused command, in whichever fields its answer has them."""
    field, body = body_of(kind, topic)
    if kind in FIRST_UPDATES:
        client.send(kind, field, body)
        found = client.receive(FIRST_UPDATES[kind])
    else:
        found = client.request(kind, field, body)
    for code, text in (("error", "message"), ("error_code", "error_message")):
        if code in found.DESCRIPTOR.fields_by_name and found.HasField(code):
            return getattr(found, code), getattr(found, text)
    return -1, str(found)


GUARDED = [kind for kind, row in COMMANDS.items() if row.need not in FREE]


@pytest.mark.parametrize("kind", GUARDED, ids=lambda kind: HANDLERS[kind].field)
def test_a_role_without_the_permission_gets_the_refusal_only(
    broker: RunningBroker, kind: int
) -> None:
    fields = {"auth_method_name": "token", "auth_data": token("mallory").encode()}
    with RawClient(broker.service_url, **fields) as client:
        refusals = [answer(client, kind, topic) for topic in (HERE, GONE)]
    assert [code for code, _ in refusals] == [FORBIDDEN] * 2
    here, gone = (text for _, text in refusals)
    for name in (*_spelt("public/default/here"), "public/default"):
        here = here.replace(name, "X")
    for name in ("persistent://nobody/nowhere/gone", "nobody/nowhere"):
        gone = gone.replace(name, "X")
    assert here == gone
    assert here.startswith("Client is not authorized to ")


@pytest.mark.parametrize("kind", GUARDED, ids=lambda kind: HANDLERS[kind].field)
def test_a_superuser_is_never_refused(broker: RunningBroker, kind: int) -> None:
    fields = {"auth_method_name": "token", "auth_data": token("admin").encode()}
    with RawClient(broker.service_url, **fields) as client:
        code, text = answer(client, kind, HERE)
    assert code != FORBIDDEN, text


def test_every_command_is_at_the_gate_that_its_row_asks_for(broker: RunningBroker) -> None:
    async def look(running: Any) -> Any:
        return running.authorizer

    handlers = guarded_handlers(HANDLERS, broker.call(look))
    plain = {kind for kind in HANDLERS if handlers[kind] is HANDLERS[kind]}
    assert plain == set(HANDLERS) - set(GUARDED) - {_T.ACK}


# -- routes


def filled(path: str, tenant: str, namespace: str, topic: str) -> str:
    names = {"domain": "persistent", "tenant": tenant, "namespace": namespace, "topic": topic}
    names |= {"subscription": "s", "role": "r", "cluster": "standalone"}
    names["bundle"] = "0x00000000_0xffffffff"
    for part in path.split("/"):
        if part.startswith("{"):
            path = path.replace(part, names.get(part.strip("{}"), "1"), 1)
    return path


@pytest.mark.parametrize("area", DECLARED)
def test_routes_refuse_roles_that_their_rows_do_not_name(
    broker: RunningBroker, http: httpx.Client, area: str
) -> None:
    check_each(DECLARED[area], lambda declared: refuses(broker, http, *declared), name=" ".join)


def _spelt(topic: str) -> list[str]:
    return [f"{domain}://{topic}" for domain in ("persistent", "topic")]


def refuses(broker: RunningBroker, http: httpx.Client, method: str, path: str) -> None:
    here = broker.admin_url + filled(path, "public", "default", "here")
    gone = broker.admin_url + filled(path, "public", "nowhere", "gone")
    row = route_row(method, path)
    need = row.need
    if need is Need.NOTHING:
        assert http.request(method, here).status_code == 200
        return
    assert http.request(method, here).status_code == 401
    if need is Need.LOGIN:
        return
    answers = [http.request(method, url, headers=bearer("mallory")) for url in (here, gone)]
    as_apache = 401 if row.operation or row.of_tenant or need is Need.SUPER_USER else 403
    assert [answer.status_code for answer in answers] == [as_apache] * 2
    if need is Need.SUPER_USER:
        assert answers[0].json()["reason"] == "This operation requires super-user access"
    if row.of_tenant:
        sentence = "Don't have permission to administrate resources on this tenant"
        assert answers[0].json()["reason"] == sentence
    if row.operation:
        sentence = (
            f"Unauthorized to validateTopicOperation for operation [{row.operation}] on topic "
        )
        assert answers[0].json()["reason"].startswith(sentence)
    texts = [answer.json()["reason"] + answer.json()["advice"] for answer in answers]
    for name in (*_spelt("public/default/here"), "public/default", "public"):
        texts[0] = texts[0].replace(f"on {name} ", "on X ").replace(f"[{name}]", "[X]")
    for name in (*_spelt("public/nowhere/gone"), "public/nowhere", "public"):
        texts[1] = texts[1].replace(f"on {name} ", "on X ").replace(f"[{name}]", "[X]")
    assert texts[0] == texts[1]
    nowhere = broker.admin_url + filled(path, "nobody", "nowhere", "gone")
    answer = http.request(method, nowhere, headers=bearer("mallory"))
    if need is Need.TENANT_ADMIN:
        assert (answer.status_code, answer.json()) == (404, NO_TENANT)
    else:
        assert answer.status_code == as_apache
