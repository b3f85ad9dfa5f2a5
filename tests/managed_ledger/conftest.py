"""A clock that stands still, and backends to run the same facts against."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.storage.backend import Backend
from managed_ledger.storage.embedded.journal import EmbeddedBackend
from managed_ledger.storage.embedded.os_disk import OsDisk
from managed_ledger.storage.memory import MemoryBackend


@dataclass
class StillClock:
    """Time passes when a test says so."""

    ms: int = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.ms

    def monotonic_s(self) -> float:
        return self.ms / 1000


@pytest.fixture
def clock() -> StillClock:
    return StillClock()


MakeBackend = Callable[[], Backend]


@pytest.fixture(params=["memory", "embedded"])
def make_backend(request: Any, tmp_path: Path, clock: StillClock) -> MakeBackend:
    """Each call is a restart: another backend object over the same contents."""
    if request.param == "memory":
        memory = MemoryBackend()
        return lambda: memory
    return lambda: EmbeddedBackend(OsDisk(tmp_path / "data"), clock, journal_max_bytes=2000)


class Storage:
    """A backend and a factory over it, for the length of an `async with`."""

    def __init__(self, backend: Backend, clock: StillClock, config: ManagedLedgerConfig) -> None:
        self.backend = backend
        self._clock = clock
        self._config = config

    async def __aenter__(self) -> ManagedLedgerFactory:
        await self.backend.open()
        self.factory = ManagedLedgerFactory(self.backend, self._clock, self._config)
        return self.factory

    async def __aexit__(self, *exc_info: object) -> None:
        await self.factory.close()
        await self.backend.close()


Start = Callable[..., Storage]


@pytest.fixture
def start(make_backend: MakeBackend, clock: StillClock) -> Start:
    """`async with start(max_entries_per_ledger=5) as factory:` is one life of the process."""

    def storage(**limits: Any) -> Storage:
        config = ManagedLedgerConfig(**{"min_rollover_time_ms": 0, **limits})
        return Storage(make_backend(), clock, config)

    return storage


@pytest.fixture
def run() -> Callable[[Coroutine[Any, Any, Any]], Any]:
    return asyncio.run
