"""What blocking producers, consumers and readers share: each wraps one of `pybroker.client.aio`."""

from collections.abc import Coroutine
from typing import Any, Generic, Protocol, Self, TypeVar

from pybroker.client.blocking.loop_thread import LoopThread


class _Core(Protocol):
    def topic(self) -> str: ...
    def is_connected(self) -> bool: ...
    async def close(self) -> None: ...


C = TypeVar("C", bound=_Core)
T = TypeVar("T")


class Opened(Generic[C]):
    def __init__(self, thread: LoopThread, core: C) -> None:
        self._thread = thread
        self._core = core

    def topic(self) -> str:
        return self._core.topic()

    def is_connected(self) -> bool:
        return self._core.is_connected()

    def close(self) -> None:
        self._call(self._core.close())

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return self._thread.call(work)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
