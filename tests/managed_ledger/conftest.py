"""The backends that the contract's tests run against."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from storage_fixtures import MakeBackend, StillClock, clock, start  # noqa: F401

from managed_ledger.storage.embedded.journal import EmbeddedBackend
from managed_ledger.storage.embedded.os_disk import OsDisk
from managed_ledger.storage.memory import MemoryBackend


@pytest.fixture(params=["memory", "embedded"])
def make_backend(request: Any, tmp_path: Path, clock: StillClock) -> MakeBackend:  # noqa: F811
    """Each call is a restart: it returns a new backend object over the same contents."""
    if request.param == "memory":
        memory = MemoryBackend()
        return lambda: memory
    return lambda: EmbeddedBackend(OsDisk(tmp_path / "data"), clock, journal_max_bytes=2000)


@pytest.fixture
def run() -> Callable[[Coroutine[Any, Any, Any]], Any]:
    return asyncio.run


@pytest.fixture
def append_at_once() -> int:
    """The number of entries that the storage takes in one append without resending any."""
    return 40_000
