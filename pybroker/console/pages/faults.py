"""Fault points, their rules, recent passings, and the clock of a broker in test mode.

A rule is added in two steps, because each point has its own actions and predicates: first choose a
point, then fill in the form. A form that the admin API refuses is shown again with its values.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import urlencode

from starlette.responses import Response

from pybroker.admin.services import AdminServices
from pybroker.console.api import Refused
from pybroker.console.formats import duration, instant
from pybroker.console.page import Page, View
from pybroker.console.pages.transactions.names import SHARED
from pybroker.console.visit import Visit
from pybroker.faults.points import ACTIONS, PREDICATES

_PATH: Final = "/console/faults"
_API: Final = "/admin/v3/faults"
_CLOCK: Final = "/admin/v3/clock"
_RULES_SHOWN: Final = 200
_PASSINGS_SHOWN: Final = 25
_EVERY_S: Final = 2
_LONGEST_KEPT: Final = 200  # characters of a form's value that is shown again: URLs are limited

Rule = Mapping[str, Any]


async def faults(visit: Visit) -> Response:
    points = await visit.api.get(f"{_API}/points")
    shown = await _live(visit)
    words = visit.query("search").strip().lower()
    chosen = visit.query("point")
    return await visit.render(
        "faults.html",
        search=visit.query("search").strip(),
        steps=_by_step(each for each in points if _has(each, words)),
        choices=_by_step(points),
        chosen=next((each for each in points if each["name"] == chosen), None),
        unknown=chosen,
        is_adding="point" in visit.request.query_params,
        explained=ACTIONS,
        filled=visit.query,
        **shown,
    )


async def live(visit: Visit) -> Response:
    return await visit.render("faults_live.html", **await _live(visit))


async def _live(visit: Visit) -> dict[str, Any]:
    rules = await visit.api.get(f"{_API}/rules")
    counts = (await visit.api.get(f"{_API}/passings", {"limit": 1}))["counts"]
    passed = sum(counts.values())  # also the number of the latest passing
    behind = {"after": max(0, passed - _PASSINGS_SHOWN), "limit": _PASSINGS_SHOWN}
    passings = (await visit.api.get(f"{_API}/passings", behind))["passings"]
    return {
        "url": _PATH,
        "every_s": _EVERY_S,
        "clock": await _clock(visit),
        "rules": [(each, _when(each), _what(each)) for each in reversed(rules[-_RULES_SHOWN:])],
        "all_rules": len(rules),
        "holding": sum(each["holding"] for each in rules),
        "passings": list(reversed(passings)),
        "passed": passed,
        "counts": counts,
        "predicates": PREDICATES,
        **SHARED,
    }


async def _clock(visit: Visit) -> Any:
    """The clock; None if it cannot be advanced."""
    try:
        return await visit.api.get(_CLOCK)
    except Refused as refused:
        if refused.status != 404:
            raise
        return None


def _by_step(points: Any) -> list[tuple[str, list[Any]]]:
    """Points by step, in the table's order; `publish.before_append` is in the step `publish`."""
    steps: dict[str, list[Any]] = {}
    for point in points:
        steps.setdefault(point["name"].rpartition(".")[0], []).append(point)
    return list(steps.items())


def _has(point: Mapping[str, Any], words: str) -> bool:
    texts = (point["name"], point["state"], *point["actions"], *point["predicates"])
    return any(words in text.lower() for text in texts)


def _when(rule: Rule) -> str:
    """Describes at which of the matching passings the rule strikes."""
    parts = ["each passing" if rule["every"] == 1 else f"one passing in {rule['every']}"]
    if rule["after"]:
        parts.append(f"after the first {rule['after']}")
    if rule["times"] is not None:
        parts.append("once" if rule["times"] == 1 else f"at most {rule['times']} times")
    return ", ".join(parts)


def _what(rule: Rule) -> str:
    """Describes the arguments of the rule's action."""
    if rule["action"] == "delay":
        return f"by {duration(rule['seconds'])}"
    if rule["action"] == "hold":
        return f"for at most {duration(rule['seconds'])}"
    return ": ".join(filter(None, (rule["error"], rule["message"])))


# -- forms


def _whole(said: str) -> int | str:
    """A number; other text is left as it is for the admin API to refuse."""
    return int(said) if said.isascii() and said.isdigit() and len(said) <= 18 else said


def _number(said: str) -> float | str:
    try:
        number = float(said)
    except ValueError:
        return said
    return number if math.isfinite(number) else said


_FIELDS: Final[Mapping[str, Callable[[str], Any]]] = {
    "action": str,
    **dict.fromkeys(PREDICATES, str),
    **dict.fromkeys(("after", "every", "times"), _whole),
    "seconds": _number,
    "error": str,
    "message": str,
}


async def add(visit: Visit) -> Response:
    said = {name: visit.said(name) for name in ("point", *_FIELDS)}
    body: dict[str, Any] = {"point": said["point"], "action": said["action"]}
    body |= {name: read(said[name]) for name, read in _FIELDS.items() if said[name]}
    try:
        answer = await visit.api.ask("POST", f"{_API}/rules", None, body)
        rule = answer.check().json()
    except Refused as refused:
        kept = {name: value for name, value in said.items() if 0 < len(value) <= _LONGEST_KEPT}
        return visit.go(f"{_PATH}?{urlencode(kept)}", refused.reason, failed=True)
    return visit.go(_PATH, f"Rule {rule['rule']} was added: {rule['action']} at {rule['point']}")


def _rule(visit: Visit) -> str:
    """The number of the form's rule; "0", which no rule has, if the text is not a number."""
    said = visit.said("rule")
    return said if isinstance(_whole(said), int) else "0"


async def remove(visit: Visit) -> Response:
    number = _rule(visit)
    done = f"Rule {number} was removed; steps that it held continue"
    return await visit.act("DELETE", f"{_API}/rules/{{number}}", done, _PATH, number=number)


async def release(visit: Visit) -> Response:
    number, one = _rule(visit), f"{_API}/rules/{{number}}"
    try:
        rule = await visit.api.get(one, number=number)
    except Refused as refused:
        return visit.go(_PATH, refused.reason, failed=True)
    if not rule["holding"]:
        return visit.go(_PATH, f"Nothing waits at rule {number}", failed=True)
    done = f"Steps that waited at rule {number} continue"
    return await visit.act("POST", f"{one}/release", done, _PATH, number=number)


async def clear(visit: Visit) -> Response:
    done = "All rules were removed; steps that they held continue"
    return await visit.act("DELETE", f"{_API}/rules", done, _PATH)


async def advance(visit: Visit) -> Response:
    try:
        answer = await visit.api.ask("POST", f"{_CLOCK}/advance", None, {"by": visit.said("by")})
        now = answer.check().json()
    except Refused as refused:
        return visit.go(_PATH, refused.reason, failed=True)
    return visit.go(_PATH, f"The broker's clock now shows {instant(now['timestamp'])}")


def _is_offered(services: AdminServices) -> bool:
    return services.faults is not None


PAGE: Final = Page(
    "Faults and clock",
    _PATH,
    (
        View("GET", _PATH, faults),
        View("GET", f"{_PATH}/live", live, live=True),
        View("POST", f"{_PATH}/rules", add),
        View("POST", f"{_PATH}/rules/remove", remove),
        View("POST", f"{_PATH}/rules/release", release),
        View("POST", f"{_PATH}/rules/clear", clear),
        View("POST", f"{_PATH}/clock", advance),
    ),
    ("GET", f"{_API}/points"),
    _is_offered,
)
