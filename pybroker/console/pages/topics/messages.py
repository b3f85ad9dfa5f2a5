"""Peeks at stored messages or at a subscription's backlog, and sends a message."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, Final

from starlette.responses import Response

from pybroker.base.runtime import Pace
from pybroker.console.api import Refused, Reply
from pybroker.console.page import View
from pybroker.console.pages.topics.decoding import MOST_DECODED, Decoder
from pybroker.console.pages.topics.entries import Message, messages_of
from pybroker.console.pages.topics.searching import Search
from pybroker.console.pages.topics.subject import (
    BASE,
    SCHEMAS,
    SUBSCRIPTION,
    TOPIC,
    Subject,
    partitions_of,
)
from pybroker.console.visit import Visit

_MOST_ENTRIES: Final = 100
_MOST_MESSAGES: Final = 200  # of all entries of a page
_MOST_BYTES: Final = 16 * 1024 * 1024  # of entries, for a page
_MOST_CHARS: Final = 4096  # of a message's properties, as shown
_DECODED_A_TURN: Final = 5
_STORED: Final = {"oldest": "earliest", "newest": "latest"}
_NOT_FOUND: Final = 404


async def messages(visit: Visit) -> Response:
    return await _page(visit, "messages.html")


async def live(visit: Visit) -> Response:
    """The messages alone, for a page that follows the topic."""
    return await _page(visit, "messages_live.html")


async def _page(visit: Visit, template: str) -> Response:
    subject = Subject.of(visit)
    partitions = await partitions_of(visit, subject)
    first = visit.number("first", 1, least=1)
    count = visit.number("count", 10, least=1, most=_MOST_ENTRIES)
    shown = _Shown(visit, await _schemas(visit, subject))
    problem = ""
    if not partitions:
        try:
            async for message in _found(visit, subject, first, count):
                await shown.look_at(message)
        except Refused as refused:
            problem = refused.reason
    return await visit.render(
        template,
        subject=subject,
        partitions=partitions,
        subscriptions=await _subscriptions(visit, subject),
        source=visit.query("from", "newest"),
        first=first,
        count=count,
        show=visit.query("show"),
        filter=visit.query("filter"),
        position=visit.query("position"),
        live_url=_live_url(visit, subject) if visit.query("follow") else "",
        problem=problem,
        messages=shown.matching,
        looked_at=shown.looked_at,
        may_send=subject.may(visit, "POST", "/topics/{domain}/{tenant}/{namespace}/{topic}"),
    )


def _live_url(visit: Visit, subject: Subject) -> str:
    return f"{subject.url}/messages/live?{visit.request.url.query}"


class _Shown:
    """What the page shows of its messages. The rest of them is not kept."""

    def __init__(self, visit: Visit, schemas: list[dict[str, Any]]) -> None:
        """Raises Refused if the filter cannot be parsed."""
        self.matching: list[tuple[Message, str, str, dict[str, str], int]] = []
        self.looked_at = 0
        self._search = Search.of(visit.query("filter"))
        self._how = visit.query("show")
        self._decoder = Decoder(schemas)
        self._pace = Pace(_DECODED_A_TURN)

    async def look_at(self, message: Message) -> None:
        self.looked_at += 1
        if self._search.fits(message.key, message.properties):
            text, what = self._decoder.shown(message, self._how)
            if self._has_words(message, text) and self._has_values(message):
                properties, omitted = _first_properties(message)
                kept = replace(message, data=None, properties={})
                self.matching.append((kept, text, what, properties, omitted))
        await self._pace.step()

    def _has_words(self, message: Message, text: str) -> bool:
        searched = _text_of(message, text) if self._search.words else ""
        return all(word in searched for word in self._search.words)

    def _has_values(self, message: Message) -> bool:
        if not self._search.paths:
            return True
        value = self._decoder.value(message)
        return all(path.is_met_by(value) for path in self._search.paths)


async def _found(visit: Visit, subject: Subject, first: int, count: int) -> AsyncIterator[Message]:
    """The messages to show. Raises Refused, perhaps after some of them."""
    source, position = visit.query("from", "newest"), visit.query("position")
    if position:
        reply = await _by_position(visit, subject, position)
        for message in await messages_of(reply, MOST_DECODED):
            yield message
        return
    found = looked_at_bytes = 0
    seen: set[str] = set()
    for number in range(first, first + count):
        reply = await entry_of(visit, subject, source, number)
        place = reply.header("X-Pulsar-Message-ID")
        if reply.status == _NOT_FOUND or (reply.status < 400 and place in seen):
            break  # examinemessage repeats the last entry
        if reply.status >= 400:
            if is_end(reply):
                break
            reply.check()
        seen.add(place)
        looked_at_bytes += reply.size_bytes
        messages = await messages_of(reply, MOST_DECODED)
        del reply  # before another one takes its room
        for message in messages:
            yield message
        found += len(messages)
        if found >= _MOST_MESSAGES or looked_at_bytes > _MOST_BYTES:
            break


def is_end(reply: Reply) -> bool:
    """Whether the reply says that there is no such entry."""
    is_empty = reply.status == 412 and b"holds no messages" in reply.body
    return reply.status == _NOT_FOUND or is_empty


async def entry_of(visit: Visit, subject: Subject, source: str, number: int) -> Reply:
    """The n-th entry of `source`, a value of the page's form; the reply may be a refusal."""
    if source.startswith("subscription:"):
        name = source.removeprefix("subscription:")
        template = SUBSCRIPTION + "/position/{number}"
        return await visit.api.ask(
            "GET", template, subscription=name, number=number, **subject.names
        )
    query: dict[str, str | int] = {
        "initialPosition": _STORED.get(source, "latest"),
        "messagePosition": number,
    }
    return await visit.api.ask("GET", f"{TOPIC}/examinemessage", query, **subject.names)


