"""Keys with versions in memory; the backend makes each mutation durable before it is visible.

There are two views. `_durable` is the state that `get` returns. `_queued` has the pending mutations
of each key, because a compare-and-set must consider the state when its own turn comes. Only the
last mutation of a key may fail alone.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from sortedcontainers import SortedDict

from managed_ledger.errors import BadVersion
from managed_ledger.storage.backend import ABSENT, KeyAt, Versioned
from managed_ledger.storage.operations import Put, Remove, call_safely

LAST = "\U0010ffff"  # the last of all characters


class MetadataTable:
    """A MetadataStore; `submit` queues a mutation, and the backend calls `apply` or `withdraw`."""

    def __init__(self, submit: Callable[[Put | Remove], None]) -> None:
        self._submit = submit
        self._durable: SortedDict[str, Versioned] = SortedDict()
        self._queued: dict[str, list[Put | Remove]] = {}
        self._watchers: list[tuple[str, Callable[[str], None]]] = []

    def get(self, key: str) -> Versioned | None:
        found: Versioned | None = self._durable.get(key)
        return found

    def keys(self, prefix: str) -> list[str]:
        return list(self._durable.irange(prefix, behind(prefix), inclusive=(True, False)))

    def put(
        self,
        key: str,
        value: bytes,
        expected_version: int | None = None,
        makes_room: bool = False,
        new_ledger_id: int | None = None,
        only_while: KeyAt | None = None,
    ) -> asyncio.Future[int]:
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if only_while is not None and not self._holds(only_while, done):
            return done
        version = self._version_to_come(key)
        if expected_version is not None and expected_version != version:
            done.set_exception(bad_version(key, version, expected_version))
            return done
        put = Put(key, Versioned(value, version + 1), done, makes_room, new_ledger_id, only_while)
        self._queue(put)
        return done

    def delete(
        self,
        key: str,
        expected_version: int | None = None,
        only_while: KeyAt | None = None,
    ) -> asyncio.Future[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if only_while is not None and not self._holds(only_while, done):
            return done
        if expected_version is not None:
            version = self._version_to_come(key)
            if version not in (ABSENT, expected_version):
                done.set_exception(bad_version(key, version, expected_version))
                return done
        self._queue(Remove(key, done, expected_version, only_while))
        return done

    async def refresh(self, prefix: str) -> None:
        """Nothing to do: there are no other writers."""

    async def release(self, keys: Iterable[str]) -> None:
        """Nothing to do: no resources are held for keys."""

    def apply(self, mutation: Put | Remove) -> None:
        if isinstance(mutation, Put):
            self._durable[mutation.key] = mutation.stored
        else:
            self._durable.pop(mutation.key, None)
        self.withdraw(mutation)
        for prefix, changed in self._watchers:
            if mutation.key.startswith(prefix):
                call_safely(changed, mutation.key)

    def watch(self, prefix: str, changed: Callable[[str], None]) -> None:
        self._watchers.append((prefix, changed))

    def end_watches(self) -> None:
        self._watchers.clear()

    def lose_queued(self) -> None:
        self._queued.clear()

    def withdraw(self, mutation: Put | Remove) -> None:
        queued = self._queued.get(mutation.key, [])
        if mutation in queued:  # nearly always the first and only one
            queued.remove(mutation)
            if not queued:
                del self._queued[mutation.key]

    def is_queued(self, key: str) -> bool:
        """Whether a mutation of the key is pending."""
        return key in self._queued

    def outcomes(self, key: str) -> list[asyncio.Future[Any]]:
        """Of the queued mutations of the key."""
        return [each.done for each in self._queued.get(key, ())]

    def load(self, items: Iterable[tuple[str, Versioned]]) -> None:
        self._durable = SortedDict(items)

    def items(self) -> list[tuple[str, Versioned]]:
        return list(self._durable.items())

    def _queue(self, mutation: Put | Remove) -> None:
        self._queued.setdefault(mutation.key, []).append(mutation)
        self._submit(mutation)

    def _holds(self, condition: KeyAt, done: asyncio.Future[Any]) -> bool:
        """Whether the condition holds; if not, `done` fails."""
        key, expected = condition
        if (version := self._version_to_come(key)) != expected:
            done.set_exception(bad_version(key, version, expected))
        return version == expected

    def _version_to_come(self, key: str) -> int:
        if queued := self._queued.get(key):
            last = queued[-1]
            return last.stored.version if isinstance(last, Put) else ABSENT
        stored = self._durable.get(key)
        return ABSENT if stored is None else stored.version


def behind(prefix: str) -> str | None:
    """The smallest string after all strings with this prefix; None if no string is."""
    rest = prefix.rstrip(LAST)
    return rest[:-1] + chr(ord(rest[-1]) + 1) if rest else None


def bad_version(key: str, version: int, expected: int) -> BadVersion:
    return BadVersion(
        f"{key!r} is at version {version}, not {expected}: it was changed in the meantime; read "
        "it again and retry"
    )
