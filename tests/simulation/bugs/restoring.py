"""A broker that trusts state outside its data directory."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch
from weakref import WeakKeyDictionary

from pybroker.broker.deduplication.deduplication import Deduplication


@contextmanager
def sequence_ids_kept_elsewhere() -> Iterator[None]:
    """Messages count as stored although an older directory was restored."""
    right = Deduplication.recover
    known: WeakKeyDictionary[Any, dict[str, Deduplication]] = WeakKeyDictionary()  # by world

    async def recover(self: Deduplication, open_now: Any) -> None:
        await right(self, open_now)
        world: Any = asyncio.get_running_loop().world  # type: ignore[attr-defined]
        earlier = known.setdefault(world, {})
        if (before := earlier.get(self._ledger.name)) is not None:
            for name, state in before._producers.items():
                found = self._state(name)
                found.top = found.durable = max(found.top, state.durable)
        earlier[self._ledger.name] = self

    with patch.object(Deduplication, "recover", recover):
        yield


BUGS = {"sequence-ids-kept-elsewhere": sequence_ids_kept_elsewhere}
