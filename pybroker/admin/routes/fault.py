"""Fault points and the clock; only if test mode was switched on at the start."""

from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request

from pybroker.admin.operation import DescribedRoute
from pybroker.admin.routing import number, read_object, route
from pybroker.admin.services import AdminServices
from pybroker.admin.shapes import faults as shapes
from pybroker.base.json_schema import whole
from pybroker.faults.recorder import Recorded
from pybroker.faults.registry import BadRule, Faults, MovableClock, error_name
from pybroker.faults.rule import Rule

_BASE: Final = "/admin/v3/faults"
_CLOCK: Final = "/admin/v3/clock"
_LONGEST_WAIT_MS: Final = 30_000
_MOST: Final = 1000
_SHOWN_POSITIONS: Final = 10
_OPTIONS: Final = frozenset(shapes.NEW_RULE["properties"]) - {"point", "action"}


class FaultRoutes:
    def __init__(self, services: AdminServices) -> None:
        self._served = services.faults

    def routes(self) -> list[DescribedRoute]:
        rules, one = f"{_BASE}/rules", f"{_BASE}/rules/{{number:int}}"
        off = (404,)
        paging = {"after": whole(0), "limit": whole(1, _MOST)}
        wait = {"hits": whole(1), "timeoutMs": whole(0, _LONGEST_WAIT_MS)}
        return [
            route("GET", f"{_BASE}/points", self.points, shapes.POINTS, refuses=off),
            route("GET", f"{_BASE}/passings", self.passings, shapes.PASSINGS, query=paging,
                  refuses=off),
            route("GET", rules, self.rules, shapes.RULES, refuses=off),
            route("POST", rules, self.inject, shapes.RULE, body=shapes.NEW_RULE, refuses=off),
            route("DELETE", rules, self.clear, refuses=off),
            route("GET", one, self.rule, shapes.RULE),
            route("DELETE", one, self.remove),
            route("POST", f"{one}/release", self.release),
            route("GET", f"{one}/hit", self.hit, shapes.HIT, query=wait),
            route("GET", _CLOCK, self.time, shapes.CLOCK, refuses=off),
            route("POST", f"{_CLOCK}/advance", self.advance, shapes.CLOCK, body=shapes.ADVANCE,
                  refuses=off),
        ]  # fmt: skip

    @property
    def _faults(self) -> Faults:
        if self._served is None:
            raise HTTPException(
                404, "This broker is not in test mode: start it with --test-mode or testMode=true"
            )
        return self._served

    # -- points and rules

    async def points(self, _: Request) -> list[Any]:
        """All fault points, what happened there, and the actions and predicates that they take."""
        return [
            {
                "name": point.name,
                "state": point.state,
                "actions": [str(action) for action in point.actions],
                "predicates": list(point.predicates),
            }
            for point in self._faults.points.values()
        ]

    async def rules(self, _: Request) -> list[Any]:
        """The rules that were not removed, oldest first."""
        return [_described(rule) for rule in self._faults.rules]

    async def inject(self, request: Request) -> dict[str, Any]:
        """Add a rule: something goes wrong at a point from now on."""
        faults, body = self._faults, await read_object(request)
        if unknown := body.keys() - shapes.NEW_RULE["properties"].keys():
            known = ", ".join(sorted(shapes.NEW_RULE["properties"]))
            raise HTTPException(400, f"A rule has no {min(unknown)[:200]!r}: it takes {known}")
        given = {name: body[name] for name in _OPTIONS & body.keys() if body[name] is not None}
        try:
            return _described(faults.inject(body["point"], body["action"], **given))
        except BadRule as error:
            raise HTTPException(400, str(error)) from None

    async def clear(self, _: Request) -> None:
        """Remove all rules; steps that they hold continue."""
        self._faults.clear()

    async def rule(self, request: Request) -> dict[str, Any]:
        """One rule, and the number of times that it has struck."""
        return _described(self._rule(request))

    async def remove(self, request: Request) -> None:
        """Remove a rule; steps that it holds continue."""
        self._rule(request).remove()

    async def release(self, request: Request) -> None:
        """Let the steps that this rule holds continue."""
        self._rule(request).release()

    async def hit(self, request: Request) -> dict[str, Any]:
        """Wait until a rule has struck ?hits= times in all (1), for at most ?timeoutMs= (30000)."""
        rule = self._rule(request)
        timeout_ms = number(request, "timeoutMs", _LONGEST_WAIT_MS)
        hits = number(request, "hits", 1)
        if not 0 <= timeout_ms <= _LONGEST_WAIT_MS:
            raise HTTPException(400, f"timeoutMs must be from 0 to {_LONGEST_WAIT_MS}")
        struck = await rule.until_hit(timeout_ms / 1000, hits)
        return {"struck": struck, "rule": _described(rule)}

    def _rule(self, request: Request) -> Rule:
        wanted: int = request.path_params["number"]
        found = self._faults.rule(wanted)
        if found is None:
            raise HTTPException(404, f"There is no rule {wanted}")
        return found

    async def passings(self, request: Request) -> dict[str, Any]:
        """How many times each point was passed, and the passings after number ?after= (0), oldest
        first. They are recorded from the start of test mode; the latest 10,000 are kept.
        """
        recorder = self._faults.record()
        after, limit = number(request, "after", 0), number(request, "limit", 100)
        if not 1 <= limit <= _MOST:
            raise HTTPException(400, f"limit must be from 1 to {_MOST}")
        found = recorder.after(max(0, after), limit)
        return {"counts": dict(recorder.counts), "passings": [_passed(each) for each in found]}

    # -- the clock

    async def time(self, _: Request) -> dict[str, int]:
        """The broker's time, and how far it is ahead of the machine's time."""
        return self._now(self._clock())

    async def advance(self, request: Request) -> dict[str, int]:
        """Advance the clock by "1h", "1m30s" or a number of seconds. The answer comes when
        everything that is due by then has happened, in order.
        """
        clock, body = self._clock(), await read_object(request)
        try:
            await clock.advance_here(body["by"])
        except (ValueError, TimeoutError) as error:
            raise HTTPException(400, str(error)) from None
        return self._now(clock)

    def _clock(self) -> MovableClock:
        clock = self._faults.clock
        if clock is None:
            raise HTTPException(404, "This broker's clock cannot be advanced")
        return clock

    def _now(self, clock: MovableClock) -> dict[str, int]:
        return {"timestamp": clock.now_ms(), "aheadMs": int(clock.offset_s * 1000)}


