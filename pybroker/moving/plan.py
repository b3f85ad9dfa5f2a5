"""Plans a move: the ledgers to copy, and the keys as the target will have them.

A ledger that was being written is closed in the copy and in its list of ledgers: the next broker
begins a new ledger. Ledgers that were being deleted are left out.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import unquote

from managed_ledger.errors import CorruptStorage, LedgerNotFound
from managed_ledger.ledger_metadata import LEDGERS_PREFIX, LedgerInfo, LedgerList
from managed_ledger.storage.importing import MOVE_PREFIX
from pybroker.moving.places import Source
from pybroker.moving.record import MoveFailed

_RECOVERED_AT_ONCE: Final = 32
_SCALABLE: Final = "/scalable-topics/"
_OF_PARTITIONS: Final = b'"legacyTopicName"'
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Plan:
    ledgers: dict[int, LedgerInfo]  # in the order of their numbers
    names: dict[int, str]  # of the managed ledgers, by ledger number
    items: dict[str, bytes]
    bound: int  # a number above all ledger numbers that the source has ever used

    @property
    def size_bytes(self) -> int:
        return sum(info.size_bytes for info in self.ledgers.values())


async def plan(source: Source, now_ms: int) -> Plan:
    """Raises MoveFailed, CorruptStorage, and BookKeeperError if a ledger cannot be recovered
    now.
    """
    items = dict(source.items())
    if any(key.startswith(MOVE_PREFIX) for key in items):
        raise MoveFailed(
            "the source is itself the target of an unfinished move: repeat that one first"
        )
    lists = {key: _decoded(key, items[key]) for key in items if key.startswith(LEDGERS_PREFIX)}
    opened = [
        (key, info)
        for key, found in lists.items()
        for info in found.ledgers
        if info.closed_at_ms is None
    ]
    work = [partial(_settle, source, key, info, now_ms) for key, info in opened]
    settled = await _at_most(_RECOVERED_AT_ONCE, work)
    ends = {info.ledger_id: info for info in settled}
    ledgers: dict[int, LedgerInfo] = {}
    names: dict[int, str] = {}
    for key, found in lists.items():
        closed = tuple(ends.get(info.ledger_id, info) for info in found.ledgers)
        lists[key] = replace(found, ledgers=closed, deleting=())
        items[key] = lists[key].encode()
        ledgers.update({info.ledger_id: info for info in closed})
        names.update({info.ledger_id: key.removeprefix(LEDGERS_PREFIX) for info in closed})
    return Plan(dict(sorted(ledgers.items())), names, items, source.new_ledger_id())


def check_for_several_brokers(items: Mapping[str, bytes]) -> None:
    """Raises MoveFailed if a topic's segments would be served by several brokers: those that were
    partitions of an ordinary topic.
    """
    for key, value in items.items():
        if key.startswith(_SCALABLE) and _OF_PARTITIONS in value:
            name = unquote(key.removeprefix(_SCALABLE))
            raise MoveFailed(
                f"topic://{name} was made of an ordinary topic whose messages are not all "
                "consumed: consume them, and stop the broker two minutes later"
            )


def _decoded(key: str, value: bytes) -> LedgerList:
    """The list of ledgers. That of a deleted managed ledger is reduced to the deletion."""
    found = LedgerList.decode(value, key)
    return LedgerList(deleted=True) if found.deleted else found


async def _settle(source: Source, key: str, info: LedgerInfo, now_ms: int) -> LedgerInfo:
    try:
        summary = await source.recover_ledger(info.ledger_id)
    except LedgerNotFound as missing:
        raise CorruptStorage(
            f"{key.removeprefix(LEDGERS_PREFIX)} lists ledger {info.ledger_id}, which is not stored"
        ) from missing
    return LedgerInfo(info.ledger_id, summary.last_entry_id + 1, summary.size_bytes, now_ms)


async def _at_most(count: int, work: Sequence[Callable[[], Coroutine[Any, Any, T]]]) -> list[T]:
    """Runs `work`, `count` at a time; returns all results. Raises the first failure of a batch once
    the whole batch has ended.
    """
    found: list[T] = []
    for start in range(0, len(work), count):
        batch = [each() for each in work[start : start + count]]
        outcomes = await asyncio.gather(*batch, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
            found.append(outcome)
    return found
