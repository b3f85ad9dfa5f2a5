"""The order in which all consumers of a subscription together received its messages.

Redeliveries may come at any time; only the first delivery of each message counts.
"""

from checks.history import History, Read


def order_violations(history: History, subscription: str, kind: str, by_key: bool) -> list[str]:
    """Exclusive and Failover keep the log's order. Key_Shared keeps it for each key. This can be
    checked only if batches do not mix keys (`by_key`). Shared keeps no order.
    """
    if kind == "Shared" or (kind == "KeyShared" and not by_key):
        return []
    newest: dict[tuple[str, str], Read] = {}
    found = []
    for read in dict.fromkeys(history.handed.get(subscription, ())):
        line = read.topic, _key(read.value) if kind == "KeyShared" else ""
        before = newest.setdefault(line, read)
        if before.message_id > read.message_id:
            found.append(
                f"KEY ORDER: {subscription} ({kind}) was handed {read} after {before}, "
                "which stands behind it"
            )
        newest[line] = max(before, read, key=lambda each: each.message_id)
    return found


def _key(value: str) -> str:
    """The key that producers choose. Messages of hostile clients and delayed ones have none."""
    if value.startswith(("hostile", "late")):
        return value
    return f"key-{int(value.rpartition('/')[2]) % 3}"
