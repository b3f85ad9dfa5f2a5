"""The bookies, their quarantine, and the connections to them.

Adds and reads use separate connections to each bookie: a large read does not delay adds, and a read
that times out does not fail them. A bookie that failed is in quarantine for a while: ZooKeeper
lists it until its session ends, but no new ensemble should contain it meanwhile.
"""

import asyncio
import logging
import random
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from managed_ledger.storage.bookkeeper.connection import Adder, Answered, BookieConnection
from managed_ledger.storage.bookkeeper.errors import BookieFailed, NotEnoughBookies
from managed_ledger.storage.bookkeeper.protocol import MAX_FRAME_BYTES, Response
from managed_ledger.storage.bookkeeper.start_tls import connect_with_tls
from managed_ledger.storage.tls_files import ClientTls

log = logging.getLogger(__name__)
_ADDS: Final = "adds"
_READS: Final = "reads"


@dataclass(frozen=True, slots=True)
class BookieLimits:
    connect_timeout_s: float = 5.0
    add_timeout_s: float = 5.0  # addEntryTimeout
    read_timeout_s: float = 5.0  # readEntryTimeout
    quarantine_s: float = 30.0
    max_pending_bytes: int = 64 << 20  # of unanswered adds to one bookie
    max_frame_bytes: int = MAX_FRAME_BYTES


