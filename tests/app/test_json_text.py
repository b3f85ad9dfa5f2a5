"""Which texts count as JSON: what the standard allows, and not too much at once."""

import json
from typing import Any

import pytest

from pybroker.base import json_text
from pybroker.base.json_text import MOST_LEVELS, MOST_PARTS, json_of

HALF = MOST_PARTS // 2


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {"a": [1, -2.5, True, None, "ü\n😀"]},
        10**39,
        [1.5e300],
        "," * MOST_PARTS * 2,
        ["[" * MOST_PARTS, '\\",{' * MOST_PARTS, "\\" * 7],
        [[]] * (HALF - 1),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_is_json_is_taken(value: Any) -> None:
    assert json_of(json.dumps(value)) == value
    assert json_of(json.dumps(value, ensure_ascii=False).encode()) == value


@pytest.mark.parametrize(
    "text",
    [
        b"[" + b"1," * MOST_PARTS + b"1]",
        b"[" + b"[]," * HALF + b"1]",
        b"[" + b'"\\\\",' * MOST_PARTS + b"1]",
        b"[" + b'"\\"",' * MOST_PARTS + b"1]",
        b"{" + b'"":{},' * HALF + b'"":1}',
        b'"' * 8 * MOST_PARTS + b"[" * MOST_PARTS * 2,
    ],
    ids=["numbers", "lists", "backslashes", "quotes", "objects", "empty texts"],
)
def test_what_has_too_many_parts_is_refused_before_it_is_parsed(
    text: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_text, "_DECODER", None)
    with pytest.raises(ValueError, match="values"):
        json_of(text)


@pytest.mark.parametrize(
    "text",
    ["NaN", "-Infinity", "1e400", "9" * 41, '"\\ud800"', '{"\\udfff": 1}', "", "[1,]", b"\xff",
     b'"\xed\xa0\x80"', "[" * (MOST_LEVELS + 1) + "]" * (MOST_LEVELS + 1), '"\ud800"'],
    ids=lambda text: repr(text)[:12],
)  # fmt: skip
def test_what_python_alone_takes_for_json_is_refused(text: str | bytes) -> None:
    with pytest.raises(ValueError):
        json_of(text)


def test_parts_are_as_few_as_were_measured() -> None:
    """Parsing 1 MiB with this many parts took 16 ms at worst, and blocks the event loop."""
    assert MOST_PARTS <= 30_000
