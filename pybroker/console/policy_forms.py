"""Sets and removes policies of a topic or a namespace, by the REST routes."""

from typing import Any, Final

from starlette.responses import Response

from pybroker.base.json_text import json_of
from pybroker.broker.policies.policy import Level
from pybroker.broker.policies.table import POLICIES
from pybroker.console.policy_rows import NAMESPACE, TOPIC, Names
from pybroker.console.visit import Visit

_EXAMPLES: Final = '3600, true, "name" or {"field": 1}'


async def set_on_topic(visit: Visit, names: Names, back: str) -> Response:
    return await _set(visit, TOPIC, names, back)


async def set_on_namespace(visit: Visit, names: Names, back: str) -> Response:
    return await _set(visit, NAMESPACE, names, back)


async def remove_from_topic(visit: Visit, names: Names, back: str) -> Response:
    return await _remove(visit, TOPIC, names, back)


async def remove_from_namespace(visit: Visit, names: Names, back: str) -> Response:
    return await _remove(visit, NAMESPACE, names, back)


async def _set(visit: Visit, base: str, names: Names, back: str) -> Response:
    name, said = visit.said("policy"), visit.said("value")
    level = _level(name, base)
    if level is None:
        return visit.go(back, f"There is no policy {name} here", failed=True)
    if not said:
        return visit.go(back, "Enter a value, or remove the policy", failed=True)
    body: Any = None
    if level.bare:
        body = said.encode(errors="replace")
    elif not level.by_query:
        try:
            body = _value(said)
        except (ValueError, RecursionError) as why:
            problem = f"The value of {name} is not JSON: {str(why)[:100]}. Write {_EXAMPLES}"
            return visit.go(back, problem, failed=True)
    query = {level.path: said} if level.by_query else None
    done = f"{name} was set"
    return await visit.act(level.verb, f"{base}/{level.path}", done, back, query, body, **names)


async def _remove(visit: Visit, base: str, names: Names, back: str) -> Response:
    name = visit.said("policy")
    level = _level(name, base)
    if level is None or not level.removable:
        return visit.go(back, f"There is no policy {name} to remove here", failed=True)
    done = f"{name} was removed; the table shows what applies now"
    return await visit.act("DELETE", f"{base}/{level.path}", done, back, **names)


def _level(name: str, base: str) -> Level | None:
    for policy in POLICIES:
        level = policy.topic if base == TOPIC else policy.namespace
        if policy.name == name and level is not None and not level.by_hand:
            return level
    return None


def _value(said: str) -> Any:
    """A policy's value. A word without quotes is a string. Raises ValueError, RecursionError."""
    if said.replace("_", "").replace("-", "").isalpha() and said not in ("true", "false", "null"):
        return said
    return json_of(said)
