"""Checks whether this broker works: a message is written durably and read back.

Concurrent requests share a check, and its outcome is reused for a second, so frequent checks cost
one small write a second. A full disk and one that does not respond are reported as such.
"""

import asyncio
import secrets
from contextlib import suppress
from typing import Final

from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.errors import ManagedLedgerError
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.shared_task import shared_task
from pybroker.base.errors import ServiceNotReady
from pybroker.base.names import HEALTH_LOG

TIMEOUT_S: Final = 5.0
KEPT_S: Final = 1.0
_FEW: Final = ManagedLedgerConfig(max_entries_per_ledger=1000, min_rollover_time_ms=0)


class Health:
    def __init__(self, ledgers: ManagedLedgerFactory, broker: str = "") -> None:
        """`broker` is this broker's id if others use the same storage: each has its own log."""
        self._ledgers = ledgers
        self._log = f"{HEALTH_LOG}-{broker}" if broker else HEALTH_LOG
        self._checking: asyncio.Task[str | None] | None = None
        self._ended_s = 0.0

    async def check(self) -> None:
        """Returns if a message can be stored and read. Raises ServiceNotReady with the reason."""
        if (why := await asyncio.shield(self._outcome())) is not None:
            raise ServiceNotReady(why)

    @property
    def last_ok(self) -> bool | None:
        """The result of the last check; None if there was none."""
        checking = self._checking
        if checking is None or not checking.done() or checking.cancelled():
            return None
        return checking.exception() is None and checking.result() is None

    async def close(self) -> None:
        if self._checking is not None:
            self._checking.cancel()
            with suppress(asyncio.CancelledError):
                await self._checking

    def _outcome(self) -> "asyncio.Task[str | None]":
        now_s = asyncio.get_running_loop().time()
        checking = self._checking
        if checking is None or (checking.done() and now_s >= self._ended_s + KEPT_S):
            checking = self._checking = shared_task(self._why_not())
        return checking

    async def _why_not(self) -> str | None:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await self._write_and_read()
        except TimeoutError:
            return f"a message could not be stored and read within {TIMEOUT_S:g} s; check the disk"
        except ManagedLedgerError as error:
            return str(error)
        finally:
            self._ended_s = asyncio.get_running_loop().time()

    async def _write_and_read(self) -> str | None:
        if (why := self._ledgers.fullness.reason) is not None:
            return why  # clients' messages may be too large although this one fits
        ledger = await self._ledgers.open(self._log, _FEW)
        written = secrets.token_bytes(16)
        position = await ledger.append_one(written)
        found = await ledger.read(position, position, 1, len(written))
        if found is None or found.entries != [written]:
            return "a message that was just stored cannot be read back: check the disk"
        return None
