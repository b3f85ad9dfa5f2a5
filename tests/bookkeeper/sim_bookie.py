"""A bookie in the simulated world: the real protocol, and a disk that survives its crashes.

An entry can be read as soon as it has arrived; once synced, it survives a crash and is confirmed.
The same holds for a fence. Too many adds at once are refused. A bookie registers in ZooKeeper with
an ephemeral node, through pybroker's client.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from struct import Struct
from typing import Any, Final

from sim_zookeeper import ADDRESS, split

from managed_ledger.codec import Writer
from managed_ledger.storage.bookkeeper.formats.protobuf import put_bytes, put_int
from managed_ledger.storage.bookkeeper.protocol import Code, Operation
from managed_ledger.storage.zookeeper.client import ZooKeeper
from managed_ledger.storage.zookeeper.errors import NodeExists, ZooKeeperError
from managed_ledger.storage.zookeeper.session import SessionState
from pybroker.simulation.node import Node

_IDS: Final = Struct(">qq")
_ANSWER: Final = Struct(">IIqq")
SESSION_MS: Final = 2000
MAX_QUEUED: Final = 16  # unsynced adds; further ones are refused


@dataclass
class Ledger:
    key: bytes
    entries: dict[int, bytes] = field(default_factory=dict)
    is_fenced: bool = False

    def copy(self) -> "Ledger":
        return Ledger(self.key, dict(self.entries), self.is_fenced)


@dataclass
class Disk:
    """The synced data."""

    ledgers: dict[int, Ledger] = field(default_factory=dict)
    is_full: bool = False  # adds are refused
    bookie_id: str = ""  # empty: the bookie's address
    max_frame_bytes: int = 2**31  # nettyMaxFrameSizeBytes: larger requests end their connection

    def keep(self, ledger_id: int, key: bytes) -> Ledger:
        return self.ledgers.setdefault(ledger_id, Ledger(key))


def endpoint(host: str, port: int, protocol: bytes = b"bookie-rpc") -> bytes:
    """A BookieServiceInfoFormat, as bookies register it."""
    inner, whole = Writer(), Writer()
    put_bytes(inner, 1, b"bookie")
    put_int(inner, 2, port)
    put_bytes(inner, 3, host.encode())
    put_bytes(inner, 4, protocol)
    put_bytes(whole, 6, inner.getvalue())
    return whole.getvalue()


class SimulatedBookie:
    def __init__(self, node: Node, port: int, disk: Disk, rng: random.Random) -> None:
        self.node = node
        self.port = port
        self.name = disk.bookie_id or f"127.0.0.1:{port}"
        self._disk = disk
        self._rng = rng
        self.ledgers = {number: each.copy() for number, each in disk.ledgers.items()}
        self._synced_s = 0.0
        self.queued = 0

    async def run(self) -> None:
        await self.node.create_server(lambda: _Connection(self), "127.0.0.1", self.port)
        while True:  # a bookie whose session has expired registers again
            zookeeper = ZooKeeper(ADDRESS, self._rng, SESSION_MS)
            await zookeeper.open(600)
            expired = asyncio.Event()

            def heard(state: SessionState, expired: asyncio.Event = expired) -> None:
                if state is SessionState.EXPIRED:
                    expired.set()

            zookeeper.on_state(heard)
            await self._register(zookeeper, expired)
            await expired.wait()
            await zookeeper.close()

    async def _register(self, zookeeper: ZooKeeper, expired: asyncio.Event) -> None:
        while not expired.is_set():
            path = f"/ledgers/available/{self.name}"
            try:
                await zookeeper.create(path, self._registration(), ephemeral=True)
                return
            except NodeExists:
                with contextlib.suppress(ZooKeeperError):
                    if (await zookeeper.get(path)).ephemeral_owner == zookeeper.session_id:
                        return
                await asyncio.sleep(0.2)  # the node belongs to the previous session
            except ZooKeeperError:
                await asyncio.sleep(0.2)

    def _registration(self) -> bytes:
        return endpoint("127.0.0.1", self.port) if self._disk.bookie_id else b""

    @property
    def max_frame_bytes(self) -> int:
        return self._disk.max_frame_bytes

    @property
    def is_full(self) -> bool:
        return self._disk.is_full

    def synced(self, work: Callable[[], None]) -> None:
        """Returns after the time of a sync, in the order of the calls."""
        now = self.node.time()
        self._synced_s = max(self._synced_s, now) + self._rng.choice((1e-4, 1e-3, 0.02))
        self.node.call_at(self._synced_s, work)

    def fence(self, ledger_id: int, key: bytes) -> None:
        self.ledgers.setdefault(ledger_id, Ledger(key)).is_fenced = True

    def fence_durably(self, ledger_id: int, key: bytes) -> None:
        self._disk.keep(ledger_id, key).is_fenced = True

    def store(self, ledger_id: int, key: bytes, entry_id: int, body: bytes) -> None:
        self._disk.keep(ledger_id, key).entries[entry_id] = body


class _Connection(asyncio.Protocol):
    def __init__(self, bookie: SimulatedBookie) -> None:
        self._bookie = bookie
        self._buffer = b""
        self._transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        messages, self._buffer = split(self._buffer + data)
        sizes = [len(each) for each in messages]
        if len(self._buffer) >= 4:
            sizes.append(int.from_bytes(self._buffer[:4], "big"))
        if 4 + max(sizes, default=0) > self._bookie.max_frame_bytes:
            self._transport.abort()
            return
        for message in messages:
            head = int.from_bytes(message[:4], "big")
            assert head >> 24 == 2
            flags = head & 0xFFFF
            if head >> 16 & 0xFF == Operation.ADD:
                self._add(message[4:24], message[24:], flags)
            else:
                self._read(Operation(head >> 16 & 0xFF), message[4:], flags)

    def _answer(
        self, operation: Operation, code: Code, ledger: int, entry: int, body: bytes = b""
    ) -> None:
        content = _ANSWER.pack(2 << 24 | operation << 16, code, ledger, entry) + body
        self._transport.write(len(content).to_bytes(4, "big") + content)

    def _add(self, key: bytes, body: bytes, flags: int) -> None:
        bookie = self._bookie
        ledger_id, entry_id = _IDS.unpack_from(body)
        ledger = bookie.ledgers.setdefault(ledger_id, Ledger(key))
        if ledger.key != key:
            self._answer(Operation.ADD, Code.UNAUTHORIZED, ledger_id, entry_id)
        elif ledger.is_fenced and not flags & 2:
            self._answer(Operation.ADD, Code.FENCED, ledger_id, entry_id)
        elif bookie.queued >= MAX_QUEUED:
            self._answer(Operation.ADD, Code.TOO_MANY_REQUESTS, ledger_id, entry_id)
        elif bookie.is_full:
            self._answer(Operation.ADD, Code.READ_ONLY, ledger_id, entry_id)
        else:
            ledger.entries[entry_id] = body
            bookie.queued += 1

            def stored() -> None:
                bookie.queued -= 1
                bookie.store(ledger_id, key, entry_id, body)
                self._answer(Operation.ADD, Code.OK, ledger_id, entry_id)

            bookie.synced(stored)

    def _read(self, operation: Operation, message: bytes, flags: int) -> None:
        bookie = self._bookie
        ledger_id, entry_id = _IDS.unpack_from(message)
        if not flags & 1:
            self._found(operation, ledger_id, entry_id, message[16:])
            return
        key = message[16:36]
        if (known := bookie.ledgers.get(ledger_id)) is not None and known.key != key:
            self._answer(operation, Code.UNAUTHORIZED, ledger_id, entry_id)
            return
        bookie.fence(ledger_id, key)

        def fenced() -> None:
            bookie.fence_durably(ledger_id, key)
            self._found(operation, ledger_id, entry_id, b"")

        bookie.synced(fenced)

    def _found(self, operation: Operation, ledger_id: int, entry_id: int, batch: bytes) -> None:
        ledger = self._bookie.ledgers.get(ledger_id)
        entries = {} if ledger is None else ledger.entries
        wanted = max(entries, default=-1) if entry_id == -1 else entry_id
        if wanted not in entries:
            code = Code.NO_LEDGER if ledger is None else Code.NO_ENTRY
            self._answer(operation, code, ledger_id, entry_id)
        elif operation is Operation.READ:
            self._answer(operation, Code.OK, ledger_id, entry_id, entries[wanted])
        else:
            request_id, count = batch[:8], int.from_bytes(batch[8:12], "big")
            run = []
            while wanted in entries and len(run) < count:
                run.append(len(entries[wanted]).to_bytes(4, "big") + entries[wanted])
                wanted += 1
            self._answer(operation, Code.OK, ledger_id, entry_id, request_id + b"".join(run))
