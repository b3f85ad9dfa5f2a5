"""Spark queries that store markers in this broker: each query's last batch, its fence and its lag.

A query has a subscription `query-<id>` on its control topic, in whose backlog its newest marker
stays. Control topics with usual names are found; the user must enter others.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from starlette.responses import Response

from pybroker.base.errors import InvalidTopicName
from pybroker.base.json_text import json_of
from pybroker.base.names import TopicName
from pybroker.base.runtime import own_turn
from pybroker.console.api import Refused
from pybroker.console.page import Page, View
from pybroker.console.pages.topics.entries import Message, messages_of
from pybroker.console.visit import Visit

_PATH: Final = "/console/pipelines"
_TOPIC: Final = "/admin/v2/{domain}/{tenant}/{namespace}/{topic}"
_USUAL_STARTS: Final = ("__spark-query-", "__spark-jobs", "spark-query-", "spark-jobs")
_USUAL_END: Final = "-control"
_PREFIX: Final = "query-"
_MOST_TOPICS: Final = 50
_MOST_NAMESPACES: Final = 200
_MOST_QUERIES: Final = 100
_MOST_SOURCES: Final = 100  # per query; each costs a request
_MOST_BYTES: Final = 1024 * 1024  # of a marker
_MOST_CHARS: Final = 1024  # of a name in it
_MOST_ENTRIES: Final = 20  # searched for a query's marker, because queries may share a topic


@dataclass(slots=True)
class Source:
    """A subscription that the query reads."""

    topic: str
    subscription: str
    position: str
    backlog: int | None = None


@dataclass(slots=True)
class Query:
    query_id: str
    control_topic: str
    batch: int | None = None  # -1: no batch yet
    at_ms: float | None = None
    sources: list[Source] = field(default_factory=list)
    problem: str = ""

    @property
    def lag(self) -> int | None:
        known = [each.backlog for each in self.sources if each.backlog is not None]
        return sum(known) if known else None


async def pipelines(visit: Visit) -> Response:
    control, problem = visit.query("control"), ""
    queries: list[Query] = []
    try:
        topics = [TopicName.parse(control)] if control else await _control_topics(visit)
        for topic in topics[:_MOST_TOPICS]:
            queries += await _queries(visit, topic)
    except (InvalidTopicName, Refused) as error:
        problem = str(error)
    return await visit.render(
        "pipelines.html",
        queries=queries[:_MOST_QUERIES],
        unshown=max(0, len(queries) - _MOST_QUERIES),
        control=control,
        problem=problem,
        may_search=visit.api.may("GET", "/admin/v2/tenants"),
    )


async def _control_topics(visit: Visit) -> list[TopicName]:
    """Topics with a usual name; none if the role may not list the tenants."""
    if not visit.api.may("GET", "/admin/v2/tenants"):
        return []
    found: list[TopicName] = []
    for tenant in await visit.api.get("/admin/v2/tenants"):
        namespaces = await visit.api.get("/admin/v2/namespaces/{tenant}", tenant=tenant)
        for namespace in namespaces[:_MOST_NAMESPACES]:
            names: list[str] = await visit.api.get(
                "/admin/v2/{domain}/{tenant}/{namespace}",
                domain="persistent",
                tenant=tenant,
                namespace=namespace.partition("/")[2],
            )
            found += (TopicName.parse(name) for name in _usual(names))
    return found


def _usual(names: Iterable[str]) -> Iterable[str]:
    for name in names:
        own_name = name.rsplit("/", 1)[-1]
        if own_name.startswith(_USUAL_STARTS) or own_name.endswith(_USUAL_END):
            yield name


async def _queries(visit: Visit, topic: TopicName) -> list[Query]:
    names = _names(topic)
    if not visit.api.may("GET", f"{_TOPIC}/subscriptions", **names):
        raise Refused(403, f"On {topic} your role needs the permission consume")
    found: list[str] = await visit.api.get(f"{_TOPIC}/subscriptions", **names)
    ids = [name.removeprefix(_PREFIX) for name in found if name.startswith(_PREFIX)]
    return [await _query(visit, topic, query_id) for query_id in ids[:_MOST_QUERIES]]


async def _query(visit: Visit, topic: TopicName, query_id: str) -> Query:
    query = Query(query_id, str(topic))
    try:
        marker = await _newest_marker(visit, topic, query)
    except Refused as refused:
        query.problem = refused.reason
        return query
    if marker is None:
        query.problem = "Its subscription has no marker"
        return query
    query.batch = int(marker["batch_id"])
    for source in islice(_sources(marker), _MOST_SOURCES):
        source.backlog = await _backlog(visit, source)
        query.sources.append(source)
    return query


def _sources(marker: Mapping[str, Any]) -> Iterator[Source]:
    for subscription, places in marker["ends"].items():
        for topic, position in places.items():
            yield Source(topic[:_MOST_CHARS], subscription[:_MOST_CHARS], str(position)[:100])


async def _newest_marker(visit: Visit, topic: TopicName, query: Query) -> Mapping[str, Any] | None:
    """The query's last marker among the first messages in its subscription's backlog."""
    template = f"{_TOPIC}/subscription/{{subscription}}/position/{{number}}"
    name, newest = f"{_PREFIX}{query.query_id}", None
    for number in range(1, _MOST_ENTRIES + 1):
        reply = await visit.api.ask(
            "GET", template, subscription=name, number=number, **_names(topic)
        )
        if reply.status == 404:
            break
        for message in reversed(await messages_of(reply.check(), _MOST_BYTES)):
            if (marker := await _marker(message, query.query_id)) is not None:
                newest, query.at_ms = marker, message.published_ms
                break
        del reply  # before another one takes its room
    return newest


async def _marker(message: Message, query_id: str) -> Mapping[str, Any] | None:
    """The marker in a message; None if the message is not a marker of this query."""
    if message.uncommitted or message.aborted or message.data is None:
        return None
    if message.size_bytes > _MOST_BYTES:
        return None
    await own_turn()
    try:
        found = json_of(message.data)
        int(found["batch_id"])
        fits = found["query_id"] == query_id and all(
            isinstance(places, dict) for places in found["ends"].values()
        )
    except (ArithmeticError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    return found if fits else None


async def _backlog(visit: Visit, source: Source) -> int | None:
    """The backlog; None if the role may not see it."""
    try:
        names = _names(TopicName.parse(source.topic))
        if not visit.api.may("GET", f"{_TOPIC}/stats", **names):
            return None
        stats = await visit.api.get(f"{_TOPIC}/stats", **names)
        return int(stats["subscriptions"][source.subscription]["msgBacklog"])
    except (InvalidTopicName, UnicodeEncodeError, Refused, KeyError):
        return None


def _names(topic: TopicName) -> dict[str, str]:
    return {
        "domain": topic.domain,
        "tenant": topic.tenant,
        "namespace": topic.namespace,
        "topic": topic.local,
    }


PAGE: Final = Page("Spark", _PATH, (View("GET", _PATH, pipelines),))
