"""Exports a topic's messages as a file: JSON lines, or only the values.

The file is written while the entries are read, an entry at a time, so its size costs no memory. It
ends after the requested number of entries, `_MOST_LOOKED_AT` or `_LONGEST_S`, and before a message
with which it would be larger than `_MOST_BYTES`.
"""

import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Final

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pybroker.admin.http.hanging_up import unless_gone
from pybroker.console.api import Refused, Reply
from pybroker.console.page import View
from pybroker.console.pages.topics.entries import Message, each_message, whole_entry
from pybroker.console.pages.topics.lines import Lines
from pybroker.console.pages.topics.messages import entry_of, is_end
from pybroker.console.pages.topics.subject import BASE, Subject, partitions_of
from pybroker.console.visit import Visit
from pybroker.wire.message_metadata import BadEntry

MOST_ENTRIES: Final = 10_000
_MOST_BYTES: Final = 256 * 1024 * 1024
_LONGEST_S: Final = 300.0
_MOST_LOOKED_AT: Final = 1024 * 1024 * 1024  # bytes of entries
_FORMATS: Final = {
    "jsonl": ("application/x-ndjson", "jsonl"),
    "raw": ("application/octet-stream", "bin"),
}


async def export(visit: Visit) -> Response:
    """Parameters: ?from, ?first and ?count as on the page of messages; ?format is jsonl or raw."""
    subject = Subject.of(visit)
    if await partitions_of(visit, subject):
        raise Refused(409, "Messages are in the partitions: export one of them")
    kind = visit.query("format", "jsonl")
    if kind not in _FORMATS:
        raise Refused(400, "The format is jsonl or raw")
    first = visit.number("first", 1, least=1)
    reply = await entry_of(visit, subject, visit.query("from", "oldest"), first)
    if reply.status >= 400 and not is_end(reply):
        reply.check()
    return _Download(visit, subject, kind, first, reply)


class _Download(Response):
    def __init__(self, visit: Visit, subject: Subject, kind: str, first: int, reply: Reply) -> None:
        media_type, ending = _FORMATS[kind]
        name = re.sub(r"[^A-Za-z0-9._-]", "_", subject.local)[:100]
        headers = {"content-disposition": f'attachment; filename="{name}.{ending}"'}
        super().__init__(headers=headers, media_type=media_type)
        del self.headers["content-length"]
        self._visit = visit
        self._subject = subject
        self._lines = Lines(kind == "jsonl", _MOST_BYTES)
        self._says_problems = kind == "jsonl"
        self._first = first
        self._first_reply = reply

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(ClientDisconnect):
            await unless_gone(receive, self._send_all(scope, send))

    async def _send_all(self, scope: Scope, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        if scope["method"] != "HEAD":
            async for data in self._pieces():
                await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _pieces(self) -> AsyncIterator[bytes]:
        visit, seen = self._visit, ""
        reply: Reply | None = self._first_reply
        del self._first_reply
        visit.api.look_at_most(_MOST_LOOKED_AT)
        count = visit.number("count", 1000, least=1, most=MOST_ENTRIES)
        source, clock = visit.query("from", "oldest"), visit.services.clock
        end_s = clock.monotonic_s() + _LONGEST_S
        for number in range(self._first + 1, self._first + 1 + count):
            assert reply is not None
            place = reply.header("X-Pulsar-Message-ID")
            if is_end(reply) or place == seen:
                return  # examinemessage repeats the last entry
            if reply.status >= 400:
                yield self._problem(f"The broker answered {reply.status}")
                return
            seen = place
            async for data in self._lines.of(_messages(reply)):
                yield data
            if self._lines.is_full or clock.monotonic_s() > end_s:
                yield self._problem(
                    f"The file has reached its maximum size at {place}: export the rest from there"
                )
                return
            reply = None  # before another one takes its room
            if number < self._first + count:
                try:
                    reply = await entry_of(visit, self._subject, source, number)
                except Refused as refused:
                    yield self._problem(refused.reason)
                    return

    def _problem(self, text: str) -> bytes:
        """The last line: why the file ends here."""
        return json.dumps({"problem": text}).encode() + b"\n" if self._says_problems else b""


def _messages(reply: Reply) -> Iterator[Message]:
    """The entry's messages; if the rest of it cannot be split, the whole entry as one message."""
    try:
        yield from each_message(reply)
    except BadEntry:
        yield whole_entry(reply)


VIEWS: Final = (View("GET", f"{BASE}/messages/export", export),)
