"""A backend whose process dies before the n-th change of metadata."""

import asyncio
from collections.abc import Callable
from typing import Any

from managed_ledger.errors import StorageFailed


class Mortal:
    """A backend whose process dies before the n-th change of metadata: nothing is written then."""

    def __init__(self, backend: Any, steps: int) -> None:
        self._backend = backend
        self._left = steps
        self.counting = False
        self.died = False
        self.metadata: Any = Metadata(backend.metadata, self._passes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def append(self, *args: Any, **options: Any) -> bool:
        if self.died:
            args[4](StorageFailed("the broker has died"))
            return False
        return bool(self._backend.append(*args, **options))

    def _passes(self) -> bool:
        self._left -= self.counting
        self.died = self.died or self._left < 0
        return not self.died


class Metadata:
    def __init__(self, metadata: Any, passes: Callable[[], bool]) -> None:
        self._metadata = metadata
        self._passes = passes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._metadata, name)

    def put(self, *args: Any, **options: Any) -> Any:
        return self._metadata.put(*args, **options) if self._passes() else _failed()

    def delete(self, *args: Any, **options: Any) -> Any:
        return self._metadata.delete(*args, **options) if self._passes() else _failed()


def _failed() -> "asyncio.Future[Any]":
    failed: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    failed.set_exception(StorageFailed("the broker has died"))
    return failed
