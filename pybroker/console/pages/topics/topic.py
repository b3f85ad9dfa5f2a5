"""A topic: its figures, subscriptions, producers and actions."""

from typing import Any, Final

from starlette.responses import Response

from pybroker.console.page import View
from pybroker.console.pages.topics.subject import (
    BASE,
    SUBSCRIPTION,
    TOPIC,
    Subject,
    partitions_of,
    stats_of,
)
from pybroker.console.pages.transactions.bar import bar_of
from pybroker.console.pages.transactions.names import SHARED
from pybroker.console.visit import Visit

_MOST_SHOWN: Final = 200
_LIVE: Final = "/live"


async def topic(visit: Visit) -> Response:
    return await _shown(visit, "topic.html")


async def live(visit: Visit) -> Response:
    return await _shown(visit, "topic_live.html")


async def _shown(visit: Visit, template: str) -> Response:
    subject = Subject.of(visit)
    partitions = await partitions_of(visit, subject)
    stats = await stats_of(visit, subject, partitions)
    subscriptions = sorted(
        stats["subscriptions"].items(), key=lambda item: (-item[1]["msgBacklog"], item[0])
    )
    return await visit.render(
        template,
        subject=subject,
        partitions=partitions,
        stats=stats,
        subscriptions=subscriptions[:_MOST_SHOWN],
        unshown=max(0, len(subscriptions) - _MOST_SHOWN),
        most_backlog=max((each["msgBacklog"] for _, each in subscriptions), default=0),
        publishers=stats["publishers"][:_MOST_SHOWN],
        may=_what_may_be_done(visit, subject),
        bar=await bar_of(visit, str(subject)) if stats.get("blockedEntries") else None,
        **SHARED,
    )


def _what_may_be_done(visit: Visit, subject: Subject) -> dict[str, bool]:
    def may(method: str, template: str, **more: str) -> bool:
        return subject.may(visit, method, template, **more)

    return {
        "subscribe": may("PUT", SUBSCRIPTION, subscription="any"),
        "unload": may("PUT", f"{TOPIC}/unload"),
        "compact": may("PUT", f"{TOPIC}/compaction") and subject.domain == "persistent",
        "terminate": may("POST", f"{TOPIC}/terminate") and subject.domain == "persistent",
        "delete": may("DELETE", TOPIC),
    }


async def create_subscription(visit: Visit) -> Response:
    subject, name = Subject.of(visit), visit.said("subscription")
    if not name:
        return visit.go(subject.url, "Name the subscription", failed=True)
    start = "earliest" if visit.said("start") == "earliest" else "latest"
    done = f"Subscription {name} was created at the {start} message"
    return await visit.act(
        "PUT", SUBSCRIPTION, done, subject.url, None, start, subscription=name, **subject.names
    )


async def unload(visit: Visit) -> Response:
    subject = Subject.of(visit)
    done = "The topic was unloaded; clients reconnect automatically"
    return await visit.act("PUT", f"{TOPIC}/unload", done, subject.url, **subject.names)


async def compact(visit: Visit) -> Response:
    subject = Subject.of(visit)
    done = "The compaction has begun"
    return await visit.act("PUT", f"{TOPIC}/compaction", done, subject.url, **subject.names)


async def terminate(visit: Visit) -> Response:
    subject = Subject.of(visit)
    visit.confirm(subject.local)
    parts = "/partitions" if await partitions_of(visit, subject) else ""
    return await visit.act(
        "POST",
        f"{TOPIC}/terminate{parts}",
        "The topic accepts no more messages",
        subject.url,
        **subject.names,
    )


async def delete(visit: Visit) -> Response:
    subject = Subject.of(visit)
    visit.confirm(subject.local)
    template = f"{TOPIC}/partitions" if await partitions_of(visit, subject) else TOPIC
    query: dict[str, Any] = {"force": "true"} if visit.said("force") else {}
    answer = await visit.api.ask("DELETE", template, query, **subject.names)
    answer.check()
    return visit.go("/console/topics", f"{subject} was deleted")


VIEWS: Final = (
    View("GET", BASE, topic),
    View("GET", BASE + _LIVE, live, live=True),
    View("POST", f"{BASE}/subscribe", create_subscription),
    View("POST", f"{BASE}/unload", unload),
    View("POST", f"{BASE}/compact", compact),
    View("POST", f"{BASE}/terminate", terminate),
    View("POST", f"{BASE}/delete", delete),
)
