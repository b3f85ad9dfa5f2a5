"""Statistics of managed ledgers, alone (ManagedLedgerInternalStats) and as part of others."""

from typing import Any, Final

from managed_ledger.cursor import ManagedCursor
from managed_ledger.ledger import ManagedLedger
from managed_ledger.ledger_metadata import LedgerInfo
from pybroker.base.runtime import iso_time
from pybroker.broker.persistent.topic import Topic

Stats = dict[str, Any]

_NO_LEDGER: Final[Stats] = {
    "ledgerId": -1,
    "entries": -1,
    "size": -1,
    "offloaded": False,
    "underReplicated": False,
    "metadata": None,
    "properties": {},
}
# Fields without a meaning here: nothing is read ahead for a cursor, and cursors are not ledgers.
_CURSOR_WITHOUT: Final[Stats] = {
    "waitingReadOp": False,
    "pendingReadOps": 0,
    "messagesConsumedCounter": 0,
    "cursorLedger": -1,
    "cursorLedgerLastEntry": -1,
    "lastLedgerSwitchTimestamp": None,
    "subscriptionHavePendingRead": False,
    "subscriptionHavePendingReplayRead": False,
    "state": "Open",
    "properties": {},
}
_RANGES_SHOWN: Final = 100
_TOPIC_WITHOUT: Final = {"schemaLedgers": [], "compactedLedger": _NO_LEDGER}


def internal_stats(topic: Topic) -> Stats:
    """A topic's internal stats, as PersistentTopicInternalStats."""
    stats = ledger_stats(topic.ledger)
    for name, subscription in topic.subscriptions.items():
        stats["cursors"][name] = _cursor(subscription.cursor, topic.ledger) | {
            "readPosition": str(subscription.reader.position),
            "active": bool(subscription.consumers),
        }
    if topic.terminated:
        stats["state"] = "Terminated"
    return stats | _TOPIC_WITHOUT | {"compactedLedger": _compacted_ledger(topic)}


def _compacted_ledger(topic: Topic) -> Stats:
    info = None if topic.compacted is None else topic.compacted.ledger_info()
    if info is None:
        return dict(_NO_LEDGER)
    return _NO_LEDGER | {"ledgerId": info[0], "entries": info[1], "size": info[2]}


def no_internal_stats() -> Stats:
    """The internal stats of a topic without a log."""
    return {
        "entriesAddedCounter": 0,
        "numberOfEntries": 0,
        "totalSize": 0,
        "currentLedgerEntries": 0,
        "currentLedgerSize": 0,
        "lastLedgerCreatedTimestamp": None,
        "lastLedgerCreationFailureTimestamp": None,
        "waitingCursorsCount": 0,
        "pendingAddEntriesCount": 0,
        "lastConfirmedEntry": None,
        "state": None,
        "ledgers": [],
        "cursors": {},
        "properties": {},
        **_TOPIC_WITHOUT,
    }


def ledger_stats(ledger: ManagedLedger) -> Stats:
    """A log's statistics, as ManagedLedgerInternalStats."""
    ledgers = [_ledger(ledger, info) for info in ledger.ledgers()]
    return {
        "entriesAddedCounter": sum(info["entries"] for info in ledgers),
        "numberOfEntries": sum(info["entries"] for info in ledgers),
        "totalSize": ledger.total_size_bytes,
        "currentLedgerEntries": ledgers[-1]["entries"],
        "currentLedgerSize": ledgers[-1]["size"],
        "lastLedgerCreatedTimestamp": iso_time(ledger.created_at_ms),
        "lastLedgerCreationFailureTimestamp": None,
        "waitingCursorsCount": 0,
        "pendingAddEntriesCount": 0,
        "lastConfirmedEntry": str(ledger.last_confirmed),
        "state": "LedgerOpened",
        "ledgers": ledgers,
        "cursors": {name: _cursor(cursor, ledger) for name, cursor in ledger.cursors.items()},
        "properties": dict(ledger.properties),
    }


def log_stats(ledger: ManagedLedger) -> Stats:
    """A transaction log's statistics, as TransactionLogStats."""
    return {"managedLedgerName": ledger.name, "managedLedgerInternalStats": ledger_stats(ledger)}


def _ledger(ledger: ManagedLedger, info: LedgerInfo) -> Stats:
    return {
        **_NO_LEDGER,
        "ledgerId": info.ledger_id,
        "entries": info.entries,
        "size": info.size_bytes,
        **_damage(ledger, info.ledger_id),
    }


def _damage(ledger: ManagedLedger, ledger_id: int) -> Stats:
    """An extension: the entries known to be unreadable."""
    damaged = [{"from": first, "to": last} for first, last in ledger.damaged(ledger_id)]
    return {"damaged": damaged} if damaged else {}


def _cursor(cursor: ManagedCursor, ledger: ManagedLedger) -> Stats:
    return {
        **_CURSOR_WITHOUT,
        "markDeletePosition": str(cursor.mark_delete_position),
        "readPosition": str(ledger.next_position(cursor.mark_delete_position.after)),
        "individuallyDeletedMessages": _acknowledged(cursor, ledger),
        "totalNonContiguousDeletedMessagesRange": cursor.unacked_ranges_count,
        "numberOfEntriesSinceFirstNotAckedMessage": cursor.backlog(ledger.last_confirmed),
        "active": False,
    }


def _acknowledged(cursor: ManagedCursor, ledger: ManagedLedger) -> str:
    """Acknowledged ranges after the mark-delete position, as (before..last]; only the first if
    there are many.
    """
    mark, found = cursor.mark_delete_position, list[str]()
    for info in ledger.ledgers():
        if info.ledger_id < mark.ledger_id or not info.entries:
            continue
        first = mark.entry_id + 1 if info.ledger_id == mark.ledger_id else 0
        for start, end in cursor.deleted_within(info.ledger_id, first, info.entries - 1):
            if len(found) == _RANGES_SHOWN:
                return f"[{','.join(found)},…]"
            found.append(f"({info.ledger_id}:{start - 1}..{info.ledger_id}:{end}]")
    return f"[{','.join(found)}]"
