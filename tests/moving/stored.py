"""The contents of a storage, for comparison before and after a move; and a storage to move."""

import json
from dataclasses import dataclass, replace
from typing import Any

from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.ledger_metadata import LEDGERS_PREFIX, LedgerList
from managed_ledger.storage.backend import Backend

Entry = tuple[bytes, int, bytes]  # payload, message count, tag
READ = (3, 1 << 20)  # entries, bytes: a ledger needs several reads


@dataclass
class Stored:
    lists: dict[str, LedgerList]
    ledgers: dict[int, list[Entry]]
    items: dict[str, object]  # all other keys; parsed, if JSON


RECORDS: dict[str, object] = {
    "/tenants/t": {"allowedClusters": ["east"], "adminRoles": ["joe"]},
    "/namespaces/t/ns": {
        "topicDispatchRate": {"dispatchThrottlingRateInMsg": 7, "ratePeriodInSecond": 1},
        "message_ttl_in_seconds": 5,
        "transaction_limits": {"maxOpenTransactions": 3},
    },
    "/permissions/t/ns": {"namespace_auth": {"bob": ["produce"]}},
    "/partitioned-topics/t/ns/persistent/p q": {"partitions": 3, "properties": {"a": "b"}},
    "/schemas/t%2Fns%2Fpersistent%2Forders/000000000000": {
        "name": "Order",
        "type": 4,
        "data": "e30=",
        "properties": {"a": "b"},
        "added_at_ms": 7,
    },
    "/schemas/t%2Fns%2Fpersistent%2Forders/000000000001": {
        "name": "orders",
        "type": 4,
        "data": "",
        "properties": {},
        "added_at_ms": 8,
        "deletion": True,
    },
    "/clusters/west": {"data": {"serviceUrl": "http://west"}, "failureDomains": {"a": {}}},
}


async def fill(backend: Backend, clock: Any, topic: str = "orders") -> None:
    """Writes two logs of several ledgers, with tags, cursors with holes, and deleted ledgers. The
    last ledger of each stays open.
    """
    config = ManagedLedgerConfig(max_entries_per_ledger=4, min_rollover_time_ms=0)
    factory = ManagedLedgerFactory(backend, clock, config)
    for name in (f"t/ns/persistent/{topic}", "t/ns/persistent/a b%2F?"):
        log = await factory.open(name)
        gone = await log.open_cursor("gone", properties={"a": "1"})
        await log.append_one(b"consumed")
        gone.mark_delete(log.last_confirmed)
        await log.roll_over()
        await log.trim()
        cursor = await log.open_cursor("s")
        for number in range(10):
            tag = b"\x07tag" if number % 3 == 2 else b""
            at = await log.append_one(b"%d" % number * number, number % 4, tag)
            if number in (2, 5):
                cursor.delete(*at)
        await log.set_property("k", "v")
    await factory.open("t/ns/persistent/empty")
    await backend.metadata.put("/boots", b"7")
    await backend.metadata.put("/boots", b"8")
    await backend.metadata.put("policies/t/ns", b"\x00\xff" * 500)
    for key, record in RECORDS.items():
        await backend.metadata.put(key, json.dumps(record).encode())
    await factory.close()


async def stored_in(backend: Backend) -> Stored:
    """Settles open ledgers, like a start does."""
    metadata = backend.metadata
    lists: dict[str, LedgerList] = {}
    ledgers: dict[int, list[Entry]] = {}
    values = {key: _value(backend, key) for key in metadata.keys("")}
    for key in metadata.keys(LEDGERS_PREFIX):
        found = LedgerList.decode(values.pop(key), key)
        for info in found.ledgers:
            summary = await backend.recover_ledger(info.ledger_id)
            ledgers[info.ledger_id] = await _entries(backend, info.ledger_id, summary.last_entry_id)
        lists[key] = found
    items = {key: json.loads(v) if v[:1] == b"{" else v for key, v in values.items()}
    return Stored(lists, ledgers, items)


def as_moved(before: Stored) -> Stored:
    """The expected contents of the target: every ledger is closed, and none is being deleted."""
    lists = {
        key: replace(
            found,
            deleting=(),
            ledgers=tuple(
                replace(
                    info,
                    entries=len(before.ledgers[info.ledger_id]),
                    size_bytes=sum(len(each) for each, _, _ in before.ledgers[info.ledger_id]),
                    closed_at_ms=0,
                )
                for info in found.ledgers
            ),
        )
        for key, found in before.lists.items()
    }
    return Stored(lists, before.ledgers, before.items)


def without_times(after: Stored) -> Stored:
    """The list records when the move closed its last ledger."""
    for found in after.lists.values():
        assert all(info.closed_at_ms is not None for info in found.ledgers)
    lists = {
        key: replace(found, ledgers=tuple(replace(info, closed_at_ms=0) for info in found.ledgers))
        for key, found in after.lists.items()
    }
    return Stored(lists, after.ledgers, after.items)


async def _entries(backend: Backend, ledger_id: int, last: int) -> list[Entry]:
    found: list[Entry] = []
    while len(found) <= last:
        run = await backend.read(ledger_id, len(found), last, *READ)
        tags = {at: tag for first, end, tag in run.tags for at in range(first, end + 1)}
        for number, entry in enumerate(run.entries):
            at = run.first_entry_id + number
            found.append((entry, run.message_counts[number], tags.get(at, b"")))
    return found


def _value(backend: Backend, key: str) -> bytes:
    found = backend.metadata.get(key)
    assert found is not None
    return found.value
