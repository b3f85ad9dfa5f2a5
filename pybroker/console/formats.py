"""Formats figures, times and names: the filters of the templates."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

from markupsafe import Markup

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_STEPS: Final = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))
_MOST_CHARS: Final = 1000
NOTHING: Final = "–"


def count(value: float | None) -> str:
    return NOTHING if value is None else f"{round(value):,}".replace(",", "\u202f")


def rate(value: float | None) -> str:
    """A number per second."""
    if value is None:
        return NOTHING
    return count(value) if value >= 100 or value == 0 else f"{value:.1f}"


def size(value: float | None) -> str:
    if value is None or value < 0:
        return NOTHING
    amount, unit = float(value), 0
    while amount >= 1024 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    digits = 0 if unit == 0 or amount >= 100 else 1
    return f"{amount:.{digits}f}\u202f{_UNITS[unit]}"


def duration(seconds: float | None) -> str:
    """A duration in its two largest units: `33 s`, `2 h 5 min`."""
    if seconds is None or seconds < 0:
        return NOTHING
    if seconds < 1:
        return f"{seconds * 1000:.0f}\u202fms" if seconds else "0\u202fs"
    if seconds < 10:
        return f"{seconds:.1f}\u202fs"
    left, parts = int(seconds), list[str]()
    for length, unit in _STEPS:
        if left >= length and len(parts) < 2:
            parts.append(f"{left // length}\u202f{unit}")
            left %= length
        elif parts:
            break
    return " ".join(parts)


def milliseconds(seconds: float | None) -> str:
    return NOTHING if seconds is None else f"{seconds * 1000:.1f}\u202fms"


def instant(at_ms: float, timespec: str = "seconds") -> str:
    """A time in UTC, as ISO 8601; the number itself if it is outside the range of dates."""
    try:
        whole = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec=timespec)
    except (ValueError, OverflowError, OSError):
        return str(int(at_ms))
    return whole.replace("+00:00", "Z")


def moment(at_ms: float | None, now_ms: float) -> str:
    """How long ago a time was, or how long until it; the time itself appears on hover."""
    if not at_ms or at_ms < 0:
        return NOTHING
    whole = instant(at_ms, "milliseconds")
    passed_s = (now_ms - at_ms) / 1000
    text = f"{duration(passed_s)} ago" if passed_s >= 0 else f"in {duration(-passed_s)}"
    return Markup('<time datetime="{0}" title="{0}">{1}</time>').format(whole, text)


def epoch_ms(text: str | None) -> float | None:
    """Parses a time of the admin API; None if it is invalid."""
    try:
        return datetime.fromisoformat(text or "").timestamp() * 1000
    except ValueError:
        return None


def beginning(text: str) -> str:
    """The text, cut if it is longer than a page can show."""
    return text if len(text) <= _MOST_CHARS else f"{text[:_MOST_CHARS]}…"


def segment(name: object) -> str:
    """A name, quoted as a segment of a path."""
    return quote(str(name), safe="")


def topic_url(topic: str) -> str:
    """The page of a topic, given its full name."""
    domain, _, rest = topic.partition("://")
    tenant, namespace, local = rest.split("/", 2)
    return "/console/topics/" + "/".join(map(segment, (domain, tenant, namespace, local)))


def transaction_url(txn_id: str) -> str:
    """The page of a transaction; `txn_id` is written as in stats: `(most,least)`."""
    most, _, least = txn_id.strip("()").partition(",")
    return f"/console/transactions/{segment(most)}/{segment(least)}"


def stop(position: str) -> str:
    """Where readers stop, from the last position that they get: `before 3:0`, `after 3:7`."""
    ledger, _, entry = position.partition(":")
    return f"before {ledger}:0" if entry == "-1" else f"after {position}"


def pretty(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


def percent(part: float, whole: float) -> str:
    """A share as a length in SVG."""
    share = min(max(part / whole, 0.0), 1.0) if whole else 0.0
    return f"{share * 100:.2f}%"


FILTERS: Final[Mapping[str, Any]] = {
    "beginning": beginning,
    "count": count,
    "rate": rate,
    "size": size,
    "duration": duration,
    "milliseconds": milliseconds,
    "instant": instant,
    "epoch_ms": epoch_ms,
    "segment": segment,
    "stop": stop,
    "topic_url": topic_url,
    "transaction_url": transaction_url,
    "pretty": pretty,
}
