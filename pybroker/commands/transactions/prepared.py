"""Lists prepared transactions, which wait for a decision of their owners or of an administrator."""

from collections.abc import Mapping
from typing import Any, Final

from pybroker.commands.admin.output import aligned
from pybroker.commands.admin.rest import Rest
from pybroker.commands.transactions.blocking import span

_ROUTE: Final = "/admin/v3/transactions/live"
_HEADS: Final = ["TRANSACTION", "PREPARED FOR", "OWNER", "NAME", "BLOCKED", "TOPICS"]
_SHOWN_TOPICS: Final = 3
_PERSISTENT: Final = "persistent://"


def ask(rest: Rest, limit: int, principal: str | None) -> Any:
    """Those of all brokers, the longest prepared first. Raises RestError."""
    query = {"state": "PREPARED", "sort": "prepared", "limit": str(limit)}
    return rest.ask(
        "GET", _ROUTE, query=query | ({} if principal is None else {"principal": principal})
    )


def as_table(found: Any) -> str:
    count, shown = found["matching"], found["transactions"]
    if not count:
        return "No transaction is prepared."
    line = "1 transaction is prepared" if count == 1 else f"{count} transactions are prepared"
    line += " and waits" if count == 1 else " and wait"
    line += " for a decision" + ("" if count == len(shown) else f"; the {len(shown)} oldest:")
    return "\n".join([line, "", *aligned([_HEADS, *(_row(each, found) for each in shown)])])


def _row(each: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    return [
        each["txnId"],
        span(max(0, found["timestamp"] - each["preparedTimestamp"])),
        (each["owner"] or "-") + (f" ({each['label']})" if each.get("label") else ""),
        each["preparedName"] or "-",
        str(each["blockedEntries"]),
        _topics(each),
    ]


def _topics(each: Mapping[str, Any]) -> str:
    names = [name.removeprefix(_PERSISTENT) for name in each["topics"][:_SHOWN_TOPICS]]
    more = each["topicCount"] - len(names)
    return ", ".join([*names, *([f"{more} more"] if more > 0 else [])]) or "-"
