"""Formats a log record as a line of text or as a JSON object.

A record may have fields (`extra=with_fields(...)`): members in JSON, `name=value` after the message
in text. Peers control some values, so control characters are escaped: lines cannot be forged, and a
name cannot control a terminal.
"""

import json
import logging
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

TEXT: Final = "text"
JSON: Final = "json"
FORMATS: Final = (TEXT, JSON)

Fields = Mapping[str, str | int | float]
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_NEEDS_QUOTES: Final = re.compile(r'[\s"=]|^$')


def with_fields(values: Fields) -> dict[str, Any]:
    """For `extra=` of a logging call."""
    return {"fields": values}


def formatter(name: str) -> logging.Formatter:
    """`name` is one of FORMATS."""
    return JsonLines() if name == JSON else TextLines()


class TextLines(logging.Formatter):
    """`2026-11-23T06:21:29.123Z WARNING pybroker.audit: … who=app`, then the traceback, if any."""

    def format(self, record: logging.LogRecord) -> str:
        said = " ".join((_visible(record.getMessage()), *map(_pair, _fields(record).items())))
        line = f"{_time(record)} {record.levelname} {record.name}: {said}"
        return "\n".join(filter(None, (line, _traceback(self, record))))


class JsonLines(logging.Formatter):
    """An object per line: `time`, `level`, `logger`, `message`, the fields, `traceback` if any."""

    def format(self, record: logging.LogRecord) -> str:
        said: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if traceback := _traceback(self, record):
            said["traceback"] = traceback
        return json.dumps(said, default=str)


def _fields(record: logging.LogRecord) -> Fields:
    found: Fields = getattr(record, "fields", {})
    return found


def _time(record: logging.LogRecord) -> str:
    at = datetime.fromtimestamp(record.created, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    return formatter.formatException(record.exc_info) if record.exc_info else ""


def _pair(item: tuple[str, str | int | float]) -> str:
    name, value = item
    text = str(value)
    if _NEEDS_QUOTES.search(text):
        text = '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return f"{name}={_visible(text)}"


def _visible(text: str) -> str:
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
