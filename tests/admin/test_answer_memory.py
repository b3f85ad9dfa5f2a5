"""Answers over HTTP share a limit on memory, and are made only while somebody listens."""

import asyncio
from typing import Any

import pytest
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from virtual_loop import run_virtually

from pybroker.admin.http.answer_memory import (
    FREE_BYTES,
    TAKE_S,
    AnswerMemory,
    AnswerTooLarge,
    PartOfRoom,
    Room,
    room_of,
)
from pybroker.admin.http.answering import Answering
from pybroker.admin.http.guard import Guard
from pybroker.admin.http.hanging_up import HANG_UP, unless_gone
from pybroker.base.errors import ServiceNotReady

LARGE = 8 * FREE_BYTES
LIMIT = 2 * LARGE
METHODS = ("GET", "HEAD", "POST", "DELETE")


class Peer:
    """Asks `app`; takes the answer once `reads` is set."""

    def __init__(self, app: ASGIApp, method: str = "GET", reads: bool = True) -> None:
        self.reads, self.gone = asyncio.Event(), asyncio.Event()
        self.status, self.sizes = 0, list[int]()
        if reads:
            self.reads.set()
        scope = {
            "type": "http",
            "method": method,
            "headers": [],
            "path": "/",
            HANG_UP: self.gone.set,
        }
        self.answered = asyncio.ensure_future(app(scope, self._receive, self._send))

    async def _receive(self) -> Message:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            return
        self.sizes.append(len(message.get("body", b"")))
        reading = asyncio.ensure_future(self.reads.wait())
        leaving = asyncio.ensure_future(self.gone.wait())
        await asyncio.wait([reading, leaving], return_when=asyncio.FIRST_COMPLETED)
        reading.cancel()
        leaving.cancel()


def answers(size_bytes: int) -> ASGIApp:
    return Response(bytes(size_bytes))


async def settled() -> None:
    for _ in range(200):
        await asyncio.sleep(0)


def test_an_answer_is_sent_in_pieces_and_its_memory_is_free_afterwards() -> None:
    async def scenario() -> None:
        memory = AnswerMemory(LIMIT)
        peer = Peer(Answering(answers(LARGE), memory))
        await peer.answered
        assert (peer.status, sum(peer.sizes), max(peer.sizes)) == (200, LARGE, 64 * 1024)
        assert memory.taken_bytes == 0

    run_virtually(scenario())


def test_large_answers_beyond_the_limit_wait_for_those_before_them() -> None:
    async def scenario() -> None:
        memory = AnswerMemory(LIMIT)
        app = Answering(answers(LARGE), memory)
        slow = [Peer(app, reads=False) for _ in range(2)]
        await settled()
        small = Peer(Answering(answers(FREE_BYTES), memory))
        third = Peer(app)
        await settled()
        assert (small.status, third.status, memory.taken_bytes) == (200, 0, LIMIT)
        slow[0].reads.set()
        await third.answered
        assert (sum(slow[0].sizes), sum(third.sizes), slow[1].gone.is_set()) == (
            LARGE,
            LARGE,
            False,
        )
        slow[1].reads.set()
        await slow[1].answered
        assert memory.taken_bytes == 0

    run_virtually(scenario())


def test_who_reads_slowly_is_hung_up_on_once_others_wait() -> None:
    async def scenario() -> None:
        memory, loop = AnswerMemory(LIMIT), asyncio.get_running_loop()
        app = Answering(answers(LIMIT), memory)
        slow = Peer(app, reads=False)
        await asyncio.sleep(10 * TAKE_S)
        assert not slow.gone.is_set()
        began_s, patient = loop.time(), Peer(app)
        await patient.answered
        assert (slow.gone.is_set(), sum(patient.sizes)) == (True, LIMIT)
        assert loop.time() - began_s <= TAKE_S

    run_virtually(scenario())


