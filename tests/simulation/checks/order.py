"""In what order a subscription's consumers, all together, were handed its messages.

Redeliveries may come at any time; what counts is when each message came for the first time.
"""

from checks.history import History, Read


def order_violations(history: History, subscription: str, kind: str, by_key: bool) -> list[str]:
    """Exclusive and Failover keep the log's order. Key_Shared keeps it for each key, which can be
    told only where batches do not mix keys (`by_key`). Shared keeps none.
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
    """As the producers choose it; what hostile clients send, or what is delayed, has none."""
    if value.startswith(("hostile", "late")):
        return value
    return f"key-{int(value.rpartition('/')[2]) % 3}"
