"""The contract of every backend, run against each."""

import asyncio

import pytest
from bare_ledgers import make_ledger

from managed_ledger.errors import BadVersion, LedgerClosed, LedgerNotFound, ManagedLedgerError
from managed_ledger.storage.backend import ABSENT, Backend, KeyAt, Versioned
from managed_ledger.storage.tag_runs import TagRuns

EVERYTHING = (10_000, 1 << 30)  # entries, bytes


async def append(
    backend: Backend, ledger_id: int, first: int, *entries: bytes, tag: bytes = b""
) -> None:
    done = asyncio.get_running_loop().create_future()
    backend.append(ledger_id, first, list(entries), [1] * len(entries), done.set_result, tag)
    error = await done
    if error is not None:
        raise error


def test_entries_read_back_after_a_restart(make_backend, run):
    async def scenario():
        backend = make_backend()
        await backend.open()
        ledger = await make_ledger(backend)
        await append(backend, ledger, 0, b"a", b"", b"c" * 5000)
        await append(backend, ledger, 3, b"d")
        await backend.close()
        backend = make_backend()
        await backend.open()
        summary = await backend.recover_ledger(ledger)
        assert (summary.last_entry_id, summary.size_bytes, summary.message_count) == (3, 5002, 4)
        found = []
        while len(found) < 4:
            found += (await backend.read(ledger, len(found), 3, *EVERYTHING)).entries
        assert found == [b"a", b"", b"c" * 5000, b"d"]
        await backend.close()

    run(scenario())


def test_what_is_submitted_after_closing_is_refused_and_the_next_life_writes(make_backend, run):
    async def a_life_that_submits_too_late():
        backend = make_backend()
        await backend.open()
        ledger = await make_ledger(backend)
        await append(backend, ledger, 0, b"a")
        heard: list[str] = []
        backend.metadata.watch("key", heard.append)
        await backend.close()
        late = backend.metadata.put("key", b"late")
        with pytest.raises(LedgerClosed):
            await asyncio.wait_for(append(backend, ledger, 1, b"late"), 10)
        with pytest.raises(ManagedLedgerError):
            await asyncio.wait_for(late, 10)
        return ledger, heard

    async def the_next_life(ledger, heard):
        backend = make_backend()
        await backend.open()
        assert await asyncio.wait_for(backend.metadata.put("key", b"value", -1), 10) == 0
        assert (await asyncio.wait_for(backend.recover_ledger(ledger), 10)).last_entry_id == 0
        assert heard == []
        await backend.close()

    run(the_next_life(*run(a_life_that_submits_too_late())))


def test_message_counts_come_with_the_entries(make_backend, run):
    async def scenario():
        backend = make_backend()
        await backend.open()
        ledger = await make_ledger(backend)
        done = asyncio.get_running_loop().create_future()
        backend.append(ledger, 0, [b"batch", b"marker"], [100, 0], done.set_result)
        assert await done is None
        run_ = backend.read_cached(ledger, 0, 1, *EVERYTHING)
        assert run_ is not None
        assert run_.message_counts == [100, 0]
        assert (await backend.recover_ledger(ledger)).message_count == 100
        await backend.close()

    run(scenario())


def test_a_tag_comes_with_its_entries_and_with_no_others(make_backend, run):
    async def scenario():
        backend = make_backend()
        await backend.open()
        ledger = await make_ledger(backend)
        for first, count, tag in [
            (0, 2, b""),
            (2, 3, b"a"),
            (5, 1, b"a"),
            (6, 2, b"b"),
            (8, 1, b""),
        ]:
            await append(backend, ledger, first, *[b"x" * 40_000] * count, tag=tag)
        for _ in range(2):
            for first, last, expected in [
                (0, 8, [(2, 5, b"a"), (6, 7, b"b")]),
                (0, 1, []),
                (3, 4, [(3, 4, b"a")]),
                (5, 6, [(5, 5, b"a"), (6, 6, b"b")]),
                (8, 8, []),
            ]:
                assert await tags(backend, ledger, first, last) == expected
            await backend.close()
            backend = make_backend()
            await backend.open()
        await backend.close()

    async def tags(backend: Backend, ledger: int, first: int, last: int) -> list[tuple]:
        carried = {}
        while first <= last:
            run_ = await backend.read(ledger, first, last, *EVERYTHING)
            for run_first, run_last, tag in run_.tags:
                carried |= dict.fromkeys(range(run_first, run_last + 1), tag)
            first += len(run_.entries)
        runs = TagRuns()
        for entry_id, tag in carried.items():
            runs.add(entry_id, entry_id, tag)
        return list(runs)

    run(scenario())


