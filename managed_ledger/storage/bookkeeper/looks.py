"""Keys to read in the order of their reports, what was read, and the callers that wait."""

import asyncio
from collections import deque
from typing import NamedTuple

from managed_ledger.storage.bookkeeper.formats.family import Stored


class Found(NamedTuple):
    """The content of a node, or why it is unreadable; None and None: there is no node."""

    stored: Stored | None = None
    version: int = -1
    unreadable: str | None = None


class Looks:
    def __init__(self) -> None:
        self._keys: dict[str, int] = {}  # when each was first reported
        self._told = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def __bool__(self) -> bool:
        return bool(self._keys)

    def add(self, key: str) -> None:
        """Report a key. One read serves several reports of the same key."""
        self._told += 1
        self._keys.setdefault(key, self._told)

    def take(self) -> tuple[str, int]:
        """Take the first key. A later report of it causes another read."""
        key = next(iter(self._keys))
        return key, self._keys.pop(key)

    def put_back(self, key: str, told: int) -> None:
        """A read failed: the key becomes the first again."""
        self._keys.pop(key, None)
        self._keys = {key: told, **self._keys}

    def wait(self) -> asyncio.Future[None]:
        """Completes when all keys reported up to now have been read."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((self._told, done))
        return done

    def tell(self) -> None:
        """Complete the waits whose keys have been read. Call when no read is in progress."""
        first = next(iter(self._keys.values()), self._told + 1)
        while self._waiting and self._waiting[0][0] < first:
            done = self._waiting.popleft()[1]
            if not done.done():
                done.set_result(None)
