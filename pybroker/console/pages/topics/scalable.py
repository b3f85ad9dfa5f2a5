"""A scalable topic: its segments, drawn and listed, its subscriptions, producers and actions."""

from typing import Any, Final

from starlette.responses import Response

from pybroker.console.page import View
from pybroker.console.pages.topics.segments import drawing
from pybroker.console.pages.topics.subject import Subject
from pybroker.console.visit import Visit

SCALABLE: Final = "/admin/v2/scalable/{tenant}/{namespace}/{topic}"
_BASE: Final = "/console/topics/topic/{tenant:segment}/{namespace:segment}/{topic:segment}"
_MOST_SHOWN: Final = 200


def _subject(visit: Visit) -> Subject:
    parts = visit.parts
    return Subject("topic", parts["tenant"], parts["namespace"], parts["topic"])


async def topic(visit: Visit) -> Response:
    return await _shown(visit, "scalable.html")


async def live(visit: Visit) -> Response:
    return await _shown(visit, "scalable_live.html")


async def _shown(visit: Visit, template: str) -> Response:
    subject = _subject(visit)
    names = subject.schema_names
    stats: dict[str, Any] = await visit.api.get(f"{SCALABLE}/stats", **names)
    record: dict[str, Any] = await visit.api.get(SCALABLE, **names)
    backlogs = _backlogs(stats)
    # What was split or merged between the two requests has no statistics yet.
    loads = stats["layout"]["segments"]
    segments = [(each, loads.get(number)) for number, each in record["segments"].items()]
    segments.sort(key=lambda each: (each[0]["sealed"], each[0]["hashRange"]["start"]))
    subscriptions = sorted(
        stats["subscriptions"].items(), key=lambda item: (-item[1]["backlog"], item[0])
    )
    return await visit.render(
        template,
        subject=subject,
        stats=stats,
        record=record,
        drawing=drawing(record["segments"].values(), backlogs),
        segments=segments[:_MOST_SHOWN],
        unshown_segments=max(0, len(segments) - _MOST_SHOWN),
        active=sum(each["active"] for each, _ in segments),
        backlogs=backlogs,
        subscriptions=subscriptions[:_MOST_SHOWN],
        unshown=max(0, len(subscriptions) - _MOST_SHOWN),
        publishers=stats["producers"][:_MOST_SHOWN],
        may=_what_may_be_done(visit, subject),
    )


def _backlogs(stats: dict[str, Any]) -> dict[int, int]:
    """The largest of any subscription, by segment."""
    found: dict[int, int] = {}
    for subscription in stats["subscriptions"].values():
        for number, of in subscription["segments"].items():
            found[int(number)] = max(found.get(int(number), 0), of["msgBacklog"])
    return found


def _what_may_be_done(visit: Visit, subject: Subject) -> dict[str, bool]:
    def may(method: str, template: str, **more: str) -> bool:
        return visit.api.may(method, template, **subject.schema_names, **more)

    return {
        "split": may("POST", f"{SCALABLE}/split/{{segment}}", segment="0"),
        "merge": may("POST", f"{SCALABLE}/merge/{{segment}}/{{other}}", segment="0", other="1"),
        "delete": may("DELETE", SCALABLE),
    }


async def split(visit: Visit) -> Response:
    subject, segment = _subject(visit), visit.said("segment")
    if not _is_number(segment):
        return visit.go(subject.url, "Choose a segment", failed=True)
    return await visit.act(
        "POST",
        f"{SCALABLE}/split/{{segment}}",
        f"Segment {segment} was split",
        subject.url,
        segment=segment,
        **subject.schema_names,
    )


async def merge(visit: Visit) -> Response:
    subject, one, other = _subject(visit), visit.said("segment"), visit.said("other")
    if not (_is_number(one) and _is_number(other)):
        return visit.go(subject.url, "Choose two segments", failed=True)
    return await visit.act(
        "POST",
        f"{SCALABLE}/merge/{{segment}}/{{other}}",
        f"Segments {one} and {other} were merged",
        subject.url,
        segment=one,
        other=other,
        **subject.schema_names,
    )


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


async def delete(visit: Visit) -> Response:
    subject = _subject(visit)
    visit.confirm(subject.local)
    query: dict[str, Any] = {"force": "true"} if visit.said("force") else {}
    answer = await visit.api.ask("DELETE", SCALABLE, query, **subject.schema_names)
    answer.check()
    return visit.go("/console/topics", f"{subject} was deleted")


VIEWS: Final = (
    View("GET", _BASE, topic),
    View("GET", f"{_BASE}/live", live, live=True),
    View("POST", f"{_BASE}/split", split),
    View("POST", f"{_BASE}/merge", merge),
    View("POST", f"{_BASE}/delete", delete),
)
