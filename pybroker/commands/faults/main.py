"""`pybroker faults`: lists fault points, adds, releases and removes rules, advances the clock."""

import argparse
import json
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pybroker.base.arguments import Parser
from pybroker.commands.admin.access import add_access, rest_of
from pybroker.commands.admin.output import aligned
from pybroker.commands.admin.rest import Rest, RestError
from pybroker.commands.terminal import for_reader, reader_left
from pybroker.faults.points import ACTIONS, POINTS, PREDICATES

_EXIT_FAILED: Final = 1
_BASE: Final = "/admin/v3/faults"
_RULES: Final = f"{_BASE}/rules"
_LONGEST_POLL_S: Final = 30.0
_PASSINGS_A_REQUEST: Final = 1000

Run = Callable[[Rest, Namespace], int]


def main(arguments: Sequence[str]) -> int:
    """Runs one command and returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        code = _list(options) if options.run is None else options.run(rest_of(options), options)
        sys.stdout.flush()
    except BrokenPipeError:
        return reader_left()
    except (RestError, ValueError, OSError) as error:
        print(for_reader(sys.stderr, f"pybroker faults: {error}"), file=sys.stderr)
        return _EXIT_FAILED
    assert isinstance(code, int)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="pybroker faults",
        allow_abbrev=False,
        description="Make things go wrong in a broker that was started with --test-mode. "
        "`list` needs no broker.",
    )
    add_access(parser)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Run, summary: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=summary)
        added.set_defaults(run=run)
        add_access(added, again=True)
        return added

    listed = commands.add_parser("list", help="list all fault points; needs no broker")
    listed.set_defaults(run=None)
    listed.add_argument("--json", action="store_true", help="print the table as JSON")
    _add_rule(command("inject", _inject, "make something go wrong at a point; prints the rule"))
    rules = command("rules", _rules, "list the rules, and how many times each has struck")
    rules.add_argument("--json", action="store_true", help="print the rules as JSON")
    passings = command("passings", _passings, "show how many times each point was passed")
    passings.add_argument("--json", action="store_true", help="print counts and passings as JSON")
    wait = command("wait", _wait, "wait until a rule has struck; exit code 1 if it does not")
    wait.add_argument("rule", type=int, metavar="RULE")
    wait.add_argument(
        "--hits", type=int, default=1, metavar="N", help="number of strikes to wait for (default 1)"
    )
    wait.add_argument(
        "--timeout", type=float, default=30.0, metavar="S", help="seconds to wait (default 30)"
    )
    for name, run, summary in (
        ("release", _release, "resume the steps that a rule with the action hold stops"),
        ("remove", _remove, "remove a rule"),
    ):
        command(name, run, summary).add_argument("rule", type=int, metavar="RULE")
    command("clear", _clear, "remove all rules")
    advance = command("advance", _advance, "advance the broker's clock and print its time")
    advance.add_argument("by", metavar="DURATION", help="90s, 1h30m, 500ms, 7d")
    return parser


def _add_rule(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("point", metavar="POINT", help="see pybroker faults list")
    add("action", choices=[str(action) for action in ACTIONS], metavar="ACTION",
        help="; ".join(f"{action}: {what}" for action, what in ACTIONS.items()))  # fmt: skip
    for name in PREDICATES:
        add(f"--{name}", metavar="NAME", help=f"strike only for this {name} (a name or a glob)")
    add("--once", action="store_true", default=None, help="strike at most once")
    add("--every", type=int, metavar="N", help="strike at every N-th matching passing")
    add("--after", type=int, metavar="N", help="let N matching passings through first")
    add("--times", type=int, metavar="N", help="strike at most N times")
    add(
        "--seconds",
        type=float,
        metavar="S",
        help="length of a delay; time limit of a hold (default 60)",
    )
    add("--error", metavar="NAME", help="error of a failure (default ServiceNotReady)")
    add("--message", metavar="TEXT", help="error message of a failure")


def _list(options: Namespace) -> int:
    if options.json:
        print(json.dumps([_of_point(name) for name in POINTS], indent=2))
        return 0
    rows = [
        [point.name, ",".join(point.actions), ",".join(point.predicates) or "-", point.state]
        for point in POINTS.values()
    ]
    print("\n".join(aligned([["POINT", "ACTIONS", "PREDICATES", "STATE"], *rows])))
    return 0


def _of_point(name: str) -> dict[str, Any]:
    point = POINTS[name]
    return {
        "name": point.name,
        "state": point.state,
        "actions": [str(action) for action in point.actions],
        "predicates": list(point.predicates),
    }


def _inject(rest: Rest, options: Namespace) -> int:
    names = ("point", "action", *PREDICATES, "once", "every", "after", "times", "seconds", "error",
             "message")  # fmt: skip
    given = {name: getattr(options, name) for name in names}
    body = {name: value for name, value in given.items() if value is not None}
    print(rest.ask("POST", _RULES, body)["rule"])
    return 0


def _rules(rest: Rest, options: Namespace) -> int:
    found = rest.ask("GET", _RULES)
    if options.json:
        print(for_reader(sys.stdout, json.dumps(found, indent=2)))
        return 0
    heads = ["RULE", "POINT", "ACTION", "HITS", "HOLDS", "ONLY"]
    print(for_reader(sys.stdout, "\n".join(aligned([heads, *map(_row, found)]))))
    return 0


def _row(rule: Mapping[str, Any]) -> list[str]:
    only = ",".join(f"{name}={rule[name]}" for name in PREDICATES if rule[name] is not None)
    hits = f"{rule['hits']}{'' if rule['times'] is None else '/' + str(rule['times'])}"
    return [str(rule["rule"]), rule["point"], rule["action"], hits, str(rule["holding"]), only]


def _passings(rest: Rest, options: Namespace) -> int:
    query = {"limit": str(_PASSINGS_A_REQUEST)}
    found = rest.ask("GET", f"{_BASE}/passings", query=query)
    if options.json:
        while latest := rest.ask("GET", f"{_BASE}/passings", query=query | _behind(found)):
            if not latest["passings"]:
                break
            found["passings"] += latest["passings"]
        print(for_reader(sys.stdout, json.dumps(found, indent=2)))
        return 0
    rows = [[point, str(count)] for point, count in sorted(found["counts"].items())]
    print("\n".join(aligned([["POINT", "PASSED"], *rows])))
    return 0


def _behind(found: Mapping[str, Any]) -> dict[str, str]:
    passings = found["passings"]
    return {"after": str(passings[-1]["number"] if passings else 0)}


def _wait(rest: Rest, options: Namespace) -> int:
    give_up_s = time.monotonic() + options.timeout
    while True:
        left_s = max(0.0, give_up_s - time.monotonic())
        timeout_ms = str(int(min(left_s, _LONGEST_POLL_S) * 1000))
        query = {"hits": str(options.hits), "timeoutMs": timeout_ms}
        found = rest.ask("GET", f"{_RULES}/{options.rule}/hit", query=query)
        if found["struck"]:
            return 0
        if left_s <= 0 or found["rule"]["spent"]:
            rule = found["rule"]
            raise ValueError(
                f"rule {rule['rule']}, {rule['action']} at {rule['point']}, struck {rule['hits']} "
                f"of {options.hits} times; {rule['matched']} passings matched"
            )


def _release(rest: Rest, options: Namespace) -> int:
    rest.ask("POST", f"{_RULES}/{options.rule}/release")
    return 0


def _remove(rest: Rest, options: Namespace) -> int:
    rest.ask("DELETE", f"{_RULES}/{options.rule}")
    return 0


def _clear(rest: Rest, _: Namespace) -> int:
    rest.ask("DELETE", _RULES)
    return 0


def _advance(rest: Rest, options: Namespace) -> int:
    now = rest.ask("POST", "/admin/v3/clock/advance", {"by": options.by})
    print(time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now["timestamp"] / 1000)))
    return 0
