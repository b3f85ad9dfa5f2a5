"""Serves one rendering to all clients that request the same thing at about the same time.

A rendering is cancelled when no request waits for it any more. Even then, renderings begin at least
`kept_s` apart, however many clients hang up. At most `MOST_TAKEN` renderings are being sent. When
another one is due, the newest of them is served again, or, once the oldest has been ready for
`TAKE_S`, its clients are disconnected.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final
from weakref import ref

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pybroker.admin.http.hanging_up import HANG_UP, unless_gone
from pybroker.base.runtime import Pace

MOST_TAKEN: Final = 2
TAKE_S: Final = 10.0

Pieces = Sequence[bytes]


class Rendering:
    """The body of a response, and the clients that are receiving it."""

    def __init__(self, pieces: Pieces, ready_s: float) -> None:
        self.pieces = pieces
        self.ready_s = ready_s
        self._takers: dict[object, Callable[[], None]] = {}

    @property
    def is_taken(self) -> bool:
        return bool(self._takers)

    @contextmanager
    def taken(self, hang_up: Callable[[], None]) -> Iterator[None]:
        taker = object()
        self._takers[taker] = hang_up
        try:
            yield
        finally:
            del self._takers[taker]

    def hang_up(self) -> None:
        for hang_up in list(self._takers.values()):
            hang_up()


class Renderings:
    """Makes renderings by `render`, and serves each for `kept_s` after it was made."""

    def __init__(self, render: Callable[[], Awaitable[Pieces]], kept_s: float) -> None:
        self._render = render
        self._kept_s = kept_s
        self._newest: Rendering | None = None
        self._making: asyncio.Task[Rendering] | None = None
        self._waiting = 0
        self._not_before_s = 0.0
        self._all: list[ref[Rendering]] = []

    async def newest(self) -> Rendering:
        """A rendering at most `kept_s` old; up to `TAKE_S` old while too many are being sent to
        make another.
        """
        if self._newest is not None:
            return self._newest
        if (stale := self._last_of_too_many()) is not None:
            return stale
        if self._making is None:
            self._making = asyncio.create_task(self._make(), name="shared rendering")
            self._making.add_done_callback(self._made)
        making = self._making
        self._waiting += 1
        try:
            return await asyncio.shield(making)
        finally:
            self._waiting -= 1
            if not self._waiting and self._making is making:
                self._making = None
                making.cancel()

    def _last_of_too_many(self) -> Rendering | None:
        there = [rendering for each in self._all if (rendering := each()) is not None]
        taken = [rendering for rendering in there if rendering.is_taken]
        self._all = [ref(rendering) for rendering in taken]
        if len(taken) < MOST_TAKEN:
            return None
        if asyncio.get_running_loop().time() < taken[0].ready_s + TAKE_S:
            return taken[-1]
        taken[0].hang_up()
        return None

    async def _make(self) -> Rendering:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, self._not_before_s - loop.time()))
        self._not_before_s = loop.time() + self._kept_s
        return Rendering(await self._render(), loop.time())

    def _made(self, making: asyncio.Task[Rendering]) -> None:
        if self._making is making:
            self._making = None
        if making.cancelled() or making.exception() is not None:
            return
        rendering = making.result()
        self._all.append(ref(rendering))
        if self._kept_s > 0:
            self._newest = rendering
            asyncio.get_running_loop().call_later(self._kept_s, self._forget, ref(rendering))

    def _forget(self, rendering: "ref[Rendering]") -> None:
        if self._newest is rendering():
            self._newest = None


class SharedAnswer(Response):
    """Sends the rendering that is newest when sending begins; `shown` selects its pieces."""

    def __init__(
        self,
        renderings: Renderings,
        media_type: str,
        shown: Callable[[Pieces], Pieces] = lambda pieces: pieces,
    ) -> None:
        super().__init__(media_type=media_type)
        del self.headers["content-length"]
        self._renderings = renderings
        self._shown = shown

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(ClientDisconnect):
            await unless_gone(receive, self._answer(scope, send))

    async def _answer(self, scope: Scope, send: Send) -> None:
        rendering = await self._renderings.newest()
        pace = Pace(1)
        with rendering.taken(scope.get(HANG_UP, _client_gone)):
            pieces = self._shown(rendering.pieces)
            length = sum(map(len, pieces))
            headers = [*self.raw_headers, (b"content-length", b"%d" % length)]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            for piece in pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
                await pace.step()
            await send({"type": "http.response.body", "body": b"", "more_body": False})


def _client_gone() -> None:
    pass
