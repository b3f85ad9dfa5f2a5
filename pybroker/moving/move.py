"""A move, step by step. It may stop anywhere, and a repetition continues from there.

1. `move/state` is written: from now on no broker starts on the target.
2. The ledgers, several at once: each is copied, closed, read back and recorded.
3. New ledger numbers are made to follow those of the source. All other keys are copied, and read
   back.
4. `move/state` says that everything is copied. Then the records are deleted, `move/state` last.
   A repetition after that finds a target that is as it would be, and has nothing to do.

The target must be empty; the source is only read.
"""

import asyncio
from collections.abc import Awaitable, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Final

from managed_ledger.deletion import all_done
from managed_ledger.errors import CorruptStorage, DamagedEntries
from managed_ledger.ledger_metadata import LEDGERS_PREFIX as LISTS_PREFIX
from managed_ledger.ledger_metadata import LedgerInfo, LedgerList
from managed_ledger.storage.importing import MOVE_PREFIX, STATE_KEY, ImportTarget
from pybroker.formats.apache.families import SET_UP
from pybroker.moving.ledger_copy import LedgerCopy
from pybroker.moving.places import Source
from pybroker.moving.plan import Plan
from pybroker.moving.progress import Progress
from pybroker.moving.record import (
    COPIED,
    COPYING,
    DISCARDING,
    LEDGERS_PREFIX,
    MoveFailed,
    State,
    Sum,
)

LEDGERS_AT_ONCE: Final = 8
_KEYS_AT_ONCE: Final = 500


class Move:
    def __init__(
        self, name: str, source: Source, plan: Plan, target: ImportTarget, progress: Progress
    ) -> None:
        """`name` identifies the source."""
        self._name = name
        self._source = source
        self._plan = plan
        self._target = target
        self._metadata = target.metadata
        self._progress = progress

    async def run(self) -> Sum:
        """Complete the move. Returns the totals of the entries in the target, without a checksum;
        zeros if an earlier attempt had copied everything. Raises ManagedLedgerError.
        """
        state = await self._begin()
        total = Sum()
        if state.phase == COPYING:
            await self._forget_unlisted()
            total = await self._copy_ledgers()
            await self._target.pass_ledger_id(self._plan.bound)  # some keys get new ledgers
            await self._copy_keys()
            await self._metadata.put(STATE_KEY, State(self._name, COPIED).encode())
        await self._end()
        return total

    async def _begin(self) -> State:
        """Raises MoveFailed if the target is not empty and does not belong to this move."""
        found = self._metadata.get(STATE_KEY)
        if found is not None:
            state = State.decode(found.value)
            if state.source != self._name:
                raise MoveFailed(
                    f"an unfinished move from {state.source} is in the target: repeat that one, or "
                    "give it up with --discard"
                )
            if state.phase == DISCARDING:
                raise MoveFailed("this copy is being given up: repeat that with --discard")
            return state
        keys = [key for key in self._metadata.keys("") if not _is_of_set_up(key)]
        if keys and self._is_moved(keys):
            return State(self._name, COPIED)
        if keys or self._target.ledger_ids():
            what = f"keys such as {keys[0]!r}" if keys else "ledgers"
            raise MoveFailed(f"the target is not empty: it has {what}; choose an empty one")
        state = State(self._name)
        await self._metadata.put(STATE_KEY, state.encode(), -1)
        return state

    def _is_moved(self, keys: list[str]) -> bool:
        """Whether an earlier attempt came to its end, and no broker has used the target since: it
        would have changed keys. `keys`: those that a target may not have before.
        """
        wanted = self._plan.items
        return wanted.keys() >= set(keys) and all(map(self._is_there, wanted))

    async def _forget_unlisted(self) -> None:
        """Delete ledgers that the source has deleted since an earlier attempt."""
        for key in self._metadata.keys(LEDGERS_PREFIX):
            ledger_id = int(key.removeprefix(LEDGERS_PREFIX))
            if ledger_id not in self._plan.ledgers:
                await self._target.delete_ledger(ledger_id)
                await self._metadata.delete(key)

    async def _copy_ledgers(self) -> Sum:
        ledgers = iter(self._plan.ledgers.values())
        workers = [asyncio.ensure_future(self._work(ledgers)) for _ in range(LEDGERS_AT_ONCE)]
        try:
            sums = [each for found in await asyncio.gather(*workers) for each in found]
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
        return Sum(
            sum(each.entries for each in sums),
            sum(each.messages for each in sums),
            sum(each.size_bytes for each in sums),
        )

    async def _work(self, ledgers: Iterator[LedgerInfo]) -> list[Sum]:
        sums: list[Sum] = []
        for info in ledgers:
            copy = LedgerCopy(self._source, self._target, info, self._progress.bytes_done)
            is_noted = copy.is_noted
            try:
                sums.append(await copy.run())
            except CorruptStorage as damage:
                name = self._plan.names[info.ledger_id]
                what = damage.what if isinstance(damage, DamagedEntries) else str(damage)
                raise MoveFailed(f"{name} is damaged: {what}") from damage
            self._progress.ledger_done(info.size_bytes if is_noted else 0)
        return sums

    async def _copy_keys(self) -> None:
        wanted = self._plan.items
        there = {key for key in self._metadata.keys("") if not _stays(key)}
        await _all(self._metadata.delete(key) for key in there.difference(wanted))
        changed = [key for key in wanted if not self._has(key)]
        await _all(self._metadata.put(key, wanted[key]) for key in changed)
        missing = [key for key in wanted if not self._has(key)]
        if missing:
            raise MoveFailed(
                f"{len(missing)} keys do not read back as they were written, {missing[0]!r} among "
                "them; give the copy up with --discard, and repeat it"
            )

    def _has(self, key: str) -> bool:
        found = self._metadata.get(key)
        if found is None:
            return False
        return found.value == self._target.read_back(key, self._plan.items[key])

    def _is_there(self, key: str) -> bool:
        """As `_has`, but the times at which ledgers were closed are those of another attempt."""
        if not key.startswith(LISTS_PREFIX):
            return self._has(key)
        wanted = self._target.read_back(key, self._plan.items[key])
        found = self._metadata.get(key)
        return found is not None and _without_times(key, found.value) == _without_times(key, wanted)

    async def _end(self) -> None:
        await _all(map(self._metadata.delete, self._metadata.keys(LEDGERS_PREFIX)))
        if self._metadata.get(STATE_KEY) is not None:
            await self._metadata.delete(STATE_KEY)


