"""A command: its name, its arguments, and its request to the broker."""

import re
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from pybroker.commands.admin.rest import Rest

Body = Callable[[Namespace], Any]
Run = Callable[[Rest, Namespace], Any]
_PLACE: Final = re.compile(r"\{(\w+)\}")
_NAMED_TOPIC: Final = re.compile(r"(persistent|non-persistent|topic)://(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Command:
    """`request` is a method and a path: below /admin/v2, or from the root if it begins with a
    slash.

    {name} in the path is the argument of that name; {topic} is the topic with its domain, {bare}
    without. `query` maps parameters to options; options that were not given are omitted. `run` is
    for commands that need several requests, or convert the answer.
    """

    name: str
    arguments: str = ""
    request: str = ""
    body: Body | None = None
    query: Mapping[str, str] = field(default_factory=dict)
    run: Run | None = None

    def execute(self, rest: Rest, options: Namespace) -> Any:
        """The result: parsed JSON, text, or None. Raises RestError, ValueError."""
        if self.run is not None:
            return self.run(rest, options)
        verb, path = self.request.split(" ")
        body = None if self.body is None else self.body(options)
        return rest.ask(verb, filled(path, options), body, self._query(options))

    def _query(self, options: Namespace) -> dict[str, str]:
        said = {name: getattr(options, option) for name, option in self.query.items()}
        return {
            name: spelt(value) for name, value in said.items() if value is not None and value != ""
        }


def spelt(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def filled(path: str, options: Namespace) -> str:
    """`path` with the values of the options, each as one segment. Raises ValueError."""

    def value(place: re.Match[str]) -> str:
        name = place[1]
        if name in ("topic", "bare"):
            domain, rest = topic_parts(_topic(options))
            return f"{domain}/{rest}" if name == "topic" else rest
        if name == "namespace":
            return "/".join(map(segment, namespace_parts(_namespace(options))))
        return segment(str(getattr(options, name)))

    return _PLACE.sub(value, path)


def segment(name: str) -> str:
    """A name as one segment of a path, whatever characters it contains. Raises ValueError."""
    if name in ("", ".", ".."):
        raise ValueError(f"{name!r} is not a valid name")
    return quote(name, safe="")


def _topic(options: Namespace) -> str:
    return str(getattr(options, "topicName", None) or getattr(options, "topic", ""))


def _namespace(options: Namespace) -> str:
    return str(getattr(options, "namespaceName", None) or getattr(options, "namespace", ""))


def topic_parts(name: str) -> tuple[str, str]:
    """The domain, and tenant/namespace/topic, quoted. A short name is a topic in public/default."""
    found = _NAMED_TOPIC.fullmatch(name)
    domain, rest = (found[1], found[2]) if found else ("persistent", name)
    parts = rest.split("/", 2) if rest.count("/") >= 2 else ["public", "default", rest]
    if not all(parts) or (found is None and rest.count("/") == 1):
        raise ValueError(f"{name!r} is not a topic: use name or domain://tenant/namespace/name")
    return domain, "/".join(map(segment, parts))


def namespace_parts(name: str) -> list[str]:
    parts = name.split("/")
    if len(parts) != 2 or not all(parts):
        raise ValueError(f"{name!r} is not a namespace: use tenant/namespace")
    return parts
