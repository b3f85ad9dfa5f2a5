"""Types of policy values: each checks JSON and returns it completed with defaults.

Whatever a check accepts can be stored, shown and used without further checks.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pybroker.base import json_schema
from pybroker.base.errors import PulsarError
from pybroker.base.json_schema import LONG as LONG
from pybroker.base.json_schema import Schema

INT: Final = 2**31 - 1  # Java's int
_MOST_ITEMS: Final = 1000
_MOST_CHARS: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Check:
    """Turns a JSON value into the complete one. Raises BadPolicy.

    For the description of the API, `takes` is the accepted JSON and `gives` the answered JSON.
    """

    of: Callable[[Any], Any]
    takes: Schema
    gives: Schema

    def __call__(self, value: Any) -> Any:
        return self.of(value)


def _plain(schema: Schema, of: Callable[[Any], Any]) -> Check:
    return Check(of, schema, schema)


class BadPolicy(PulsarError):
    """The value can never be valid for the policy."""

    code = 22
    http_status = 400


class RefusedPolicy(BadPolicy):
    """The value has the right type but is refused."""

    http_status = 412


def whole(least: int = 0, most: int = INT, too_small: str = "") -> Check:
    """`too_small` is Apache Pulsar's sentence for smaller values."""

    def check(value: Any) -> int:
        if type(value) is not int:
            raise BadPolicy(f"{str(value)[:80]!r} is not a whole number")
        if not least <= value <= most:
            limit = f"at least {least}" if value < least else f"at most {most}"
            why = f"{str(value)[:80]} must be {limit}"
            raise (
                RefusedPolicy(too_small, why) if value < least and too_small else RefusedPolicy(why)
            )
        return value

    return _plain(json_schema.whole(least, most), check)


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value) or abs(value) > 1e15:
        raise BadPolicy(f"{str(value)[:80]!r} is not a number in the allowed range")
    return float(value)


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise BadPolicy(f"{str(value)[:80]!r} is neither true nor false")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise BadPolicy("it must be a string")
    if len(value) > _MOST_CHARS:
        raise RefusedPolicy(f"{len(value)} characters are more than the {_MOST_CHARS} allowed")
    return value


number: Final = _plain(json_schema.NUMBER, _number)
truth: Final = _plain(json_schema.TRUTH, _truth)
text: Final = _plain(json_schema.TEXT, _text)


def choice(*choices: str) -> Check:
    def check(value: Any) -> str:
        if value not in choices:
            raise BadPolicy(f"{str(value)[:80]!r} must be one of: {', '.join(choices)}")
        return str(value)

    return _plain(json_schema.choice(*choices), check)


def names(*choices: str) -> Check:
    """A list without repetitions, of any text if there are no `choices`."""
    check_item = choice(*choices) if choices else text

    def check(value: Any) -> list[str]:
        if not isinstance(value, list) or len(value) > _MOST_ITEMS:
            raise BadPolicy(f"it must be a list of at most {_MOST_ITEMS} names")
        return list(dict.fromkeys(map(check_item, value)))

    return _plain(json_schema.list_of(check_item.takes, _MOST_ITEMS), check)


def whole_numbers(least: int, most: int, items: int) -> Check:
    """A list of up to `items` whole numbers, without repetitions."""
    check_item = whole(least, most)

    def check(value: Any) -> list[int]:
        if not isinstance(value, list) or len(value) > items:
            raise BadPolicy(f"it must be a list of at most {items} whole numbers")
        return list(dict.fromkeys(map(check_item, value)))

    return _plain(json_schema.list_of(check_item.takes, items), check)


def _properties(value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
        raise BadPolicy("properties must be an object whose values are strings")
    if sum(len(key) + len(item) for key, item in value.items()) > _MOST_CHARS:
        raise RefusedPolicy(f"properties may have at most {_MOST_CHARS} characters in total")
    return value


properties: Final = _plain(json_schema.map_of(json_schema.TEXT, None), _properties)


def record(*, together: Callable[[Any], Any] | None = None, **fields: tuple[Check, Any]) -> Check:
    """An object with these fields, each with its default for null or no value; None: no default.

    `together` checks all of them; unknown fields are dropped, as in Apache Pulsar.
    """

    def check(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise BadPolicy("it must be an object")
        every = ((name, _field(value, name, *field)) for name, field in fields.items())
        found = {name: part for name, part in every if part is not None}
        return found if together is None else dict(together(found))

    shown = {name: of.gives for name, (of, _) in fields.items()}
    return Check(
        check,
        json_schema.taken({name: of.takes for name, (of, _) in fields.items()}),
        json_schema.record("", shown, [n for n, (_, default) in fields.items() if default is None]),
    )


def _field(value: Mapping[str, Any], name: str, check: Check, default: Any) -> Any:
    if value.get(name) is None:
        return default
    try:
        return check(value[name])
    except BadPolicy as error:
        raise type(error)(f"{name}: {error}") from None


def by_name(check: Check, *choices: str) -> Check:
    """An object with values of one kind; with `choices`, only under these names."""

    def checked(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict) or len(value) > _MOST_ITEMS:
            raise BadPolicy(f"it must be an object with at most {_MOST_ITEMS} keys")
        for name in value:
            if choices and name not in choices:
                raise BadPolicy(f"{name[:80]!r} must be one of: {', '.join(choices)}")
        return {text(name): check(item) for name, item in value.items() if item is not None}

    return Check(
        checked,
        json_schema.map_of(json_schema.or_null(check.takes), _MOST_ITEMS),
        json_schema.map_of(check.gives, _MOST_ITEMS),
    )


def _anything(value: Any) -> Any:
    """Stored and shown, without effect."""
    if not isinstance(value, dict | list | str | int | float | bool):
        raise BadPolicy("it must not be null")
    if len(str(value)) > _MOST_CHARS:
        raise RefusedPolicy(f"it is longer than {_MOST_CHARS} characters")
    return value


anything: Final = _plain({"type": ["object", "array", "string", "number", "boolean"]}, _anything)
