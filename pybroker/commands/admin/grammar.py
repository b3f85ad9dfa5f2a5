"""Describes arguments by a text: `<topicName> -s|--subscription String [-n|--count int]
[--force|-f]`.

Angle brackets enclose positional arguments, square brackets optional ones. An option without a type
is a flag. Types besides the usual ones: Seconds and Bytes (a number, perhaps with a unit: 3h, 10M),
List (a,b, repeatable), Map (k=v, repeatable), Boolean. Any other type is text.
"""

import argparse
import re
from typing import Any, Final

from pybroker.commands.admin.values import boolean, items, pairs, size_bytes, time_s

_PART: Final = re.compile(r"(\[)?(?:<(?P<place>[^>]+)>|(?P<names>-[^\s\]]+)(?: (?P<type>\w+))?)\]?")
_LISTS: Final = {"List": items, "Map": pairs}
_TYPES: Final[dict[str, Any]] = {
    "int": int,
    "Integer": int,
    "long": int,
    "Long": int,
    "double": float,
    "Seconds": time_s,
    "Bytes": size_bytes,
    "Boolean": boolean,
}


def add_arguments(parser: argparse.ArgumentParser, text: str) -> None:
    """Adds the arguments. A handler finds an option by its longest name: --message-id as
    `message_id`.
    """
    for part in _PART.finditer(text):
        optional, place, kind = part[1] is not None, part["place"], part["type"]
        if place is not None:
            parser.add_argument(place, nargs="?" if optional else None)
            continue
        names = part["names"].split("|")
        named: dict[str, Any] = {"dest": known_as(names), "required": not optional}
        if kind is None:
            parser.add_argument(*names, action="store_true", dest=named["dest"])
        elif kind in _LISTS:
            parser.add_argument(*names, action="extend", type=_LISTS[kind], metavar=kind, **named)
        else:
            parser.add_argument(*names, type=_TYPES.get(kind, str), metavar=kind, **named)


def known_as(names: list[str]) -> str:
    return max(names, key=len).lstrip("-").replace("-", "_")


def option_names(text: str) -> list[str]:
    """The names of the options, for shell completion."""
    return [
        name for part in _PART.finditer(text) for name in (part["names"] or "").split("|") if name
    ]