async def discard(target: ImportTarget) -> int:
    """Delete an unfinished copy; returns the number of its ledgers. Repeat it after a crash. If
    there is no unfinished copy, raises MoveFailed and deletes nothing.
    """
    metadata = target.metadata
    found = metadata.get(STATE_KEY)
    if found is None:
        raise MoveFailed("there is no unfinished move in this storage")
    state = State.decode(found.value)
    if state.phase == COPIED:
        raise MoveFailed(
            "everything is copied and verified: repeat the move, which then completes at once"
        )
    await metadata.put(STATE_KEY, State(state.source, DISCARDING).encode())
    notes = metadata.keys(LEDGERS_PREFIX)
    ids = [int(key.removeprefix(LEDGERS_PREFIX)) for key in notes]
    await _all(metadata.delete(key) for key in metadata.keys("") if not _stays(key))
    await _all(map(target.delete_ledger, ids))
    await _all(map(metadata.delete, notes))
    await metadata.delete(STATE_KEY)
    return len(ids)


def _without_times(key: str, value: bytes) -> LedgerList:
    found = LedgerList.decode(value, key)
    timeless = tuple(replace(each, closed_at_ms=None) for each in found.ledgers)
    return replace(found, ledgers=timeless)


def _is_note(key: str) -> bool:
    return key.startswith(MOVE_PREFIX)


def _is_of_set_up(key: str) -> bool:
    """Whether Apache Pulsar's set-up of a cluster creates the key: then a target may have it."""
    return key.startswith(SET_UP)


def _stays(key: str) -> bool:
    return _is_note(key) or _is_of_set_up(key)


async def _all(changes: Iterable[Awaitable[object]]) -> None:
    """Awaits all changes, a limited number at a time. Raises the first failure."""
    rest = iter(changes)
    while batch := list(islice(rest, _KEYS_AT_ONCE)):
        await all_done(batch)
