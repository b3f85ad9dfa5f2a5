"""Which test runs which function, and how long it takes, measured by running every test once."""

import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from live_code import Key, Noting


@dataclass(slots=True)
class Covered:
    """The duration and the functions of each test, by test id."""

    seconds: dict[str, float]
    functions: dict[str, set[Key]]

    def tests_of(self, key: Key, budget_s: float) -> list[str]:
        """The tests that run the function: those of its own package, then others, each within the
        budget. The most specific tests come first: quick ones that run few other functions.
        """
        folder = f"tests/{Path(key[0]).parts[key[0].startswith('pybroker/')]}/"
        found = [test for test, functions in self.functions.items() if key in functions]
        found.sort(key=lambda test: self.seconds[test] * len(self.functions[test]))
        own = [test for test in found if test.startswith(folder)]
        others = [test for test in found if not test.startswith(folder)]
        return [*self._within(own, budget_s), *self._within(others, budget_s)]

    def _within(self, tests: list[str], budget_s: float) -> Iterator[str]:
        for test in tests:
            if budget_s < 0:
                return
            budget_s -= self.seconds[test]
            yield test

    def save(self, path: Path) -> None:
        """Save; functions are stored as numbers, because hundreds of tests run most of them."""
        every = sorted({key for keys in self.functions.values() for key in keys})
        numbers = {key: number for number, key in enumerate(every)}
        functions = {
            test: sorted(numbers[key] for key in keys) for test, keys in self.functions.items()
        }
        stored = {"seconds": self.seconds, "keys": every, "functions": functions}
        path.write_text(json.dumps(stored))

    def add(self, other: "Covered") -> None:
        self.seconds.update(other.seconds)
        self.functions.update(other.functions)

    @classmethod
    def load(cls, path: Path) -> "Covered":
        stored = json.loads(path.read_text())
        every: list[Key] = [(path, name) for path, name in stored["keys"]]
        functions = {
            test: {every[number] for number in numbers}
            for test, numbers in stored["functions"].items()
        }
        return cls(stored["seconds"], functions)


def measure(items: Iterable[Any], run: Callable[[Any], bool], noting: Noting) -> Covered:
    """`run` returns whether the test passed: a test that fails without a mutant proves nothing."""
    covered = Covered({}, {})
    for item in items:
        noting.begin()
        started = time.perf_counter()
        if run(item):
            covered.seconds[item.nodeid] = time.perf_counter() - started
            covered.functions[item.nodeid] = noting.ran()
    return covered
