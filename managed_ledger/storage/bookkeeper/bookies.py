"""The bookies, their quarantine, and the connections to them.

Adds and reads use separate connections to each bookie: a large read does not delay adds, and a read
that times out does not fail them. A bookie that failed is in quarantine for a while: ZooKeeper
lists it until its session ends, but no new ensemble should contain it meanwhile.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from managed_ledger.errors import ManagedLedgerError
from managed_ledger.storage.bookkeeper.connection import Adder, Answered, BookieConnection
from managed_ledger.storage.bookkeeper.errors import BookieFailed, NotEnoughBookies
from managed_ledger.storage.bookkeeper.frame_limits import FrameLimits
from managed_ledger.storage.bookkeeper.protocol import (
    MAX_BATCH_BYTES,
    MAX_FRAME_BYTES,
    Code,
    Response,
)
from managed_ledger.storage.bookkeeper.registration import Address
from managed_ledger.storage.bookkeeper.start_tls import connect_with_tls
from managed_ledger.storage.fullness import ignore_change
from managed_ledger.storage.tls_files import ClientTls

log = logging.getLogger(__name__)
_ADDS: Final = "adds"
_READS: Final = "reads"
MAX_PENDING_BYTES: Final = 64 << 20
Find = Callable[[str], Awaitable[Address | None]]
Lost = Callable[[BookieConnection], None]


def _do_nothing(connection: BookieConnection) -> None:
    """The loss of this connection says nothing about the bookie."""


@dataclass(frozen=True, slots=True)
class BookieLimits:
    connect_timeout_s: float = 5.0
    add_timeout_s: float = 5.0  # addEntryTimeout
    read_timeout_s: float = 5.0  # readEntryTimeout
    quarantine_s: float = 30.0
    max_pending_bytes: int = MAX_PENDING_BYTES  # of unanswered adds to one bookie
    max_frame_bytes: int = MAX_FRAME_BYTES  # of a response
    usual_frame_bytes: int = 0  # of the largest usual request; see FrameLimits


class Bookies:
    def __init__(
        self,
        rng: random.Random,
        limits: BookieLimits | None = None,
        tls: ClientTls | None = None,
        find: Find | None = None,
    ) -> None:
        """`find` returns the address that a bookie has registered, for those that `locate` did not
        name; it may raise a ManagedLedgerError.
        """
        self._find = find
        self._rng = rng
        self._tls = tls
        self._limits = limits or BookieLimits()
        self._registered: tuple[str, ...] = ()
        self._addresses: dict[str, Address] = {}
        self._connections: dict[tuple[str, str], BookieConnection] = {}
        self._connecting: dict[BookieConnection, asyncio.Task[None]] = {}
        self._suspects: dict[str, float] = {}  # the end of each quarantine, in loop time
        self._closed = False
        self.frames = FrameLimits(
            self._connected, self._limits.usual_frame_bytes, lambda: self.on_limits()
        )
        self.on_limits: Callable[[], None] = ignore_change  # `max_add_bytes` may have changed
        self._large_adds: set[asyncio.Task[None]] = set()

    # --- which bookies exist

    def register(self, bookies: Iterable[str]) -> None:
        """Set the bookies that accept writes now, as ZooKeeper lists them. A bookie that was not
        listed before has restarted or has reached ZooKeeper again, so its quarantine is over.
        """
        found = tuple(sorted(bookies))
        for each in found:
            if each not in self._registered:
                self._suspects.pop(each, None)
                self.frames.forget(each)
        self._registered = found
        self.on_limits()

    def locate(self, addresses: Mapping[str, Address]) -> None:
        """Set the addresses that bookies have registered."""
        self._addresses.update(addresses)

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

    def add_large(
        self,
        bookie: str,
        ledger_id: int,
        entry_ids: Sequence[int],
        requests: Sequence[bytes],
        adder: Adder,
    ) -> None:
        """As `add`, for requests of any size. One that the bookie does not take because of its size
        is refused with TOO_LARGE.
        """
        for entry_id, request in zip(entry_ids, requests, strict=True):
            if self.frames.takes(bookie, len(request)):
                self.add(bookie, ledger_id, (entry_id,), (request,), adder)
            else:
                adding = self._add_if_taken(bookie, ledger_id, entry_id, request, adder)
                task = asyncio.ensure_future(adding)
                self._large_adds.add(task)
                task.add_done_callback(self._large_adds.discard)

    async def _add_if_taken(
        self, bookie: str, ledger_id: int, entry_id: int, request: bytes, adder: Adder
    ) -> None:
        try:
            is_taken = await self.frames.find_out(bookie, len(request))
        except BookieFailed as why:
            adder.failed(entry_id, why)
            return
        if is_taken:
            self.add(bookie, ledger_id, (entry_id,), (request,), adder)
        else:
            adder.refused(entry_id, Code.TOO_LARGE)

    def max_add_bytes(self, bookies: int) -> int | None:
        """The largest add that so many bookies may take; None if there is no known limit."""
        if not self.frames.are_any:
            return None
        refused = sorted(self.frames.refused(each) or 2**63 for each in self._registered)
        least = refused[-bookies] if bookies <= len(refused) else 2**63
        return None if least == 2**63 else least - 1

    async def read(
        self, bookie: str, ledger_id: int, entry_id: int, fence_with: bytes | None = None
    ) -> Response:
        """Raises BookieFailed if the bookie does not answer."""
        done, answered = _awaited()
        self._connection(bookie, _READS).read(ledger_id, entry_id, answered, fence_with)
        return await done

    async def read_batch(
        self, bookie: str, ledger_id: int, first: int, count: int, size_bytes: int
    ) -> Response:
        """Raises BookieFailed if the bookie does not answer."""
        done, answered = _awaited()
        connection = self._connection(bookie, _READS)
        size_bytes = min(size_bytes, MAX_BATCH_BYTES)
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
        tasks = [*self._connecting.values(), *self._large_adds]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- connections

    def _connection(self, bookie: str, purpose: str) -> BookieConnection:
        found = self._connections.get((bookie, purpose))
        return self._connect(bookie, purpose) if found is None else found

    def _connect(self, bookie: str, purpose: str) -> BookieConnection:
        """A connection that can be used at once: requests wait for it, or fail with it."""
        key = (bookie, purpose)

        def lost(connection: BookieConnection) -> None:
            if self._connections.get(key) is connection:
                del self._connections[key]
            if not self._closed:
                log.info("%s", connection.broken)
                self.suspect(bookie, connection.broken)

        connection = self._connections[key] = self._connected(bookie, purpose, lost)
        return connection

    def _connected(
        self, bookie: str, purpose: str = _READS, lost: Lost = _do_nothing
    ) -> BookieConnection:
        limits = self._limits
        connection = BookieConnection(
            bookie,
            limits.add_timeout_s if purpose == _ADDS else limits.read_timeout_s,
            limits.max_pending_bytes,
            lost,
            limits.max_frame_bytes,
        )
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
            async with asyncio.timeout(self._limits.connect_timeout_s):
                host, port = await self._address(bookie)
                if self._tls is None:
                    await loop.create_connection(lambda: connection, host, port)
                else:
                    await connect_with_tls(connection, host, port, self._tls)
        except (OSError, TimeoutError, ManagedLedgerError) as mistake:
            connection.break_off(f"no connection ({mistake or type(mistake).__name__})")

    async def _address(self, bookie: str) -> Address:
        """Raises BookieFailed if the bookie is not registered, and its id is not an address."""
        if bookie not in self._registered and self._find is not None:
            # It may be read-only, and even have another address than before.
            try:
                async with asyncio.timeout(self._limits.connect_timeout_s / 2):
                    if (found := await self._find(bookie)) is not None:
                        self._addresses[bookie] = found
            except (ManagedLedgerError, TimeoutError) as why:
                log.debug("bookie %s: ZooKeeper does not say where it is: %s", bookie, why)
        address = self._addresses.get(bookie) or _id_as_address(bookie)
        if address is None:
            raise BookieFailed("its id is not an address (host:port), and it is not registered")
        return address


def _id_as_address(bookie: str) -> Address | None:
    host, _, port = bookie.rpartition(":")
    return (host, int(port)) if host and port.isdigit() else None


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
