"""A line of the log: its format, and that it cannot be forged."""

import json
import logging
import sys
from typing import Any

from pybroker.logs.lines import JSON, TEXT, formatter, with_fields


def record(message: str, *arguments: object, **more: Any) -> logging.LogRecord:
    made = logging.LogRecord("pybroker.audit", logging.WARNING, "", 1, message, arguments, None)
    made.created = 1_800_000_000.25
    made.__dict__.update(more)
    return made


def test_text_has_time_level_logger_message_and_fields() -> None:
    line = formatter(TEXT).format(
        record("refused %s", "GET", **with_fields({"who": "app", "why": "not so", "status": 403}))
    )
    assert line == (
        "2027-01-15T08:00:00.250Z WARNING pybroker.audit: "
        'refused GET who=app why="not so" status=403'
    )


def test_json_has_the_same_as_members() -> None:
    line = formatter(JSON).format(record("refused %s", "GET", **with_fields({"status": 403})))
    assert json.loads(line) == {
        "time": "2027-01-15T08:00:00.250Z",
        "level": "warning",
        "logger": "pybroker.audit",
        "message": "refused GET",
        "status": 403,
    }


def test_a_name_with_a_line_break_does_not_begin_a_line() -> None:
    forged = 'x\n2027 INFO pybroker.audit: all is well\x1b[2J"\u2028'
    for name in (TEXT, JSON):
        line = formatter(name).format(record("%s", forged, **with_fields({"on": forged})))
        assert len(line.splitlines()) == 1
        assert "\x1b" not in line


def test_halves_of_surrogate_pairs_can_be_written() -> None:
    for name in (TEXT, JSON):
        formatter(name).format(record("%s", "\ud800", **with_fields({"on": "\udfff"}))).encode()


def test_a_value_in_quotes_can_be_told_from_the_next_field() -> None:
    line = formatter(TEXT).format(record("m", **with_fields({"on": 'a" who="admin', "b": ""})))
    assert line.endswith(r'm on="a\" who=\"admin" b=""')


def test_a_traceback_stands_with_its_line() -> None:
    try:
        raise KeyError("lost")
    except KeyError:
        failed = record("it failed", exc_info=sys.exc_info())
    assert "\nTraceback" in formatter(TEXT).format(failed)
    assert "KeyError: 'lost'" in json.loads(formatter(JSON).format(failed))["traceback"]
