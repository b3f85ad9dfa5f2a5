"""Groups by hand: what is written together, the order of callbacks, and what a failure fails."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from managed_ledger.errors import StorageFailed, StorageFull
from managed_ledger.storage import group_commit
from managed_ledger.storage.backend import Versioned
from managed_ledger.storage.group_commit import Group, GroupCommit, cost_of
from managed_ledger.storage.operations import Append, Operation, Put, append_operation


class Commits:
    """Writes end when the test says so; all events are recorded."""

    def __init__(self) -> None:
        self.happened: list[str] = []
        self.writes: list[asyncio.Future[None]] = []
        self.low = False
        self.waiting: set[str] = set()
        self.commits = GroupCommit(
            self.write, self.applied, self.withdrawn, lambda: self.low, self.must_wait
        )

    def write(self, group: Group) -> "asyncio.Future[None]":
        self.happened.append("write " + " ".join(map(name_of, group.operations)))
        self.writes.append(asyncio.get_running_loop().create_future())
        return self.writes[-1]

    def applied(self, operation: Operation) -> None:
        self.happened.append(f"apply {name_of(operation)}")

    def withdrawn(self, operation: Operation) -> None:
        self.happened.append(f"withdraw {name_of(operation)}")

    def must_wait(self, operation: Operation) -> bool:
        return name_of(operation) in self.waiting

    def append(self, name: str, size: int = 1) -> None:
        def heard(error: Exception | None) -> None:
            outcome = "ok" if error is None else type(error).__name__
            self.happened.append(f"{name} {outcome}")

        operation = append_operation(1, 0, [name.encode().ljust(size)], [1], heard, b"")
        self.commits.submit(operation)

    async def end(self, error: Exception | None = None) -> None:
        write = self.writes[-1]
        write.set_result(None) if error is None else write.set_exception(error)
        await settle()

    def since(self) -> list[str]:
        happened, self.happened = self.happened, []
        return happened


def name_of(operation: Operation) -> str:
    assert isinstance(operation, Append)
    return operation.entries[0].decode().strip()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def with_commits(scenario: Callable[[Commits], Any]) -> None:
    async def run() -> None:
        await scenario(Commits())

    asyncio.run(run())


def test_what_comes_in_one_tick_or_during_a_write_is_one_write():
    async def scenario(it: Commits) -> None:
        it.append("a")
        it.append("b")
        assert it.since() == []
        await settle()
        assert it.since() == ["write a b"]
        it.append("c")
        await settle()
        it.append("d")
        await settle()
        assert it.since() == []
        await it.end()
        assert it.since() == ["write c d", "apply a", "a ok", "apply b", "b ok"]
        await it.end()
        assert it.since() == ["apply c", "c ok", "apply d", "d ok"]
        assert it.commits.pending_bytes == 0
        it.append("e")
        await settle()
        assert it.since() == ["write e"]

    with_commits(scenario)


def test_a_group_is_closed_when_it_has_the_size_of_one():
    async def scenario(it: Commits) -> None:
        full = group_commit.MAX_GROUP_BYTES
        it.append("a", full - 100)
        it.append("b", 1)
        it.append("c", 1)
        await settle()
        assert it.since() == ["write a b"]
        await it.end()
        assert it.since()[0] == "write c"

    with_commits(scenario)


def test_pending_bytes_are_those_that_wait_or_are_being_written():
    async def scenario(it: Commits) -> None:
        it.append("a", 1000)
        one = it.commits.pending_bytes
        assert 1000 < one < 1200
        await settle()
        it.append("b", 1000)
        assert it.commits.pending_bytes == 2 * one
        await it.end()
        assert it.commits.pending_bytes == one
        await it.end(StorageFull("full"))
        assert it.commits.pending_bytes == 0

    with_commits(scenario)


def test_a_full_disk_withdraws_all_that_waits_before_any_caller_learns_of_it():
    async def scenario(it: Commits) -> None:
        it.append("a")
        await settle()
        it.append("b")
        it.since()
        await it.end(StorageFull("full"))
        assert it.since() == ["withdraw a", "withdraw b", "a StorageFull", "b StorageFull"]
        assert it.commits.pending_bytes == 0
        it.append("c")
        await settle()
        assert it.since() == ["write c"]
        await it.end()
        assert it.since() == ["apply c", "c ok"]

    with_commits(scenario)


def test_after_any_other_failure_nothing_is_written_any_more():
    async def scenario(it: Commits) -> None:
        it.append("a")
        await settle()
        it.append("b")
        await it.end(StorageFailed("broken"))
        it.since()
        it.append("c")
        await settle()
        assert it.since() == ["withdraw c", "c StorageFailed"]
        assert it.commits.pending_bytes == 0

    with_commits(scenario)


@pytest.mark.parametrize("during_a_write", [False, True])
def test_where_room_is_low_only_what_must_wait_is_refused(during_a_write):
    async def scenario(it: Commits) -> None:
        if during_a_write:
            it.append("first")
            await settle()
        it.waiting = {"a", "c"}
        for name in "abc":
            it.append(name)
        it.low = True
        it.since()
        if during_a_write:
            await it.end()
            assert it.since()[:2] == ["apply first", "first ok"]  # callers wait no longer
            it.since()
        else:
            await settle()
            told = it.since()
            assert told == ["withdraw a", "withdraw c", "a StorageFull", "c StorageFull", "write b"]
        assert len(it.writes) == 1 + during_a_write
        one = cost_of(append_operation(1, 0, [b"b"], [1], lambda error: None, b""))
        assert it.commits.pending_bytes == one
        await it.end()
        assert it.since() == ["apply b", "b ok"]

    with_commits(scenario)


def test_pending_bytes_are_right_where_room_is_low_while_something_is_written():
    """An operation submitted by a callback is written at once; then room is checked again."""

    async def scenario(it: Commits) -> None:
        it.append("a")
        await settle()
        it.low, it.waiting = True, {"c"}
        it.append("b")  # need not wait for room

        def again(error: Exception | None) -> None:
            it.append("d")

        it.commits.submit(append_operation(1, 0, [b"c"], [1], again, b""))
        await it.end()
        await settle()
        assert it.since()[-1] == "write b d"
        await it.end()
        assert it.commits.pending_bytes == 0

    with_commits(scenario)


def test_draining_waits_for_all_that_was_submitted():
    async def scenario(it: Commits) -> None:
        await asyncio.wait_for(it.commits.drain(), 5)
        it.append("a")
        drains = [asyncio.ensure_future(it.commits.drain()) for _ in range(2)]
        await settle()
        it.append("b")
        await it.end()
        assert not any(drain.done() for drain in drains)
        await it.end()
        assert all(drain.done() for drain in drains)
        it.append("c")
        last = asyncio.ensure_future(it.commits.drain())
        await settle()
        assert not last.done()
        await it.end()
        assert last.done()

    with_commits(scenario)


def test_draining_ends_when_all_that_waited_was_refused():
    async def scenario(it: Commits) -> None:
        it.waiting, it.low = {"a"}, True
        drain = asyncio.ensure_future(it.commits.drain())
        it.append("a")
        await settle()
        assert drain.done()
        assert it.since() == ["withdraw a", "a StorageFull"]

    with_commits(scenario)


def test_who_stops_taking_sees_the_rest_through_and_who_refuses_does_not():
    async def scenario(it: Commits) -> None:
        it.append("a")
        await settle()
        it.append("b")
        it.commits.stop_taking(StorageFailed("closing"))
        it.append("late")
        await settle()
        await it.end()
        await it.end()
        assert it.since() == [
            "write a",
            "withdraw late",
            "late StorageFailed",
            "write b",
            "apply a",
            "a ok",
            "apply b",
            "b ok",
        ]

    async def refusing(it: Commits) -> None:
        it.append("a")
        await settle()
        it.append("b")
        it.since()
        it.commits.refuse(StorageFailed("broken"))
        assert it.since() == ["withdraw b", "b StorageFailed"]
        await it.end()
        assert it.since() == ["apply a", "a ok"]
        it.append("late")
        await settle()
        assert it.since() == ["withdraw late", "late StorageFailed"]

    with_commits(scenario)
    with_commits(refusing)


def test_what_an_operation_costs_grows_with_what_it_carries():
    async def scenario(it: Commits) -> None:
        done = asyncio.get_running_loop().create_future()
        small, large = (Put("k", Versioned(bytes(size), 0), done) for size in (10, 110))
        assert cost_of(large) - cost_of(small) == 100
        few, many = (
            append_operation(1, 0, [b"x" * 10] * count, [1] * count, lambda error: None, b"")
            for count in (1, 11)
        )
        assert 100 < cost_of(many) - cost_of(few) < 300
        assert cost_of(small) > 10

    with_commits(scenario)
