"""A shared storage: a process deletes only what certainly belongs to it."""

import asyncio

import pytest

from managed_ledger.errors import BadVersion
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.storage.memory import MemoryBackend


class SharedMemory(MemoryBackend):
    is_shared = True


class UnorderedMemory(MemoryBackend):
    is_ordered = False

    def __init__(self):
        super().__init__()
        self.appended = []

    def append(self, ledger_id, first_entry_id, entries, *others):
        self.appended += entries
        return super().append(ledger_id, first_entry_id, entries, *others)


def test_ledgers_that_this_process_does_not_know_are_left_alone(run, clock):
    async def scenario():
        backend = SharedMemory()
        others = backend.new_ledger_id()
        await backend.metadata.put("elsewhere", b"", new_ledger_id=others)
        await ManagedLedgerFactory(backend, clock).sweep()
        assert backend.ledger_ids() == [others]
        await backend.close()

    run(scenario())


def test_who_has_lost_a_log_cannot_delete_what_its_heir_has(run, clock):
    async def scenario():
        backend = SharedMemory()
        zombie = ManagedLedgerFactory(backend, clock)
        lost = await zombie.open("log")
        await lost.append_one(b"kept")
        heir = await ManagedLedgerFactory(backend, clock).open("log")
        with pytest.raises(BadVersion):
            await lost.delete()
        run_ = await heir.read(heir.first_position, heir.last_confirmed, 10, 1000)
        assert run_.entries == [b"kept"]
        await backend.close()

    run(scenario())


def test_an_append_waits_for_the_property_before_it(run, clock):
    async def scenario():
        backend = UnorderedMemory()
        factory = ManagedLedgerFactory(backend, clock)
        log = await factory.open("log")
        await log.append_one(b"before")
        written = log.set_property("since", "here")
        appending = asyncio.ensure_future(log.append_one(b"after"))
        assert log.holds_appends
        await asyncio.sleep(0)
        assert backend.appended == [b"before"]
        await written
        await appending
        assert (await log.append_one(b"last")).entry_id == 2
        await factory.close()
        await backend.close()

    run(scenario())


def test_what_waits_for_a_property_is_written_before_the_log_is_closed(run, clock):
    async def scenario():
        backend = UnorderedMemory()
        factory = ManagedLedgerFactory(backend, clock)
        log = await factory.open("log")
        log.set_property("since", "here")
        appending = asyncio.ensure_future(log.append_one(b"x"))
        await asyncio.sleep(0)
        await log.close()
        assert (await appending).entry_id == 0
        await backend.close()

    run(scenario())


def test_a_refused_property_holds_nothing_back(run, clock):
    async def scenario():
        backend = UnorderedMemory()
        factory = ManagedLedgerFactory(backend, clock)
        log = await factory.open("log")
        stored = backend.metadata.get("managed-ledgers/log")
        await backend.metadata.put("managed-ledgers/log", stored.value)
        written = log.set_property("since", "here")
        assert (await log.append_one(b"x")).entry_id == 0
        with pytest.raises(BadVersion):
            await written
        await factory.close()
        await backend.close()

    run(scenario())
