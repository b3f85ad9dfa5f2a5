"""A bookie's disk does not give back what was written: other bookies have good copies."""

from collections.abc import Callable, Iterator
from typing import Any, Final

from features.feature import Feature

from managed_ledger.storage.bookkeeper.metadata_record import LedgerState, decode

Entries = dict[int, bytes]


class DamagedBookie(Feature):
    """Bytes rot on one bookie, writes are lost or hit other entries, ledgers are cut short or gone.
    Everything stays readable, from the other copies.

    Only bytes rot in open ledgers. What a bookie says that it does not have counts as not confirmed
    when such a ledger is recovered: a bookie that forgets must not come back under its name.
    Apache's does not start then, because its cookie is missing.
    """

    name = "damaged bookie"

    def begin(self) -> None:
        self._port = self.rng.choice(sorted(self.broker.machines.disks))
        for _ in range(self.rng.choice((1, 3, 8))):
            self.world.after(self.some_time(), self._damage)

    def heal(self) -> None:
        """The last damage is done when all is written."""
        self._damage()

    def _damage(self) -> None:
        how = self.rng.choice(sorted(_WAYS))
        share = self.rng.choice((0.1, 0.5, 1.0))
        machines = self.broker.machines
        closed, damaged = self._closed(), 0
        for number, kept in sorted(machines.disks[self._port].ledgers.items()):
            if (number in closed or how == "rot") and self.rng.random() < share:
                served = machines.serving[self._port].ledgers.get(number)
                damaged += self._damage_one(how, kept.entries, served and served.entries)
        self.note(f"{how} of {damaged} entries on bookie {self._port}")
        self.history.counts[f"entries damaged: {how}"] += damaged
        if self.rng.random() < 0.3:
            machines.crash_bookie(self._port, False, 0.5)

    def _damage_one(self, how: str, kept: Entries, served: Entries | None) -> int:
        changed = dict(_WAYS[how](self.rng, kept))
        for entries in (kept, served):
            for entry_id, body in changed.items():
                if entries is not None and entry_id in entries:
                    if body:
                        entries[entry_id] = body
                    else:
                        del entries[entry_id]
        return len(changed)

    def _closed(self) -> set[int]:
        """The ledgers whose end is known."""
        found = set()
        for path, node in self.broker.machines.tree.nodes.items():
            digits = path.removeprefix("/ledgers/").replace("/L", "").replace("/", "")
            is_ledger = path.startswith("/ledgers/") and "/L" in path and digits.isdigit()
            if is_ledger and decode(node.value).state is LedgerState.CLOSED:
                found.add(int(digits))
        return found


# Yield entries and what is read of them from now on; nothing: they are missing.
Changes = Iterator[tuple[int, bytes]]


def _rot(rng: Any, entries: Entries) -> Changes:
    for entry_id in sorted(entries):
        if rng.random() < 0.5:
            body = bytearray(entries[entry_id])
            body[rng.randrange(len(body))] ^= 1 << rng.randrange(8)
            yield entry_id, bytes(body)


def _lost(rng: Any, entries: Entries) -> Changes:
    for entry_id in sorted(entries):
        if rng.random() < 0.5:
            yield entry_id, b""


def _misdirected(rng: Any, entries: Entries) -> Changes:
    """What was to be one entry has hit another."""
    if len(entries) > 1:
        one, other = rng.sample(sorted(entries), 2)
        yield other, entries[one]
        yield one, b""


def _truncated(rng: Any, entries: Entries) -> Changes:
    end = rng.choice((0, rng.randint(0, max(entries, default=0))))
    for entry_id in sorted(entries):
        if entry_id >= end:
            yield entry_id, b""


_WAYS: Final[dict[str, Callable[[Any, Entries], Changes]]] = {
    "lost": _lost,
    "misdirected": _misdirected,
    "rot": _rot,
    "truncated": _truncated,
}