async def _by_position(visit: Visit, subject: Subject, position: str) -> Reply:
    ledger, _, entry = position.strip().partition(":")
    if not (ledger.isascii() and ledger.isdigit() and entry.isascii() and entry.isdigit()):
        raise Refused(400, "Enter a position as ledger:entry, for example 12:345")
    names = {"ledger": ledger[:20], "entry": entry[:20]}
    reply = await visit.api.ask(
        "GET", TOPIC + "/ledger/{ledger}/entry/{entry}", **names, **subject.names
    )
    return reply.check()


async def _schemas(visit: Visit, subject: Subject) -> list[dict[str, Any]]:
    try:
        found = await visit.api.get(f"{SCHEMAS}/schemas", **subject.schema_names)
    except Refused:
        return []
    versions: list[dict[str, Any]] = found["getSchemaResponses"]
    return versions


async def _subscriptions(visit: Visit, subject: Subject) -> list[str]:
    if not subject.may(visit, "GET", f"{TOPIC}/subscriptions"):
        return []
    try:
        found: list[str] = await visit.api.get(f"{TOPIC}/subscriptions", **subject.names)
    except Refused:
        return []
    return found[:500]


def _first_properties(message: Message) -> tuple[dict[str, str], int]:
    """The properties that the page shows, and the number of the others."""
    shown, left = dict[str, str](), _MOST_CHARS
    for name, value in message.properties.items():
        left -= len(name) + len(value)
        if left < 0:
            break
        shown[name] = value
    return shown, len(message.properties) - len(shown) + message.omitted


def _text_of(message: Message, text: str) -> str:
    pairs = (f"{name}={value}" for name, value in message.properties.items())
    return " ".join((text, message.key or "", *pairs, message.producer, message.place)).lower()


async def send(visit: Visit) -> Response:
    subject = Subject.of(visit)
    back = f"{subject.url}/messages"
    message: dict[str, Any] = {"payload": str(visit.form.get("payload", ""))}
    if key := visit.said("key"):
        message["key"] = key
    properties = _properties(str(visit.form.get("properties", "")))
    if properties is None:
        return visit.go(back, "Enter properties as lines of name=value", failed=True)
    if properties:
        message["properties"] = properties
    template = "/topics/{domain}/{tenant}/{namespace}/{topic}"
    reply = await visit.api.ask("POST", template, None, {"messages": [message]}, **subject.names)
    if reply.status >= 400:
        try:
            reply.check()
        except Refused as refused:
            return visit.go(back, refused.reason, failed=True)
    (result,) = reply.json()["messagePublishResults"]
    if result["errorCode"]:
        return visit.go(back, result.get("errorMsg", "The message was not published"), failed=True)
    return visit.go(back, f"Published as {result['messageId']}")


def _properties(text: str) -> dict[str, str] | None:
    """Properties from lines of name=value; None if a line is invalid."""
    found = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        name, equals, value = line.partition("=")
        if not equals:
            return None
        found[name.strip()] = value.strip()
    return found


VIEWS: Final = (
    View("GET", f"{BASE}/messages", messages),
    View("GET", f"{BASE}/messages/live", live, live=True),
    View("POST", f"{BASE}/messages/send", send),
)
