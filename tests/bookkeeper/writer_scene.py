"""A ledger's writer on bookies whose answers are given by hand."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from managed_ledger.errors import BadVersion
from managed_ledger.storage.bookkeeper.errors import BookieFailed
from managed_ledger.storage.bookkeeper.ledger_store import VersionedMetadata
from managed_ledger.storage.bookkeeper.metadata_record import LedgerMetadata, LedgerState, Segment
from managed_ledger.storage.bookkeeper.protocol import Code
from managed_ledger.storage.bookkeeper.quorums import Quorums
from managed_ledger.storage.bookkeeper.writer import LedgerWriter

IN_RECOVERY = LedgerMetadata(Quorums(1, 1, 1), (Segment(0, ("a",)),), LedgerState.IN_RECOVERY)


@dataclass
class AskedBookies:
    spare: list[str]
    asked: list[tuple[str, int, Any]] = field(default_factory=list)
    flags: set[int] = field(default_factory=set)
    up: list[str] = field(default_factory=list)  # not in quarantine
    silent: str = ""  # bookies that do not answer
    looked_at: list[str] = field(default_factory=list)
    registered: str = "abcdefg"

    def add(
        self,
        bookie: str,
        ledger_id: int,
        entry_ids: Sequence[int],
        requests: Sequence[bytes],
        adder: Any,
    ) -> None:
        for entry_id, request in zip(entry_ids, requests, strict=True):
            self.asked.append((bookie, entry_id, adder))
            self.flags.add(int.from_bytes(request[6:8], "big"))

    def choose_up_to(self, count: int, without: Any) -> list[str]:
        return [each for each in self.spare if each not in without][:count]

    def available(self) -> list[str]:
        return self.up

    async def look_at(self, bookies: Sequence[str], ledger_id: int) -> None:
        self.looked_at += bookies
        self.up = [each for each in self.up if each not in self.silent]

    def suspect(self, bookie: str) -> None:
        pass

    def answer(self, bookie: str, entry_id: int, code: int = Code.OK) -> None:
        adder = self._adder(bookie, entry_id)
        if code == Code.OK:
            adder.added(entry_id, entry_id)
        else:
            adder.refused(entry_id, code)

    def fail(self, bookie: str, entry_id: int) -> None:
        self._adder(bookie, entry_id).failed(entry_id, BookieFailed("gone"))

    def _adder(self, bookie: str, entry_id: int) -> Any:
        return next(each for b, e, each in self.asked if (b, e) == (bookie, entry_id))


@dataclass
class StoredMetadata:
    versions: list[LedgerMetadata] = field(default_factory=list)
    conflict: bool = False
    gate: "asyncio.Future[None] | None" = None
    root: str = "/ledgers"

    async def change(self, ledger_id: int, metadata: LedgerMetadata, version: int) -> int:
        if self.gate is not None:
            await self.gate
        if self.conflict and self.versions[-1:] != [IN_RECOVERY]:
            self.versions.append(IN_RECOVERY)
        if version != len(self.versions):
            raise BadVersion("somebody was first")
        self.versions.append(metadata)
        return len(self.versions)

    async def exists(self, path: str) -> bool:
        return False  # auto-recovery has never run

    async def get(self, ledger_id: int, insist: bool) -> VersionedMetadata:
        return VersionedMetadata(self.versions[-1], len(self.versions))

    def heal(self, lost: str, other: str) -> None:
        """Change complete segments as BookKeeper's auto-recovery does."""
        newest = self.versions[-1]
        healed = [
            Segment(each.first_entry_id, tuple(other if b == lost else b for b in each.bookies))
            for each in newest.segments[:-1]
        ]
        self.versions.append(replace(newest, segments=(*healed, newest.segments[-1])))


class Scene:
    def __init__(
        self,
        quorums: tuple[int, int, int] = (2, 2, 2),
        spare: str = "cd",
        wanted: tuple[int, int, int] | None = None,
    ) -> None:
        self.bookies = AskedBookies(list(spare))
        self.store = StoredMetadata()
        segment = Segment(0, tuple("abefg"[: quorums[0]]))
        metadata = LedgerMetadata(Quorums(*quorums), (segment,))
        self.writer = LedgerWriter(
            5,
            metadata,
            0,
            self.store,  # type: ignore[arg-type]
            self.bookies,  # type: ignore[arg-type]
            Quorums(*wanted or quorums),
        )
        self.heard: list[tuple[int, str]] = []

    def append(self, count: int) -> None:
        for _ in range(count):
            number = self.writer._next_entry_id
            self.writer.append(
                b"x", lambda error, number=number: self.heard.append((number, named(error)))
            )


def named(error: Exception | None) -> str:
    return "ok" if error is None else type(error).__name__


def in_a_loop(scenario: Any) -> Any:
    def test() -> None:
        asyncio.run(scenario())

    test.__name__ = scenario.__name__
    return test


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)
