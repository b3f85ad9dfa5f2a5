"""Shows the broker's list of blocking transactions as a table or as JSON."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from pybroker.commands.admin.output import aligned
from pybroker.commands.admin.rest import Rest

_ROUTE: Final = "/admin/v3/transactions/blocking"
_HEADS: Final = ["TOPIC", "BLOCKED", "SINCE", "TRANSACTION", "OWNER", "TOUCHES", "TIME LEFT"]
_SHOWN_TOPICS: Final = 3
_PERSISTENT: Final = "persistent://"


def ask(rest: Rest, limit: int, namespace: str | None) -> Any:
    """The list. Raises RestError."""
    query = {"limit": str(limit)} | ({} if namespace is None else {"namespace": namespace})
    return rest.ask("GET", _ROUTE, query=query)


def as_json(found: Any) -> str:
    return json.dumps(found, indent=2)


def as_table(found: Any) -> str:
    """A line with the totals, then a row for each topic, those with most blocked entries first."""
    lines = [_sum(found)]
    if rows := [_row(topic) for topic in found["topics"]]:
        lines += ["", *aligned([_HEADS, *rows])]
    return "\n".join(lines)


def _sum(found: Mapping[str, Any]) -> str:
    topics, shown = found["blockedTopics"], len(found["topics"])
    if not topics:
        return "No transaction blocks readers."
    entries = found["blockedEntries"]
    messages = f"{entries} {'entry waits' if entries == 1 else 'entries wait'} in {topics} topic"
    messages += "" if topics == 1 else "s"
    return messages if shown == topics else f"{messages}; the {shown} with the most:"


def _row(topic: Mapping[str, Any]) -> list[str]:
    blocking = topic["blocking"]
    left_ms, others = blocking["timeLeftMs"], topic["openTransactions"] - 1
    return [
        topic["topic"].removeprefix(_PERSISTENT),
        str(topic["blockedEntries"]),
        f"{_clock(blocking['openTimestamp'])} ({span(blocking['ageMs'])})",
        f"{blocking['txnId']} {blocking['status']}" + (f" +{others}" if others else ""),
        _whose(blocking),
        _touched(blocking, topic["topic"]),
        "-" if left_ms is None or blocking["status"] != "OPEN" else span(left_ms),
    ]


def _whose(blocking: Mapping[str, Any]) -> str:
    """The owner, and the label that its client has given the transaction."""
    owner, label = blocking["owner"] or "-", blocking.get("label")
    return f"{owner} ({label})" if label else owner


def _touched(blocking: Mapping[str, Any], shown: str) -> str:
    """The transaction's other topics, and the number of subscriptions on which it acknowledges."""
    others = [name.removeprefix(_PERSISTENT) for name in blocking["topics"] if name != shown]
    parts = others[:_SHOWN_TOPICS]
    more = (blocking["topicCount"] or 0) - 1 - len(parts)
    if more > 0:
        parts.append(f"{more} more")
    if blocking["subscriptionCount"]:
        parts.append(f"{blocking['subscriptionCount']} subscriptions")
    return ", ".join(parts) or "-"


def _clock(timestamp_ms: int) -> str:
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def span(milliseconds: int) -> str:
    """A readable duration in one unit: 4 s, 12 min, 3 h, 2 d."""
    seconds = milliseconds // 1000
    for size_s, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size_s:
            return f"{seconds // size_s} {unit}"
    return f"{seconds} s"
