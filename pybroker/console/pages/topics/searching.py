"""What the field "Contains" of the messages' page asks for: words, and conditions.

    key=a-17                 the key is this
    property.city="New York" the property is this; quotes keep spaces together
    $.lines[0].price=5       the decoded value is this there; without =, there is something
    anything else            a word in the value, the key, the properties, the producer or the place

All of them must hold. A value that is not JSON, or too large to be decoded, meets no path.
"""

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pybroker.console.api import Refused

MOST_TERMS: Final = 20
_MOST_STEPS: Final = 20
_PROPERTY: Final = "property."
_STEP: Final = re.compile(r"\.([^.\[\]=]+)|\[(\d{1,9})\]")


class _Nothing:
    """No value is there; None is one."""


NOTHING: Final = _Nothing()
Step = str | int


@dataclass(frozen=True, slots=True)
class Path:
    steps: tuple[Step, ...]
    wanted: str | None  # None: anything

    def is_met_by(self, value: Any) -> bool:
        for step in self.steps:
            value = _inside(value, step)
        if value is NOTHING or self.wanted is None:
            return value is not NOTHING
        return self.wanted == (value if isinstance(value, str) else json.dumps(value))


@dataclass(frozen=True, slots=True)
class Search:
    words: tuple[str, ...] = ()  # in lower case
    key: str | None = None
    properties: tuple[tuple[str, str], ...] = ()
    paths: tuple[Path, ...] = ()

    @classmethod
    def of(cls, text: str) -> "Search":
        """Raises Refused for too many terms, two keys, or a bad path."""
        terms = list(dict.fromkeys(_terms(text)))
        if len(terms) > MOST_TERMS:
            raise Refused(400, f"Search for at most {MOST_TERMS} words and conditions at once")
        words, keys = list[str](), list[str]()
        properties, paths = list[tuple[str, str]](), list[Path]()
        for term in terms:
            name, equals, wanted = term.partition("=")
            if term.startswith("$."):
                paths.append(_path(term))
            elif name == "key" and equals:
                keys.append(wanted)
            elif name.startswith(_PROPERTY) and equals:
                properties.append((name.removeprefix(_PROPERTY), wanted))
            else:
                words.append(term.lower())
        if len(keys) > 1:
            raise Refused(400, "A message has one key: search for one")
        return cls(tuple(words), keys[0] if keys else None, tuple(properties), tuple(paths))

    def fits(self, key: str | None, properties: Mapping[str, str]) -> bool:
        """Whether what is known without the value meets its conditions."""
        return (self.key is None or key == self.key) and all(
            properties.get(name) == wanted for name, wanted in self.properties
        )


def _terms(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # a quote without an end
        return text.split()


def _path(term: str) -> Path:
    """Parses `$.lines[0].price=5`. Raises Refused for another text."""
    steps, at = list[Step](), 1
    while (found := _STEP.match(term, at)) is not None and len(steps) < _MOST_STEPS:
        steps.append(found[1] if found[1] is not None else int(found[2]))
        at = found.end()
    rest = term[at:]
    if rest and not rest.startswith("="):
        raise Refused(400, f"Write a path like $.lines[0].price=5, not {term[:80]}")
    return Path(tuple(steps), rest[1:] if rest else None)


def _inside(value: Any, step: Step) -> Any:
    if isinstance(step, str):
        return value.get(step, NOTHING) if isinstance(value, dict) else NOTHING
    return value[step] if isinstance(value, list) and step < len(value) else NOTHING
