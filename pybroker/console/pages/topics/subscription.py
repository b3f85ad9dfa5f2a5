"""A subscription: its consumers, and actions that move its cursor."""

from datetime import UTC, datetime
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.responses import Response

from pybroker.console.page import View
from pybroker.console.pages.topics.subject import (
    BASE,
    SUBSCRIPTION,
    Subject,
    partitions_of,
    stats_of,
)
from pybroker.console.visit import NotConfirmed, Visit

_BASE: Final = BASE + "/subscriptions/{subscription:segment}"
_MOST_SHOWN: Final = 500


async def subscription(visit: Visit) -> Response:
    subject, name = Subject.of(visit), visit.parts["subscription"]
    partitions = await partitions_of(visit, subject)
    stats = await stats_of(visit, subject, partitions)
    found = stats["subscriptions"].get(name)
    if found is None:
        raise HTTPException(404, f"{subject} has no subscription {name}")
    may = {
        path: subject.may(visit, "POST", f"{SUBSCRIPTION}/{path}", subscription=name)
        for path in ("resetcursor", "skip_all", "expireMessages")
    }
    may["delete"] = subject.may(visit, "DELETE", SUBSCRIPTION, subscription=name)
    return await visit.render(
        "subscription.html",
        subject=subject,
        partitions=partitions,
        name=name,
        url=subject.subscription_url(name),
        stats=found,
        of_topic=stats,
        consumers=found["consumers"][:_MOST_SHOWN],
        unshown=max(0, len(found["consumers"]) - _MOST_SHOWN),
        may=may,
    )


async def reset(visit: Visit) -> Response:
    """Moves the cursor to a time, a position, the first stored message, or after the last one."""
    _check_sure(visit)
    where = visit.said("where")
    if where in ("earliest", "latest"):
        return await _act(visit, "resetcursor", f"The cursor is at the {where} message", where)
    if where == "position":
        ledger, _, entry = visit.said("position").partition(":")
        if not _is_number(ledger) or not _is_number(entry):
            return _back(visit, "Enter a position as ledger:entry, for example 12:345")
        body = {"ledgerId": int(ledger), "entryId": int(entry)}
        return await _act(visit, "resetcursor", f"The cursor is at {ledger}:{entry}", body)
    try:
        at = datetime.fromisoformat(visit.said("time"))
    except ValueError:
        return _back(visit, "Enter a time, for example 2026-11-23T21:00")
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    at_ms = max(0, int(at.timestamp() * 1000))
    done = f"The cursor is at the first message published at or after {at.isoformat()} on"
    return await _act(visit, "resetcursor/{timestamp_ms}", done, timestamp_ms=at_ms)


async def skip(visit: Visit) -> Response:
    _check_sure(visit)
    count = visit.said("count")
    if not _is_number(count) or not int(count):
        return _back(visit, "Enter the number of entries as a whole number")
    return await _act(visit, "skip/{count}", f"Up to {count} entries were skipped", count=count)


async def skip_all(visit: Visit) -> Response:
    visit.confirm(visit.parts["subscription"])
    return await _act(visit, "skip_all", "The whole backlog was skipped")


async def expire(visit: Visit) -> Response:
    _check_sure(visit)
    seconds = visit.said("seconds")
    if not _is_number(seconds):
        return _back(visit, "Enter the age as a whole number of seconds")
    done = f"Messages older than {seconds} s have expired"
    return await _act(visit, "expireMessages/{age_s}", done, age_s=seconds)


async def delete(visit: Visit) -> Response:
    subject, name = Subject.of(visit), visit.parts["subscription"]
    visit.confirm(name)
    query = {"force": "true"} if visit.said("force") else {}
    reply = await visit.api.ask("DELETE", SUBSCRIPTION, query, subscription=name, **subject.names)
    reply.check()
    return visit.go(subject.url, f"Subscription {name} was deleted")


def _check_sure(visit: Visit) -> None:
    if not visit.said("sure"):
        raise NotConfirmed("Nothing was done: tick the box to confirm")


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 18


def _url(visit: Visit) -> str:
    return Subject.of(visit).subscription_url(visit.parts["subscription"])


def _back(visit: Visit, problem: str) -> Response:
    return visit.go(_url(visit), problem, failed=True)


async def _act(
    visit: Visit, path: str, done: str, body: Any = None, **names: str | int
) -> Response:
    names |= Subject.of(visit).names | {"subscription": visit.parts["subscription"]}
    return await visit.act("POST", f"{SUBSCRIPTION}/{path}", done, _url(visit), None, body, **names)


VIEWS: Final = (
    View("GET", _BASE, subscription),
    View("POST", f"{_BASE}/reset", reset),
    View("POST", f"{_BASE}/skip", skip),
    View("POST", f"{_BASE}/skip-all", skip_all),
    View("POST", f"{_BASE}/expire", expire),
    View("POST", f"{_BASE}/delete", delete),
)
