"""Hypothesis compares a managed ledger, over each backend, with a model of dicts and sets."""

import asyncio
import tempfile
from pathlib import Path

import pytest
from bare_ledgers import acknowledged_behind
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.position import EARLIEST, LATEST, Position
from managed_ledger.storage.backend import Backend, EntryRun
from managed_ledger.storage.embedded.journal import EmbeddedBackend
from managed_ledger.storage.embedded.os_disk import OsDisk
from managed_ledger.storage.memory import MemoryBackend

BATCH = 4
ALL_INDEXES = (1 << BATCH) - 1
CONFIG = ManagedLedgerConfig(max_entries_per_ledger=6, min_rollover_time_ms=0)


class Clock:
    def now_ms(self) -> int:
        return 0

    def monotonic_s(self) -> float:
        return 0.0


class ManagedLedgerMachine(RuleBasedStateMachine):
    """`entries` are all entries ever appended, in order; `unacked` their unacknowledged indexes."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.entries: dict[Position, bytes] = {}
        self.tags: dict[Position, bytes] = {}
        self.unacked: dict[Position, int] = {}
        self.first = EARLIEST
        self.do(self.start(self.make_backend()))

    def make_backend(self) -> Backend:
        raise NotImplementedError

    def do(self, work):
        return self.loop.run_until_complete(work)

    async def start(self, backend: Backend) -> None:
        self.backend = backend
        await backend.open()
        self.factory = ManagedLedgerFactory(backend, Clock(), CONFIG)
        self.ledger = await self.factory.open("log")
        self.cursor = await self.ledger.open_cursor("sub", EARLIEST)

    async def stop(self) -> None:
        await self.factory.close()
        await self.backend.close()

    def teardown(self) -> None:
        self.do(self.stop())
        self.loop.close()

    def pick(self, number: int) -> Position:
        positions = list(self.entries)
        return positions[number % len(positions)] if positions else Position(0, 0)

    @rule(
        sizes=st.lists(st.integers(0, 400), min_size=1, max_size=5),
        tag=st.sampled_from([b"", b"", b"one", b"two"]),
    )
    def append(self, sizes, tag):
        entries = [bytes([65 + len(self.entries) % 26]) * size for size in sizes]
        first = self.do(self.append_all(entries, tag))
        for offset, entry in enumerate(entries):
            position = Position(first.ledger_id, first.entry_id + offset)
            self.entries[position] = entry
            if tag:
                self.tags[position] = tag
            self.unacked[position] = ALL_INDEXES
        assert self.ledger.last_confirmed == position

    async def append_all(self, entries: list[bytes], tag: bytes) -> Position:
        done = self.loop.create_future()

        def appended(first, error):
            done.set_result(first)

        self.ledger.append(entries, [BATCH] * len(entries), appended, tag)
        return await done

    @rule(number=st.integers(0, 100))
    def acknowledge(self, number):
        position = self.pick(number)
        fresh = bool(self.unacked.get(position))
        assert self.cursor.delete(*position) == fresh
        if position in self.unacked:
            self.unacked[position] = 0

    @rule(number=st.integers(0, 100), extent=st.integers(0, 8))
    def acknowledge_range(self, number, extent):
        ledger_id, first = self.pick(number)
        self.cursor.delete_range(ledger_id, first, first + extent)
        for position in self.unacked:
            if position.ledger_id == ledger_id and first <= position.entry_id <= first + extent:
                self.unacked[position] = 0

    @rule(number=st.integers(0, 100), still=st.integers(0, ALL_INDEXES))
    def acknowledge_indexes(self, number, still):
        position = self.pick(number)
        before = self.unacked.get(position, 0)
        after = before & still
        deleted = self.cursor.delete_batch_indexes(position, still, BATCH)
        assert deleted == (before != 0 and after == 0)
        if position in self.unacked:
            self.unacked[position] = after

    @rule(number=st.integers(0, 100), still=st.none() | st.integers(0, ALL_INDEXES))
    def acknowledge_cumulatively(self, number, still):
        position = self.pick(number)
        self.cursor.mark_delete(position, still, BATCH)
        for known in self.unacked:
            if known < position:
                self.unacked[known] = 0
            elif known == position:
                self.unacked[known] &= still or 0

    @rule(number=st.integers(0, 100))
    def seek(self, number):
        position = self.pick(number)
        self.cursor.reset(position)
        for known in self.unacked:
            there = known >= position and known in self.there()
            self.unacked[known] = ALL_INDEXES if there else 0

    @rule()
    def roll_over(self):
        self.do(self.ledger.roll_over())

    @rule()
    def trim(self):
        self.do(self.ledger.trim())
        oldest = self.ledger.first_position
        assert not any(self.unacked[position] for position in self.entries if position < oldest)
        assert oldest >= self.first
        self.first = oldest

    @rule()
    def restart(self):
        self.do(self.stop())
        self.do(self.start(self.make_backend()))

    def there(self) -> dict[Position, bytes]:
        return {at: entry for at, entry in self.entries.items() if at >= self.first}

    async def read_all(self) -> dict[Position, bytes]:
        found: dict[Position, bytes] = {}
        position = EARLIEST
        while (run := await self.ledger.read(position, LATEST, 7, 1000)) is not None:
            assert run.message_counts == [BATCH] * len(run.entries)
            for offset, entry in enumerate(run.entries):
                found[Position(run.ledger_id, run.first_entry_id + offset)] = entry
            self.check_tags(run)
            position = Position(run.ledger_id, run.first_entry_id + len(run.entries))
        return found

    def check_tags(self, run: EntryRun) -> None:
        carried = {
            entry_id: tag for first, last, tag in run.tags for entry_id in range(first, last + 1)
        }
        for entry_id in range(run.first_entry_id, run.first_entry_id + len(run.entries)):
            expected = self.tags.get(Position(run.ledger_id, entry_id))
            assert carried.pop(entry_id, None) == expected
        assert not carried

    @invariant()
    def everything_reads_back(self):
        assert self.do(self.read_all()) == self.there()

    @invariant()
    def the_cursor_knows_what_is_acknowledged(self):
        cursor = self.cursor
        for position in self.there():
            left = self.unacked[position]
            assert cursor.is_deleted(position) == (left == 0)
            known = cursor.unacked_indexes(position)
            assert known == (left or None) or (known is None and left == ALL_INDEXES)
        mark = cursor.mark_delete_position
        behind = [self.unacked[position] for position in self.there() if position > mark]
        assert not behind or behind[0]
        assert acknowledged_behind(cursor) == behind.count(0)
        assert cursor.backlog(LATEST) == len(behind) - behind.count(0)

    @invariant()
    def ranges_agree_with_single_positions(self):
        for info in self.ledger.ledgers():
            inside = self.cursor.deleted_within(info.ledger_id, 0, info.entries - 1)
            listed = [entry for first, last in inside for entry in range(first, last + 1)]
            assert listed == [
                entry
                for entry in range(info.entries)
                if self.cursor.is_deleted(Position(info.ledger_id, entry))
            ]


class OverMemory(ManagedLedgerMachine):
    def make_backend(self) -> Backend:
        self.memory = getattr(self, "memory", None) or MemoryBackend()
        return self.memory


class OverFiles(ManagedLedgerMachine):
    def make_backend(self) -> Backend:
        if not hasattr(self, "folder"):
            self.folder = tempfile.TemporaryDirectory()
        return EmbeddedBackend(OsDisk(Path(self.folder.name)), Clock(), journal_max_bytes=1500)

    def teardown(self) -> None:
        super().teardown()
        self.folder.cleanup()


@pytest.mark.slow
@pytest.mark.parametrize("machine", [OverMemory, OverFiles])
def test_a_managed_ledger_agrees_with_its_model(machine):
    examples = 60 if machine is OverMemory else 25
    run_state_machine_as_test(
        machine, settings=settings(max_examples=examples, stateful_step_count=30, deadline=None)
    )