def test_nothing_shows_before_it_is_durable(make_backend, run):
    async def scenario():
        backend = make_backend()
        await backend.open()
        ledger = await make_ledger(backend)
        appending = asyncio.ensure_future(append(backend, ledger, 0, b"x" * 100))
        put = backend.metadata.put("key", b"value")
        await asyncio.sleep(0)
        assert backend.read_cached(ledger, 0, 0, *EVERYTHING) is None
        assert backend.metadata.get("key") is None
        assert backend.pending_bytes > 100
        await appending
        await put
        assert backend.read_cached(ledger, 0, 0, *EVERYTHING) is not None
        assert backend.metadata.get("key") == Versioned(b"value", 0)
        assert backend.pending_bytes == 0
        await backend.close()

    run(scenario())


def test_outcomes_come_in_the_order_of_the_calls(make_backend, run):
    async def scenario():
        backend = make_backend()
        await backend.open()
        first, second = await make_ledger(backend), await make_ledger(backend)
        order: list[str] = []
        in_order: set[bool] = set()

        def note(name: str):
            return lambda error: order.append(f"{name} {error}")

        for round_ in range(3):
            in_order.add(backend.append(first, round_, [b"a"], [1], note(f"a{round_}")))
            put = backend.metadata.put("key", b"%d" % round_)
            put.add_done_callback(lambda put: order.append(f"put {put.result()}"))
            in_order.add(backend.append(second, round_, [b"b"], [1], note(f"b{round_}")))
        await backend.close()
        for ledger in "ab":
            of_ledger = [name for name in order if name.startswith(ledger)]
            assert of_ledger == [f"{ledger}{n} None" for n in range(3)]
        if in_order == {True}:  # in one order with the appends of all ledgers
            appends = [name for name in order if not name.startswith("put")]
            assert appends == [f"{name}{n} None" for n in range(3) for name in "ab"]
        assert [name for name in order if name.startswith("put")] == ["put 0", "put 1", "put 2"]

    run(scenario())


def test_limits_of_a_read_hold_but_one_entry_always_comes(make_backend, run):
    async def scenario():
        backend = make_backend()
        await backend.open()
        ledger = await make_ledger(backend)
        await append(backend, ledger, 0, *[b"x" * 100] * 10)

        def sizes(first: int, last: int, entries: int, size: int) -> int:
            run_ = backend.read_cached(ledger, first, last, entries, size)
            return 0 if run_ is None else len(run_.entries)

        assert sizes(0, 9, 100, 10_000) == 10
        assert sizes(0, 9, 3, 10_000) == 3
        assert sizes(0, 9, 100, 250) == 2
        assert sizes(0, 9, 100, 1) == 1
        assert sizes(4, 5, 100, 10_000) == 2
        assert sizes(10, 12, 100, 10_000) == 0
        await backend.close()

    run(scenario())


def test_a_read_behind_the_end_finds_nothing(make_backend, run):
    async def scenario():
        backend = make_backend()
        await backend.open()
        ledger = await make_ledger(backend)
        for first in range(2):
            for behind in (first, first + 1, first + 7):
                found = await backend.read(ledger, behind, behind + 1, *EVERYTHING)
                assert (found.ledger_id, found.first_entry_id) == (ledger, behind)
                assert (found.entries, found.message_counts, list(found.tags)) == ([], [], [])
            await append(backend, ledger, first, b"x")
        await backend.close()

    run(scenario())


def test_a_recovered_ledger_takes_no_more_from_its_old_writer(make_backend, run):
    async def scenario():
        backend = make_backend()
        await backend.open()
        ledger = await make_ledger(backend)
        last = asyncio.ensure_future(append(backend, ledger, 0, b"last"))
        await asyncio.sleep(0)
        assert (await backend.recover_ledger(ledger)).last_entry_id == 0
        await last
        with pytest.raises(LedgerClosed):
            await append(backend, ledger, 1, b"zombie")
        await backend.close()

    run(scenario())


