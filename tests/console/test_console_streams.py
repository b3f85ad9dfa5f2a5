"""Live parts as server-sent events: for permitted roles, while permitted, in limited number."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count

import httpx
import pytest
from browsing import Browser, tile, words
from credentials import token
from permission_world import World
from starlette.types import Message

import pybroker.testing
from pybroker.client import Client
from pybroker.console import stream
from pybroker.console.stream import (
    MEDIA_TYPE,
    MOST_OF_BROWSER,
    MOST_STREAMS,
    EventStream,
    Part,
    Place,
    Streams,
    event_of,
)
from pybroker.testing import RunningBroker, VirtualClock
from pybroker.testing.clock import AdvancingLoop
from pybroker.testing.clock import _in_real_time as in_real_time

OVERVIEW = "/console/overview/live"
EVIL = "<script>alert(1)</script>"
PATIENCE_S = 60.0
AS_STREAM = {"accept": MEDIA_TYPE}


@pytest.fixture(scope="module")
def plain() -> Iterator[RunningBroker]:
    with pybroker.testing.broker(http=True) as broker:
        yield broker


@contextmanager
def opened(browser: Browser, path: str) -> Iterator[httpx.Response]:
    with browser.http.stream("GET", path, headers=AS_STREAM, timeout=PATIENCE_S) as answer:
        yield answer


def events(answer: httpx.Response) -> Iterator[tuple[str, str]]:
    """Kind and data of each event; fails after a minute."""
    due_s = time.monotonic() + PATIENCE_S
    kind, data = "", list[str]()
    for line in answer.iter_lines():
        assert time.monotonic() < due_s
        if line.startswith("event: "):
            kind = line.removeprefix("event: ")
        elif line.startswith("data: "):
            data.append(line.removeprefix("data: "))
        elif not line and data:
            yield kind, "\n".join(data)
            kind, data = "", []


def test_what_happens_is_shown_without_being_asked_for(plain: RunningBroker) -> None:
    browser = Browser(plain.admin_url)
    with opened(browser, OVERVIEW) as answer:
        assert answer.headers["content-type"].startswith(MEDIA_TYPE)
        assert answer.headers["cache-control"] == "no-store"
        coming = events(answer)
        kind, first = next(coming)
        assert kind == "part" and tile(first, "Open") != "1" and "hx-get" not in first
        client = Client(plain.service_url, enable_transaction=True)
        transaction = client.new_transaction(600_000)
        assert any(tile(part, "Open") == "1" for _, part in coming)
        transaction.abort()
        client.close()


def test_a_browser_without_a_stream_asks_again(plain: RunningBroker) -> None:
    browser = Browser(plain.admin_url)
    part = browser.http.get(OVERVIEW, headers={"hx-request": "true"}).text
    assert f'hx-get="{OVERVIEW}"' in part and "data-stream" not in part
    assert f'data-stream="{OVERVIEW}"' in browser.page("/console")


def test_nothing_hostile_breaks_out_of_an_event(plain: RunningBroker) -> None:
    client = Client(plain.service_url, enable_transaction=True, transactional_id=f"{EVIL}\r\ndata:")
    transaction = client.new_transaction(600_000)
    with opened(Browser(plain.admin_url), "/console/transactions/live/rows") as answer:
        _, part = next(events(answer))
    assert EVIL not in part and EVIL in words(part)
    transaction.abort()
    client.close()
    assert event_of("x", b"a\r\nb\rc\nd") == b"event: x\ndata: a\ndata: b\ndata: c\ndata: d\n\n"


def test_another_site_opens_no_stream(plain: RunningBroker) -> None:
    browser = Browser(plain.admin_url)
    headers = AS_STREAM | {"sec-fetch-site": "cross-site"}
    assert browser.http.get(OVERVIEW, headers=headers).status_code == 403


def test_a_browsers_streams_are_limited_and_their_places_are_freed(plain: RunningBroker) -> None:
    browser = Browser(plain.admin_url)
    browser.page("/console")
    with ExitStack() as stack:
        for _ in range(MOST_OF_BROWSER):
            assert stack.enter_context(opened(browser, OVERVIEW)).status_code == 200
        assert browser.http.get(OVERVIEW, headers=AS_STREAM).status_code == 429
        assert browser.open(OVERVIEW).status_code == 200, "it asks again instead"
    due_s, status = time.monotonic() + PATIENCE_S, 429
    while status == 429:
        assert time.monotonic() < due_s
        with opened(browser, OVERVIEW) as answer:
            status = answer.status_code
    assert status == 200


def test_the_number_of_all_streams_is_limited() -> None:
    streams = Streams()
    with ExitStack() as stack:
        for number in range(MOST_STREAMS):
            assert streams.make_room(str(number))
            stack.enter_context(streams.opened(str(number)))
        assert not streams.make_room("one more")
    assert len(streams) == 0 and streams.make_room("one more")


def test_a_machine_that_has_all_streams_gives_some_to_another() -> None:
    streams = Streams()
    with ExitStack() as stack:
        greedy = [stack.enter_context(streams.opened(str(n), "a")) for n in range(MOST_STREAMS)]
        for number in range(MOST_STREAMS // 2):
            assert streams.make_room(f"b{number}", "b")
            stack.enter_context(streams.opened(f"b{number}", "b"))
        assert [each.given_away for each in greedy] == [True] * 25 + [False] * 25, "the oldest"
        assert not streams.make_room("b25", "b"), "they have as many"
        assert not streams.make_room("50", "a")
        assert len(streams) == MOST_STREAMS
    assert len(streams) == 0


def test_a_stream_whose_place_is_given_away_ends_and_does_not_say_that_the_session_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream, "_SOONEST_S", 0.01)
    streams, sent = Streams(), list[bytes]()
    begun = asyncio.Event()

    async def part() -> Part:
        return Part(b"")

    async def send(message: Message) -> None:
        sent.append(message.get("body", b""))
        begun.set()

    async def watch() -> None:
        async def receive() -> Message:
            return await asyncio.get_running_loop().create_future()

        watched = EventStream(streams, "b", Part(b"0"), part, lambda: True, "a")
        watching = asyncio.create_task(watched({}, receive, send))
        await begun.wait()
        with ExitStack() as stack:
            for number in range(MOST_STREAMS - 1):
                stack.enter_context(streams.opened(str(number), "a"))
            assert streams.make_room("other", "other")
            await asyncio.wait_for(watching, PATIENCE_S)

    asyncio.run(watch())
    assert event_of("part", b"0") in sent and event_of("over", b"") not in sent


def test_a_clock_that_is_moved_during_a_part_does_not_delay_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream, "_SOONEST_S", 0.01)
    loop = AdvancingLoop(VirtualClock())
    parts, sent = count(1), list[bytes]()

    async def part() -> Part:
        loop.move(86_400)
        return Part(b"%d" % next(parts), is_last=len(sent) > 3)

    async def receive() -> Message:
        return await loop.create_future()

    async def send(message: Message) -> None:
        sent.append(message.get("body", b""))

    async def watch() -> None:
        limit = threading.Timer(PATIENCE_S, loop.call_soon_threadsafe, [watching.cancel])
        limit.start()  # real time
        try:
            await EventStream(Streams(), "b", Part(b"0"), part, lambda: True)({}, receive, send)
        finally:
            limit.cancel()

    watching = loop.create_task(watch())
    try:
        loop.run_until_complete(watching)
    finally:
        loop.close()
    assert sent[-2:] == [event_of("last", b"2"), b""]


def test_an_advance_of_the_clock_does_not_stop_at_the_pauses_of_a_stream() -> None:
    loop = AdvancingLoop(VirtualClock())

    async def watch() -> None:
        async def part() -> Part:
            return Part(b"")

        watched = EventStream(Streams(), "b", Part(b""), part, lambda: True)
        pausing = loop.create_task(watched._stays_open(60.0, Place("b", "")))
        await asyncio.sleep(0)
        assert [in_real_time(timer) for timer in loop._scheduled] == [True]
        pausing.cancel()

    try:
        loop.run_until_complete(watch())
    finally:
        loop.close()


def test_a_broker_that_stops_does_not_wait_for_its_streams(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with ExitStack() as streams, pybroker.testing.broker(http=True) as broker:
        answer = streams.enter_context(opened(Browser(broker.admin_url), OVERVIEW))
        assert next(events(answer))[0] == "part"
    assert "cancelled" not in caplog.text


# -- with authentication


def test_without_a_login_there_is_no_stream(broker: RunningBroker) -> None:
    answer = Browser(broker.admin_url).http.get(OVERVIEW, headers=AS_STREAM)
    assert (answer.status_code, answer.text) == (401, "")


def test_a_stream_is_refused_where_its_page_is(world: World, broker: RunningBroker) -> None:
    world.admin("PUT", world.on_topic())
    browser = Browser(broker.admin_url)
    browser.log_in(token("nobody"))
    path = f"/console/topics/persistent/{world.namespace}/t/live"
    answer = browser.http.get(path, headers=AS_STREAM)
    assert answer.status_code == browser.open(path).status_code == 403


def test_a_stream_ends_with_the_logout(broker: RunningBroker) -> None:
    browser = Browser(broker.admin_url)
    browser.log_in(token("admin"))
    with opened(browser, OVERVIEW) as answer:
        coming = events(answer)
        assert next(coming)[0] == "part"
        browser.send("/console/logout", "/console")
        assert list(coming)[-1] == ("over", "")


def test_a_stream_ends_with_its_token(broker: RunningBroker) -> None:
    browser = Browser(broker.admin_url)
    browser.log_in(token("admin", exp=int(time.time()) + 2))
    with opened(browser, OVERVIEW) as answer:
        if answer.status_code == 200:  # on a slow machine the login may have expired
            assert list(events(answer))[-1] == ("over", "")


def test_a_stream_ends_when_its_role_may_no_longer_look(
    world: World, broker: RunningBroker
) -> None:
    world.grant("reader", "consume")
    world.admin("PUT", world.on_topic())
    browser = Browser(broker.admin_url)
    browser.log_in(token("reader"))
    path = f"/console/topics/persistent/{world.namespace}/t/live"
    with opened(browser, path) as answer:
        coming = events(answer)
        assert next(coming)[0] == "part"
        world.revoke("reader")
        kind, part = list(coming)[-1]
    assert kind == "last" and "notice failed" in part