class Bookies:
    def __init__(
        self,
        rng: random.Random,
        limits: BookieLimits | None = None,
        tls: ClientTls | None = None,
    ) -> None:
        self._rng = rng
        self._tls = tls
        self._limits = limits or BookieLimits()
        self._registered: tuple[str, ...] = ()
        self._addresses: dict[str, tuple[str, int]] = {}
        self._connections: dict[tuple[str, str], BookieConnection] = {}
        self._connecting: dict[BookieConnection, asyncio.Task[None]] = {}
        self._suspects: dict[str, float] = {}  # the end of each quarantine, in loop time
        self._closed = False

    # --- which bookies exist

    def register(self, bookies: Iterable[str]) -> None:
        """Set the bookies that accept writes now, as ZooKeeper lists them. A bookie that was not
        listed before has restarted or has reached ZooKeeper again, so its quarantine is over.
        """
        found = tuple(sorted(bookies))
        for each in found:
            if each not in self._registered:
                self._suspects.pop(each, None)
        self._registered = found

    def locate(self, bookie: str, host: str, port: int) -> None:
        """Set the address of a bookie whose id is not its address."""
        self._addresses[bookie] = (host, port)

    @property
    def registered(self) -> tuple[str, ...]:
        return self._registered

    def available(self, without: Collection[str] = ()) -> list[str]:
        """The bookies that are registered and not in quarantine."""
        now = asyncio.get_running_loop().time()
        self._suspects = {each: until for each, until in self._suspects.items() if until > now}
        return [b for b in self._registered if b not in self._suspects and b not in without]

    def choose(self, count: int, without: Collection[str] = ()) -> list[str]:
        """`count` random bookies; from quarantine only if there are too few others. Raises
        NotEnoughBookies.
        """
        found = self.choose_up_to(count, without)
        if len(found) < count:
            raise NotEnoughBookies(
                f"{count} more bookies are needed, but only {len(found)} are available "
                f"({len(self._registered)} are registered); start more bookies, then retry"
            )
        return found

    def choose_up_to(self, count: int, without: Collection[str] = ()) -> list[str]:
        """As `choose`, but fewer bookies if there are not `count`. From quarantine, those that
        failed longest ago come first.
        """
        found = self.available(without)
        if len(found) >= count:
            return self._rng.sample(found, count)
        others = [b for b in self._suspects if b in self._registered and b not in without]
        return found + others[: count - len(found)]

    def is_suspect(self, bookie: str) -> bool:
        """Whether the bookie is in quarantine or not registered."""
        return bookie in self._suspects or bookie not in self._registered

    def suspect(self, bookie: str, why: object = "it failed") -> None:
        """Put the bookie into quarantine."""
        until = asyncio.get_running_loop().time() + self._limits.quarantine_s
        if self._suspects.pop(bookie, None) is None:
            log.warning("bookie %s is in quarantine: %s", bookie, why)
        self._suspects[bookie] = until  # in the order of the failures

    # --- requests

    def add(
        self,
        bookie: str,
        ledger_id: int,
        entry_ids: Sequence[int],
        requests: Sequence[bytes],
        adder: Adder,
    ) -> None:
        self._connection(bookie, _ADDS).add(ledger_id, entry_ids, requests, adder)

    async def read(
        self, bookie: str, ledger_id: int, entry_id: int, fence_with: bytes | None = None
    ) -> Response:
        """Raises BookieFailed."""
        done, answered = _awaited()
        self._connection(bookie, _READS).read(ledger_id, entry_id, answered, fence_with)
        return await done

    async def read_batch(
        self, bookie: str, ledger_id: int, first: int, count: int, size_bytes: int
    ) -> Response:
        """Raises BookieFailed."""
        done, answered = _awaited()
        connection = self._connection(bookie, _READS)
        size_bytes = min(size_bytes, self._limits.max_frame_bytes - 64)
        connection.read_batch(ledger_id, first, count, size_bytes, answered)
        return await done

    async def look_at(self, bookies: Collection[str], ledger_id: int) -> None:
        """Ask these bookies; those that do not answer are in quarantine when this returns."""
        reads = (self.read(each, ledger_id, 0) for each in bookies)
        await asyncio.gather(*reads, return_exceptions=True)

    async def close(self) -> None:
        """Break every connection. Idempotent."""
        self._closed = True
        for connection in list(self._connections.values()):
            connection.break_off("this client is closing")
        tasks = list(self._connecting.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- connections

    def _connection(self, bookie: str, purpose: str) -> BookieConnection:
        found = self._connections.get((bookie, purpose))
        return self._connect(bookie, purpose) if found is None else found

    def _connect(self, bookie: str, purpose: str) -> BookieConnection:
        """A connection that can be used at once: requests wait for it, or fail with it."""
        limits, key = self._limits, (bookie, purpose)

        def lost(connection: BookieConnection) -> None:
            if self._connections.get(key) is connection:
                del self._connections[key]
            if not self._closed:
                log.info("%s", connection.broken)
                self.suspect(bookie, connection.broken)

        connection = BookieConnection(
            bookie,
            limits.add_timeout_s if purpose == _ADDS else limits.read_timeout_s,
            limits.max_pending_bytes,
            lost,
            limits.max_frame_bytes,
        )
        self._connections[key] = connection
        if self._closed:
            connection.break_off("this client is closed")
            return connection
        task = asyncio.ensure_future(self._open(connection, bookie))
        self._connecting[connection] = task
        task.add_done_callback(lambda _: self._connecting.pop(connection, None))
        return connection

    async def _open(self, connection: BookieConnection, bookie: str) -> None:
        loop = asyncio.get_running_loop()
        try:
            host, port = self._addresses.get(bookie) or _address(bookie)
            async with asyncio.timeout(self._limits.connect_timeout_s):
                if self._tls is None:
                    await loop.create_connection(lambda: connection, host, port)
                else:
                    await connect_with_tls(connection, host, port, self._tls)
        except (OSError, TimeoutError, ValueError, BookieFailed) as mistake:
            connection.break_off(f"no connection ({mistake or type(mistake).__name__})")


def _address(bookie: str) -> tuple[str, int]:
    host, _, port = bookie.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError("its id is not an address (host:port), and it has registered no address")
    return host, int(port)


def _awaited() -> tuple[asyncio.Future[Response], Answered]:
    done: asyncio.Future[Response] = asyncio.get_running_loop().create_future()

    def answered(response: Response | None, why: BookieFailed | None) -> None:
        if done.done():
            return
        if response is not None:
            done.set_result(response)
        else:
            done.set_exception(BookieFailed(*(why.args if why else ())))

    return done, answered
