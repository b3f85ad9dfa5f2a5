"""`python -m spec` explores every scenario of every model, and then each model without one of its
rules, and prints a table. `python -m spec MODEL...` explores these models only; `--steps` also
prints the shortest way to each promise that is broken without a rule.
"""

import argparse
import sys
import time

from spec.checker import Explored, Rules, Spec, explore, without
from spec.suite import SPECS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m spec", description=__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(_names()))
    parser.add_argument("--steps", action="store_true", help="print the ways to broken promises")
    options = parser.parse_args()
    if unknown := set(options.models) - set(_names()):
        parser.error(f"no model is called {', '.join(unknown)}: there are {', '.join(_names())}")
    wrong = 0
    for spec in SPECS:
        if not options.models or spec.name in options.models:
            wrong += _explore_all(spec, options.steps)
    return 1 if wrong else 0


def _names() -> list[str]:
    return [spec.name for spec in SPECS]


def _explore_all(spec: Spec, with_steps: bool) -> int:
    """The number of scenarios in which a promise is broken, and of rules that nothing needs."""
    print(f"{spec.name:48}{'states':>9}{'s':>7}")
    wrong = 0
    for scenario in spec.scenarios:
        found = _explore(spec, scenario, spec.rules(), scenario)
        if found.broken is not None:
            wrong += 1
            _print_steps(found)
    for rule, (scenario, promise) in spec.switched_off.items():
        found = _explore(spec, scenario, without(spec.rules, rule), f"{scenario}, not {rule}")
        wrong += found.broken is None or found.broken.promise != promise
        if with_steps:
            _print_steps(found)
    return wrong


def _explore(spec: Spec, scenario: str, rules: Rules, title: str) -> Explored:
    began_s = time.process_time()
    found = explore(spec.build(scenario, rules))
    seconds = time.process_time() - began_s
    verdict = found.broken or "every promise holds"
    print(f"  {title:46}{found.states:9,}{seconds:7.1f}  {verdict}", flush=True)
    return found


def _print_steps(found: Explored) -> None:
    for step in found.steps:
        print(f"      {step}")


if __name__ == "__main__":
    sys.exit(main())
