"""The admin API of brokers in the simulated world, called with the brokers' own HTTP client."""

from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from credentials import token
from txn_cluster import TxnBroker, TxnCluster

from pybroker.broker.brokers.other_brokers import Reply
from pybroker.client.connection.auth import AuthenticationToken
from pybroker.cluster.admin_client import request_over_http

_REDIRECTS: Final = 5


@dataclass
class Rest:
    """A client of one broker; follows redirects."""

    cluster: TxnCluster
    broker: TxnBroker
    role: str = ""

    def ask(self, method: str, path: str, body: bytes = b"", /, **query: Any) -> Reply:
        """`path` is relative to /admin, or absolute if it begins with a slash."""
        whole = path if path.startswith("/") else f"/admin/{path}"
        target = whole + (f"?{urlencode(query)}" if query else "")
        reply = self.cluster.call(self._ask(self.broker.http_url, method, target, body))
        assert isinstance(reply, Reply)
        return reply

    def get(self, path: str, /, **query: Any) -> Any:
        reply = self.ask("GET", path, **query)
        assert reply.is_done, (reply.status, reply.body)
        return reply.json()

    def do(self, method: str, path: str, body: bytes = b"", /, **query: Any) -> Any:
        reply = self.ask(method, path, body, **query)
        assert reply.is_done, (reply.status, reply.body)
        return reply.json()

    async def _ask(self, url: str, method: str, target: str, body: bytes) -> Reply:
        login = AuthenticationToken(token(self.role)) if self.role else None
        for _ in range(_REDIRECTS):
            reply = await request_over_http(url, method, target, body, login)
            if reply.status != 307:
                return reply
            parts = urlsplit(reply.location)
            if parts.netloc:
                url = f"{parts.scheme}://{parts.netloc}"
            target = f"{parts.path}?{parts.query}"
        raise AssertionError(f"{target} is redirected without end")
