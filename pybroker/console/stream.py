"""Live parts of pages as server-sent events: one event for each change.

A stream ends when its browser disconnects, its session ends or the broker stops. It checks the
session before each event and at least every two seconds, so nothing is sent after the role has
logged out. The number of streams is limited; without a stream, a page polls with htmx. When all are
in use, the machine with the most gives its oldest to one that has fewer: a visitor is as many
browsers as it says it is.

Source: HTML Living Standard, "Server-sent events".
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pybroker.admin.http.hanging_up import ENDLESS, unless_gone
from pybroker.base.runtime import own_turn, sleep_in_real_time

MEDIA_TYPE: Final = "text/event-stream"
MOST_STREAMS: Final = 50
MOST_OF_BROWSER: Final = 4  # browsers open at most six connections to a server
_SOONEST_S: Final = 2.0
_SHARE: Final = 20  # a stream waits this many times as long as its last part took
_SILENT_S: Final = 15.0  # then a comment is sent, to detect a lost peer
_RETRY_MS: Final = 3000


@dataclass(frozen=True, slots=True)
class Part:
    """The content as rendered now. A part with `is_last` says why no further part follows."""

    html: bytes
    is_last: bool = False


@dataclass(eq=False, slots=True)
class Place:
    """One open stream."""

    browser_id: str
    machine: str
    given_away: bool = False


class Streams:
    """The open streams, the oldest first."""

    def __init__(self) -> None:
        self._open: list[Place] = []

    def __len__(self) -> int:
        return len(self._open)

    def make_room(self, browser_id: str, machine: str = "") -> bool:
        """Whether there is room for one more, perhaps in the place of another machine's."""
        if sum(each.browser_id == browser_id for each in self._open) >= MOST_OF_BROWSER:
            return False
        if len(self._open) < MOST_STREAMS:
            return True
        of_machine = Counter(each.machine for each in self._open)
        richest, most = of_machine.most_common(1)[0]
        if most <= of_machine[machine] + 1:
            return False
        oldest = next(each for each in self._open if each.machine == richest)
        oldest.given_away = True
        self._open.remove(oldest)
        return True

    @contextmanager
    def opened(self, browser_id: str, machine: str = "") -> Iterator[Place]:
        place = Place(browser_id, machine)
        self._open.append(place)
        try:
            yield place
        finally:
            if not place.given_away:
                self._open.remove(place)


class EventStream(Response):
    """Streams the content: `first`, then the results of `part`. None ends the stream, because the
    session has ended; `is_open` is a cheap check of that. Send it in the turn of the loop that
    made room. If its place is given away it ends without a word: the browser asks again.
    """

    media_type = MEDIA_TYPE

    def __init__(
        self,
        streams: Streams,
        browser_id: str,
        first: Part,
        part: Callable[[], Awaitable[Part | None]],
        is_open: Callable[[], bool],
        machine: str = "",
    ) -> None:
        super().__init__()
        del self.headers["content-length"]
        self._streams = streams
        self._browser_id, self._machine = browser_id, machine
        self._first = first
        self._part = part
        self._is_open = is_open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        opened = self._streams.opened(self._browser_id, self._machine)
        with opened as place, suppress(ClientDisconnect):
            scope.get(ENDLESS, _nothing)()
            await unless_gone(receive, self._send_all(send, place))

    async def _send_all(self, send: Send, place: Place) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        await send(_body(b"retry: %d\n\n" % _RETRY_MS))
        async for event in self._events(place):
            await send(_body(event))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _events(self, place: Place) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        sent, sent_s, pause_s = self._first.html, loop.time(), _SOONEST_S
        yield event_of("part", sent)
        while await self._stays_open(pause_s, place):
            await own_turn()
            began_s = time.monotonic()  # the loop's time may jump by hours meanwhile
            part = await self._part()
            if part is None or not self._is_open():
                break
            pause_s = max(_SOONEST_S, _SHARE * (time.monotonic() - began_s))
            if part.html != sent:
                yield event_of("last" if part.is_last else "part", part.html)
                sent, sent_s = part.html, loop.time()
            elif loop.time() >= sent_s + _SILENT_S:
                yield b":\n\n"
                sent_s = loop.time()
            if part.is_last:
                return
        if not place.given_away:
            yield event_of("over", b"")

    async def _stays_open(self, pause_s: float, place: Place) -> bool:
        """Waits; returns False as soon as the session has ended, or the place is given away."""
        loop = asyncio.get_running_loop()
        due_s = loop.time() + pause_s
        while self._is_open() and not place.given_away and (left_s := due_s - loop.time()) > 0:
            await sleep_in_real_time(min(left_s, _SOONEST_S))
        return self._is_open() and not place.given_away


def event_of(name: str, data: bytes) -> bytes:
    """An event. Each line of the data becomes a field, whatever its line ending."""
    lines = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    fields = b"\n".join(b"data: " + line for line in lines)
    return b"event: %s\n%s\n\n" % (name.encode(), fields)


def _body(data: bytes) -> dict[str, object]:
    return {"type": "http.response.body", "body": data, "more_body": True}


def _nothing() -> None:
    pass