def test_answers_that_wait_although_they_are_made_are_limited_too() -> None:
    async def scenario() -> None:
        app = Answering(answers(LIMIT), AnswerMemory(LIMIT))
        peers = [Peer(app, reads=False) for _ in range(3)]
        await settled()
        assert [peer.status for peer in peers] == [200, 0, 503]
        for peer in peers:
            peer.reads.set()
        await asyncio.gather(*(peer.answered for peer in peers))
        assert [peer.status for peer in peers] == [200, 200, 503]

    run_virtually(scenario())


def test_every_wait_ends_with_a_refusal_in_words() -> None:
    async def scenario() -> None:
        memory = AnswerMemory(LIMIT)
        holding = Room(memory, lambda: None)
        await holding.take(LIMIT)
        with pytest.raises(ServiceNotReady, match="try again"):
            await Room(memory, lambda: None).take(LARGE)
        holding.give_back()
        assert memory.taken_bytes == 0

    run_virtually(scenario())


def test_who_waits_no_longer_lets_those_behind_it_through() -> None:
    async def scenario() -> None:
        memory = AnswerMemory(LIMIT)
        first, second, third = (Room(memory, lambda: None) for _ in range(3))
        await first.take(LARGE)
        waiting = asyncio.ensure_future(second.take(LIMIT))
        await settled()
        behind = asyncio.ensure_future(third.take(LARGE))
        await settled()
        assert not behind.done()
        waiting.cancel()
        await behind
        assert memory.taken_bytes == 2 * LARGE

    run_virtually(scenario())


def test_a_request_takes_anew_in_place_of_what_it_held() -> None:
    async def scenario() -> None:
        memory = AnswerMemory(LIMIT)
        room = Room(memory, lambda: None)
        for size_bytes in (LARGE, LIMIT, FREE_BYTES, LARGE):
            await room.take(size_bytes)
            assert memory.taken_bytes == (size_bytes if size_bytes > FREE_BYTES else 0)

    run_virtually(scenario())


def test_a_part_of_a_room_refuses_what_is_too_large_for_it() -> None:
    part = PartOfRoom(None, 100)
    assert part.take_now(100)
    with pytest.raises(AnswerTooLarge, match="101 bytes"):
        part.take_now(101)
    assert room_of({}).take_now(2**40)


def test_reading_ends_when_nobody_listens_and_changing_does_not() -> None:
    async def scenario() -> None:
        ended = dict[str, bool]()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            ended[scope["method"]] = False
            try:
                await asyncio.sleep(60)
                await Response()(scope, receive, send)
            finally:
                ended[scope["method"]] = asyncio.get_running_loop().time() < 60

        peers = {method: Peer(Answering(app, AnswerMemory(LIMIT)), method) for method in METHODS}
        await settled()
        for peer in peers.values():
            peer.gone.set()
        await asyncio.gather(*(peer.answered for peer in peers.values()))
        assert ended == {"GET": True, "HEAD": True, "POST": False, "DELETE": False}

    run_virtually(scenario())


def test_an_application_may_wait_for_the_end_of_a_request_without_a_body() -> None:
    """Its body is over at once, although the server has been asked for it already."""

    async def scenario() -> None:
        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            first = await receive()
            assert (first["type"], first["more_body"]) == ("http.request", False)
            await unless_gone(receive, asyncio.sleep(3600))
            await Response()(scope, receive, send)

        peer = Peer(Answering(Guard(app, None), AnswerMemory(LIMIT)))
        await peer.answered
        assert peer.status == 200

    run_virtually(scenario())


def test_an_answer_that_has_begun_and_finds_no_room_is_cut_off() -> None:
    async def scenario() -> None:
        memory = AnswerMemory(LIMIT)

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
            more: dict[str, Any] = {"type": "http.response.body", "body": bytes(LARGE)}
            await send(more)

        await Room(memory, lambda: None).take(LIMIT)
        peer = Peer(Answering(app, memory))
        await peer.answered
        assert (peer.status, peer.sizes, peer.gone.is_set()) == (200, [1], True)

    run_virtually(scenario())
