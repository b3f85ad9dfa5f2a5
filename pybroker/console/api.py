"""Calls the admin API for the console: requests within the process, as the logged-in role.

The requests pass the audit and the routes' permission checks, so the console can neither see nor do
what REST would refuse. `may` reads the same table of permissions in advance, so that a page can
omit the parts that would be refused.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlencode

from starlette.types import ASGIApp, Message, Scope

from pybroker.admin.http.answer_memory import ROOM, PartOfRoom
from pybroker.admin.http.authenticated import IDENTITY
from pybroker.base.names import TopicName
from pybroker.base.runtime import Pace
from pybroker.security.authorization import Authorizer, Need, Target
from pybroker.security.identity import Identity
from pybroker.security.permissions import route_row

log = logging.getLogger(__name__)

_MOST_OF_ANSWER: Final = 64 * 1024 * 1024
_MOST_BYTES: Final = 96 * 1024 * 1024  # of all answers to one request of the console
_MOST_REASON: Final = 1000  # characters of a refusal, which may repeat what was sent
_REQUESTS_A_TURN: Final = 8
_OPEN: Final = (Need.NOTHING, Need.LOGIN)
Asked = Mapping[str, str | int]


class Refused(Exception):
    """The admin API refused a request; `reason` is the sentence in its answer."""

    def __init__(self, status: int, reason: str) -> None:
        reason = reason if len(reason) <= _MOST_REASON else f"{reason[:_MOST_REASON]}…"
        super().__init__(reason)
        self.status = status
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    headers: Sequence[tuple[bytes, bytes]]
    body: bytes

    @property
    def size_bytes(self) -> int:
        return len(self.body) + sum(len(name) + len(value) for name, value in self.headers)

    def header(self, name: str) -> str:
        wanted = name.lower().encode()
        values = (value for key, value in self.headers if key.lower() == wanted)
        return next(values, b"").decode(errors="replace")

    def json(self) -> Any:
        return json.loads(self.body) if self.body else None

    def check(self) -> "Reply":
        """Raises Refused if the status is that of an error."""
        if self.status >= 400:
            raise Refused(self.status, _reason(self))
        return self


class Api:
    """Calls the admin API for one request of the console, whose scope is `scope`."""

    def __init__(
        self, app: ASGIApp, authorizer: Authorizer | None, scope: Scope, identity: Identity | None
    ) -> None:
        self._app = app
        self._authorizer = authorizer
        self._scope = scope
        self._pace = Pace(_REQUESTS_A_TURN)
        self._left_bytes = _MOST_BYTES
        self.identity = identity

    def may(self, method: str, template: str, /, **names: str) -> bool:
        """Whether the identity may call the route; `names` are the variables in its path."""
        if self._authorizer is None or self.identity is None:
            return True
        need = route_row(method, template).need
        return need in _OPEN or self._authorizer.may(self.identity, need, _target(names))

    def look_at_most(self, most_bytes: int) -> None:
        """Replaces the limit on the size of all answers together, for what keeps none of them."""
        self._left_bytes = most_bytes

    async def get(self, template: str, query: Asked | None = None, /, **names: str | int) -> Any:
        """The answer as JSON. Raises Refused."""
        return (await self.ask("GET", template, query, **names)).check().json()

    async def ask(
        self,
        method: str,
        template: str,
        query: Asked | None = None,
        body: Any = None,
        /,
        **names: str | int,
    ) -> Reply:
        """`names` fill the variables of the template. `body` is sent as JSON, or as it is if it is
        bytes. Raises Refused if the answers until now have used up what one page may look at.
        """
        path = path_of(template, names)
        sent = (
            b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        )
        return await self._called(method, path, urlencode(query or {}), sent)

    async def _called(self, method: str, path: str, query: str, body: bytes) -> Reply:
        await self._pace.step()
        if self._left_bytes <= 0:
            raise Refused(413, "There is more than one page can look at: ask for less at once")
        most_bytes = min(self._left_bytes, _MOST_OF_ANSWER)
        answer = _Collected(most_bytes)
        scope = {
            **{name: self._scope.get(name) for name in ("client", "server", "scheme")},
            "type": "http",
            "asgi": self._scope["asgi"],
            "http_version": "1.1",
            "root_path": "",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": _headers(body),
            ROOM: PartOfRoom(self._scope.get(ROOM), most_bytes),
        }
        if self.identity is not None:
            scope[IDENTITY] = self.identity
        sent = False

        async def receive() -> Message:
            nonlocal sent
            if sent:
                return await _gone(self._scope)
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        try:
            await self._app(scope, receive, answer.send)
        except Exception:
            answer.check_size()
            if not answer.status:
                raise
            log.exception("%s %s failed", method, path)
        reply = Reply(answer.status, answer.headers, b"".join(answer.pieces))
        self._left_bytes -= reply.size_bytes
        return reply


class _Collected:
    def __init__(self, most_bytes: int) -> None:
        self.status = 0
        self.headers: Sequence[tuple[bytes, bytes]] = ()
        self.pieces: list[bytes] = []
        self._size = 0
        self._most_bytes = most_bytes

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], message.get("headers", ())
            return
        piece = message.get("body", b"")
        self._size += len(piece)
        self.check_size()
        self.pieces.append(piece)

    def check_size(self) -> None:
        """Raises Refused if the answer is too large."""
        if self._size > self._most_bytes:
            raise Refused(413, "The answer is too large for the console: ask the admin API itself")


OUTER_RECEIVE: Final = "pybroker.console.receive"  # key in the scope of the console's request


async def _gone(scope: Scope) -> Message:
    """Waits until the browser disconnects; its request was read before."""
    receive = scope[OUTER_RECEIVE]
    while (message := await receive())["type"] != "http.disconnect":
        pass
    disconnected: Message = message
    return disconnected


def path_of(template: str, names: Mapping[str, str | int]) -> str:
    return template.format(**{name: quote(str(value), safe="") for name, value in names.items()})


def _headers(body: bytes) -> list[tuple[bytes, bytes]]:
    if not body:
        return []
    return [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]


def _target(names: Mapping[str, str]) -> Target:
    tenant, namespace = names.get("tenant", ""), names.get("namespace", "")
    subscription = names.get("subscription")
    if "topic" in names:
        domain = names.get("domain", "persistent")
        topic = TopicName.parse(f"{domain}://{tenant}/{namespace}/{names['topic']}")
        return Target.of_topic(topic, subscription)
    if namespace:
        return Target(tenant, f"{tenant}/{namespace}", None, subscription)
    return Target(tenant)


def _reason(reply: Reply) -> str:
    try:
        said = reply.json()
        reason, advice = said["reason"], said.get("advice")
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"The admin API answered {reply.status}"
    return f"{reason}: {advice}" if advice else str(reason)
