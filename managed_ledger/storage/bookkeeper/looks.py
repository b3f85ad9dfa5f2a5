"""Keys to look at, in the order in which they were told of, and who waits until they were."""

import asyncio
from collections import deque


class Looks:
    def __init__(self) -> None:
        self._keys: dict[str, int] = {}  # when each was told of first
        self._told = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def __bool__(self) -> bool:
        return bool(self._keys)

    def add(self, key: str) -> None:
        """One look serves several that told of the same key."""
        self._told += 1
        self._keys.setdefault(key, self._told)

    def take(self) -> tuple[str, int]:
        """The first one. Who tells of it from now on wants another look."""
        key = next(iter(self._keys))
        return key, self._keys.pop(key)

    def put_back(self, key: str, told: int) -> None:
        """The look failed: it comes first again."""
        self._keys.pop(key, None)
        self._keys = {key: told, **self._keys}

    def wait(self) -> asyncio.Future[None]:
        """It completes when all keys that were told of up to now were looked at."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((self._told, done))
        return done

    def tell(self) -> None:
        """No look is under way: tell those whose keys were looked at."""
        first = next(iter(self._keys.values()), self._told + 1)
        while self._waiting and self._waiting[0][0] < first:
            done = self._waiting.popleft()[1]
            if not done.done():
                done.set_result(None)
