"""How every answer over HTTP is given: only while somebody listens, within the limits on memory,
and in pieces.

This is the outermost stage, so it is the same for the admin API, the console and whatever comes.
"""

import asyncio
from typing import Final

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pybroker.admin.http.answer_memory import FREE_BYTES, ROOM, AnswerMemory, Room
from pybroker.admin.http.hanging_up import HANG_UP, unless_gone
from pybroker.base.errors import ServiceNotReady
from pybroker.base.runtime import Pace

_PIECE_BYTES: Final = 64 * 1024
_PIECES_A_TURN: Final = 16
_READING: Final = ("GET", "HEAD")


class Answering:
    def __init__(self, app: ASGIApp, memory: AnswerMemory) -> None:
        self._app = app
        self._memory = memory

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        room = Room(self._memory, scope.get(HANG_UP, _client_gone))
        answer, scope = _Answer(scope, room, send), {**scope, ROOM: room}
        try:
            if scope["method"] in _READING and not _has_a_body(scope):
                await unless_gone(receive, self._app(scope, _no_body(), answer.send))
            else:
                await self._app(scope, receive, answer.send)
        except ClientDisconnect:
            pass
        finally:
            room.give_back()


class _Answer:
    """Sends an answer in pieces. Its head waits for the first of its body, which may not fit."""

    def __init__(self, scope: Scope, room: Room, send: Send) -> None:
        self._scope = scope
        self._room = room
        self._send = send
        self._head: Message | None = None
        self._refused = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._head = message
            return
        size_bytes = len(message.get("body", b""))
        counts_here = size_bytes > max(FREE_BYTES, self._room.held_bytes)
        if self._refused or (counts_here and not await self._fits(size_bytes)):
            return
        if self._head is not None:
            head, self._head = self._head, None
            await self._send(head)
        if size_bytes <= _PIECE_BYTES:
            await self._send(message)
        else:
            await self._send_pieces(message["body"], message.get("more_body", False))
        if counts_here:
            self._room.give_back()

    async def _fits(self, size_bytes: int) -> bool:
        """Makes room; without any, refuses, or closes the connection if the answer has begun."""
        try:
            await self._room.take(size_bytes, made=True)
        except ServiceNotReady as busy:
            self._refused = True
            if self._head is None:
                self._room.hang_up()
            else:
                answer = JSONResponse({"reason": str(busy)}, busy.http_status)
                await answer(self._scope, _nothing_more, self._send)
            return False
        return True

    async def _send_pieces(self, body: bytes, more_body: bool) -> None:
        """Each piece waits until the peer has taken most of those before it."""
        pace = Pace(_PIECES_A_TURN)
        for start in range(0, len(body), _PIECE_BYTES):
            piece = body[start : start + _PIECE_BYTES]
            more = more_body or start + _PIECE_BYTES < len(body)
            await self._send({"type": "http.response.body", "body": piece, "more_body": more})
            await pace.step()


def _has_a_body(scope: Scope) -> bool:
    headers = Headers(scope=scope)
    return headers.get("content-length", "0") != "0" or "transfer-encoding" in headers


def _no_body() -> Receive:
    """For an application that is cancelled when its client hangs up: it need not notice itself."""
    received = False

    async def receive() -> Message:
        nonlocal received
        if received:
            await asyncio.get_running_loop().create_future()
        received = True
        return {"type": "http.request", "body": b"", "more_body": False}

    return receive


async def _nothing_more() -> Message:
    return {"type": "http.disconnect"}


def _client_gone() -> None:
    pass