def test_a_deleted_ledger_is_gone_and_its_number_is_not_used_again(make_backend, run):
    async def scenario():
        backend = make_backend()
        await backend.open()
        ledger = await make_ledger(backend)
        await append(backend, ledger, 0, b"x" * 5000)
        await backend.delete_ledger(ledger)
        await backend.delete_ledger(ledger)
        assert backend.read_cached(ledger, 0, 0, *EVERYTHING) is None
        with pytest.raises(LedgerNotFound):
            await backend.read(ledger, 0, 0, *EVERYTHING)
        with pytest.raises(LedgerNotFound):
            await append(backend, ledger, 1, b"x")
        await backend.close()
        backend = make_backend()
        await backend.open()
        with pytest.raises(LedgerNotFound):
            await backend.recover_ledger(ledger)
        assert await make_ledger(backend) > ledger
        await backend.close()

    run(scenario())


def test_compare_and_set_counts_what_is_still_queued(make_backend, run):
    async def scenario():
        backend = make_backend()
        await backend.open()
        store = backend.metadata
        with pytest.raises(BadVersion):
            await store.put("key", b"x", expected_version=0)
        created = store.put("key", b"one", expected_version=-1)
        changed = store.put("key", b"two", expected_version=0)
        late = store.put("key", b"lost", expected_version=0)
        assert (await created, await changed) == (0, 1)
        with pytest.raises(BadVersion):
            await late
        removed, made_anew = store.delete("key"), store.put("key", b"three", expected_version=-1)
        await removed
        assert await made_anew == 0
        assert store.get("key") == Versioned(b"three", 0)
        await backend.close()

    run(scenario())


def test_a_deletion_may_expect_a_version(make_backend, run):
    async def scenario():
        backend = make_backend()
        await backend.open()
        store = backend.metadata
        await store.delete("key", 7)
        await store.put("key", b"one")
        changed, late = store.put("key", b"two"), store.delete("key", 0)
        with pytest.raises(BadVersion):
            await late
        assert await changed == 1
        assert store.get("key") == Versioned(b"two", 1)
        await store.delete("key", 1)
        assert store.get("key") is None
        await backend.close()

    run(scenario())


def test_a_change_may_require_that_another_key_is_as_it_was(make_backend, run):
    async def scenario():
        backend = make_backend()
        await backend.open()
        store = backend.metadata
        absent, decided = KeyAt("decisions/1", ABSENT), KeyAt("decisions/1", 0)
        assert await store.put("key", b"one", only_while=absent) == 0
        with pytest.raises(BadVersion):
            await store.put("key", b"two", only_while=decided)
        await store.put("decisions/1", b"")
        for change in (
            lambda only_while: store.put("key", b"two", only_while=only_while),
            lambda only_while: store.delete("key", only_while=only_while),
        ):
            with pytest.raises(BadVersion):
                await change(absent)
        assert store.get("key") == Versioned(b"one", 0)
        assert await store.put("key", b"two", only_while=decided) == 1
        await store.delete("key", only_while=decided)
        await store.delete("key", only_while=decided)
        await store.delete("decisions/1")
        assert await store.put("key", b"three", only_while=absent) == 0
        await store.delete("key", only_while=absent)
        assert list(store.keys("decisions/")) == []
        await backend.close()

    run(scenario())


def test_keys_are_found_by_prefix_after_a_restart(make_backend, run):
    async def scenario():
        backend = make_backend()
        await backend.open()
        for key in ("a/2", "a/1", "a", "b/1", "a/ü"):
            await backend.metadata.put(key, key.encode())
        await backend.metadata.delete("a/2")
        await backend.metadata.delete("never there")
        await backend.close()
        backend = make_backend()
        await backend.open()
        assert backend.metadata.keys("a/") == ["a/1", "a/ü"]
        assert backend.metadata.keys("") == ["a", "a/1", "a/ü", "b/1"]
        assert backend.metadata.get("a/ü") == Versioned("a/ü".encode(), 0)
        await backend.close()

    run(scenario())


def test_one_failing_callback_does_not_silence_the_others(make_backend, run):
    async def scenario():
        mistakes = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: mistakes.append(context))
        backend = make_backend()
        await backend.open()
        ledger = await make_ledger(backend)

        def mistaken(error: Exception | None) -> None:
            raise RuntimeError("a mistake")

        backend.append(ledger, 0, [b"a"], [1], mistaken)
        await append(backend, ledger, 1, b"b")
        assert len(mistakes) == 1
        await backend.close()

    run(scenario())
