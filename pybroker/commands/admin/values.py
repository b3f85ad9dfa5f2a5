"""Parses values: times and sizes with units, lists, pairs, message ids."""

import argparse
import re
from typing import Final

from pybroker.base.arguments import TIME_UNITS_S

_SIZE_UNITS: Final = {"k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}


def time_s(text: str) -> int:
    """30, 30s, 5m, 3h, 2d, 5w, 1y; -1: forever."""
    return _scaled(text, TIME_UNITS_S, "a time: 30s, 5m, 3h, 2d, 5w, 1y")


def size_bytes(text: str) -> int:
    """1024, 10K, 10M, 16G, 2T; -1: no limit."""
    return _scaled(text, _SIZE_UNITS, "a size: 1024, 10K, 10M, 16G, 2T")


def _scaled(text: str, units: dict[str, int], what: str) -> int:
    found = re.fullmatch(r"(-?[0-9]{1,15})([a-zA-Z]?)", text.strip())
    if found is None or (found[2] and found[2].lower() not in units):
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
    return int(found[1]) * units.get(found[2].lower(), 1)


def minutes(seconds: int) -> int:
    """Minutes from seconds; -1, forever, stays -1."""
    return seconds // 60 if seconds >= 0 else -1


def megabytes(size: int) -> int:
    return size // 1024**2 if size >= 0 else -1


def boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return text.lower() == "true"


def items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def pairs(text: str) -> list[tuple[str, str]]:
    """k=v, or several separated by commas; a value may contain further equals signs."""
    found = []
    for item in items(text):
        key, equals, value = item.partition("=")
        if not equals:
            raise argparse.ArgumentTypeError(f"{item!r} is not key=value")
        found.append((key, value))
    return found


def message_id(text: str) -> dict[str, int]:
    """ledger:entry, optionally followed by more numbers."""
    if not re.fullmatch(r"-?\d{1,19}:-?\d{1,19}(:-?\d{1,19})*", text):
        raise ValueError(f"{text!r} is not a message id: use ledger:entry")
    ledger, entry, *_ = text.split(":")
    return {"ledgerId": int(ledger), "entryId": int(entry)}
