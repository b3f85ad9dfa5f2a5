"""A clock that stands still, and a factory over the backend of `make_backend`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.storage.backend import Backend


@dataclass
class StillClock:
    """Time passes only when a test advances it."""

    ms: int = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.ms

    def monotonic_s(self) -> float:
        return self.ms / 1000


@pytest.fixture
def clock() -> StillClock:
    return StillClock()


MakeBackend = Callable[[], Backend]


class Storage:
    """A backend and a factory over it, for the duration of an `async with`."""

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
