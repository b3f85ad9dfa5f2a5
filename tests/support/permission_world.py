"""A namespace and its tenant on a broker with authorization, and the permissions there."""

import itertools
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from credentials import TOKEN_SETTINGS, bearer, token
from raw_client import RawClient

import pybroker.testing
from pybroker.client import AuthenticationToken, Client
from pybroker.testing import RunningBroker
from pybroker.wire import pulsar_api_pb2 as pb

_T = pb.BaseCommand
FORBIDDEN = 4
SETTINGS: dict[str, Any] = TOKEN_SETTINGS | {
    "authorization_enabled": True,
    "super_user_roles": ("admin",),
    "proxy_roles": ("proxy",),
}
_numbers = itertools.count(1)
_http = httpx.Client()


class World:
    """A separate namespace; its tenant's admin is `boss`."""

    def __init__(self, broker: RunningBroker) -> None:
        self.broker = broker
        self.http = _http
        self.tenant = f"tenant-{next(_numbers)}"
        self.namespace = f"{self.tenant}/ns"
        self.topic = f"persistent://{self.namespace}/t"
        self.admin("PUT", f"tenants/{self.tenant}", {"adminRoles": ["boss"]}, by="admin")
        self.admin("PUT", f"namespaces/{self.namespace}", {})

    def ask(self, method: str, path: str, body: Any = None, by: str = "boss") -> httpx.Response:
        url = f"{self.broker.admin_url}/admin/v2/{path}"
        return self.http.request(method, url, json=body, headers=bearer(by))

    def admin(self, method: str, path: str, body: Any = None, by: str = "boss") -> Any:
        answer = self.ask(method, path, body, by)
        assert answer.status_code in (200, 204), answer.text
        return answer.json() if answer.content else None

    def grant(self, role: str, *actions: str) -> None:
        self.admin("POST", f"namespaces/{self.namespace}/permissions/{role}", list(actions))

    def revoke(self, role: str) -> None:
        self.admin("DELETE", f"namespaces/{self.namespace}/permissions/{role}")

    def on_topic(self, path: str = "", topic: str = "t") -> str:
        return f"persistent/{self.namespace}/{topic}{path}"

    def client(self, role: str, **options: Any) -> Client:
        who = AuthenticationToken(token(role))
        return Client(self.broker.service_url, authentication=who, **options)

    def raw(self, role: str, **fields: Any) -> RawClient:
        fields |= {"auth_method_name": "token", "auth_data": token(role).encode()}
        return RawClient(self.broker.service_url, **fields)

    def may_produce(self, role: str, topic: str | None = None) -> bool:
        body = pb.CommandProducer(topic=topic or self.topic, producer_id=1)
        return self._allowed(role, _T.PRODUCER, "producer", body)

    def may_consume(self, role: str, subscription: str = "s", topic: str | None = None) -> bool:
        body = pb.CommandSubscribe(
            topic=topic or self.topic,
            subscription=subscription,
            subType=pb.CommandSubscribe.Shared,
            consumer_id=1,
        )
        return self._allowed(role, _T.SUBSCRIBE, "subscribe", body)

    def _allowed(self, role: str, kind: Any, field: str, body: Any) -> bool:
        with self.raw(role) as client:
            found = client.request(kind, field, body)
        refused = isinstance(found, pb.CommandError)
        assert not refused or found.error == FORBIDDEN, found
        return not refused


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with pybroker.testing.broker(http=True, **SETTINGS) as running:
        yield running


@pytest.fixture
def world(broker: RunningBroker) -> World:
    return World(broker)