def _described(rule: Rule) -> dict[str, Any]:
    plan = rule.plan
    return {
        "rule": rule.number,
        "point": plan.point,
        "action": str(plan.action),
        **{
            name: plan.predicates.get(name)
            for name in ("topic", "subscription", "producer", "transaction")
        },
        "error": error_name(plan.error) if plan.action == "fail" else None,
        "message": plan.message,
        "every": plan.every,
        "after": plan.after,
        "times": plan.times,
        "seconds": plan.seconds,
        "hits": rule.hits,
        "matched": rule.matched,
        "holding": rule.holding,
        "spent": rule.is_spent,
    }


def _passed(recorded: Recorded) -> dict[str, Any]:
    passing = recorded.passing
    positions = passing.positions[:_SHOWN_POSITIONS]
    return {
        "number": recorded.number,
        "timestamp": recorded.at_ms,
        "point": passing.point,
        "topic": passing.topic,
        "subscription": passing.subscription,
        "producer": passing.producer,
        "transaction": passing.transaction,
        "client": passing.client,
        "connection": passing.connection,
        "positions": [f"{ledger_id}:{entry_id}" for ledger_id, entry_id in positions],
        "messages": passing.messages,
        "detail": passing.detail,
        "error": passing.error,
        "struck": passing.struck,
    }
