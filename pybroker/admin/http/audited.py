"""Logs every request after its response: changes and refusals go to the audit log, and
`access=info` adds a line for each request.

This is the outermost stage, so it sees early refusals too. `Authenticated`, an inner stage, reports
the identity with `act_as`, in the same task.
"""

import json
import logging
import re
import time
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pybroker.admin.operation import ASKED, Asked
from pybroker.logs import audit
from pybroker.logs.lines import with_fields

access = logging.getLogger("pybroker.access")

_READING_METHODS: Final = ("GET", "HEAD", "OPTIONS")
_REFUSALS: Final = (401, 403)
_TOKEN: Final = re.compile(r"\b(token=)[^&]*", re.IGNORECASE)
_HIDDEN: Final = r"\1..."
_MOST_BYTES: Final = 64 * 1024  # the longest refusal that is searched for its reason


class Audited:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began_s = time.monotonic()
        client = scope.get("client")
        audit.act_as(audit.Actor("", f"{client[0]}:{client[1]}" if client else ""))
        asked = Asked()
        answer = _Answer(send)
        try:
            await self._app({**scope, ASKED: asked}, receive, answer.send)
        finally:
            _audit(scope, asked, answer)
            if access.isEnabledFor(logging.INFO):
                _access(scope, answer, time.monotonic() - began_s)


class _Answer:
    """Passes a response on and keeps what the log needs."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 0  # until the response starts
        self.size_bytes = 0
        self.why = ""

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            body = message.get("body", b"")
            if self.status >= 400 and not self.size_bytes:
                self.why = _reason(body)
            self.size_bytes += len(body)
        await self._send(message)


def _reason(body: bytes) -> str:
    """The reason in a refusal, `{"reason": …}`, followed by the advice if there is any."""
    if not body.startswith(b'{"reason":') or len(body) > _MOST_BYTES:
        return ""
    try:
        return ": ".join(map(str, json.loads(body).values()))
    except ValueError:  # incomplete: the body comes in several pieces
        return ""


def _audit(scope: Scope, asked: Asked, answer: _Answer) -> None:
    method, status = scope["method"], answer.status
    actor = audit.current_actor()
    if status in _REFUSALS:
        audit.refused(actor, method, _path(scope), status, answer.why)
    elif method not in _READING_METHODS and (asked.operation is None or asked.operation.changes):
        audit.done(method, _path(scope), status or "no answer", answer.why)


def _access(scope: Scope, answer: _Answer, took_s: float) -> None:
    actor = audit.current_actor()
    fields: dict[str, str | int | float] = {
        "who": actor.who or "-",
        "from": actor.address or "-",
        "path": _path(scope),
        "status": answer.status,
        "bytes": answer.size_bytes,
        "ms": round(took_s * 1000, 1),
    }
    access.info("%s", scope["method"], extra=with_fields(fields))


def _path(scope: Scope) -> str:
    """The path as sent, with the query, but without tokens."""
    path: str = (scope.get("raw_path") or scope["path"].encode()).decode("latin-1")
    query = scope.get("query_string", b"").decode("latin-1")
    return f"{path}?{_TOKEN.sub(_HIDDEN, query)}" if query else path
