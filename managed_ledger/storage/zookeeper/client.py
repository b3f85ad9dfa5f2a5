"""ZooKeeper for asyncio: one session, kept across reconnections until it expires or is closed.

Requests wait while the session is SUSPENDED. A change in flight when the connection broke fails
with ConnectionLoss, because it is unknown whether it took effect; reads are repeated.

Watches are persistent: they report events until the client closes. Events during a disconnection
are lost, so after each reconnection every watch gets RESYNC: read everything again.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from typing import Final

from managed_ledger.storage.tls_files import ClientTls
from managed_ledger.storage.zookeeper.connection import SessionGrant, ZooKeeperConnection
from managed_ledger.storage.zookeeper.errors import (
    ConnectionLoss,
    NodeExists,
    NoNode,
    SessionExpired,
    TooManyWaiting,
    ZooKeeperError,
)
from managed_ledger.storage.zookeeper.jute import JuteReader, JuteWriter
from managed_ledger.storage.zookeeper.operations import (
    ANY_VERSION,
    Create,
    Delete,
    EventType,
    Node,
    OpCode,
    Operation,
    SetData,
    add_watch_body,
    multi_body,
    multi_result,
    node_of,
    read_body,
    stat_of,
)
from managed_ledger.storage.zookeeper.session import FINAL_STATES, SESSION_TRANSITIONS, SessionState

log = logging.getLogger(__name__)
MAX_WAITING: Final = 10_000  # requests while there is no connection
RECONNECT_S: Final = 0.1
CLOSE_S: Final = 2.0
# (type, path); called on the loop
Watcher = Callable[[EventType, str], None]


class ZooKeeper:
    def __init__(
        self,
        servers: str,
        rng: random.Random,
        session_timeout_ms: int = 30_000,
        tls: ClientTls | None = None,
    ) -> None:
        """`servers` is `host:port,host:port`. The server may grant another timeout."""
        self._servers = [_address(each) for each in servers.split(",")]
        self._rng = rng
        self._tls = tls
        self._grant = SessionGrant(0, b"", session_timeout_ms)
        self._state = SessionState.CONNECTING
        self._changed = asyncio.Event()
        self._listeners: list[Callable[[SessionState], None]] = []
        self._watches: list[tuple[str, bool, Watcher]] = []
        self._connection: ZooKeeperConnection | None = None
        self._task: asyncio.Task[None] | None = None
        self._waiting = 0
        self._failure = "no answer"  # of the last attempt to connect

    # --- the session

    @property
    def state(self) -> SessionState:
        return self._state

    @property
    def session_id(self) -> int:
        """The value of `Node.ephemeral_owner` for this session's nodes."""
        return self._grant.session_id

    @property
    def is_certain(self) -> bool:
        """Whether the session certainly exists now and for another third of its timeout.
        Independent of this process's timers, which may have been delayed.
        """
        if self._state is not SessionState.CONNECTED or self._connection is None:
            return False
        silent_s = asyncio.get_running_loop().time() - self._connection.alive_s
        return silent_s < self._grant.timeout_ms / 1500

    def on_state(self, listener: Callable[[SessionState], None]) -> None:
        """Call `listener` after each change of the session's state, on the loop."""
        self._listeners.append(listener)

    async def open(self, timeout_s: float = 30.0) -> None:
        """Establish a session. Raises ZooKeeperError if no server grants one in time."""
        self._task = asyncio.ensure_future(self._keep_connected())
        try:
            async with asyncio.timeout(timeout_s):
                while self._state is SessionState.CONNECTING:
                    await self._wait_for_change()
        except TimeoutError:
            await self.close()
            servers = ", ".join(f"{host}:{port}" for host, port in self._servers)
            raise ZooKeeperError(
                f"no ZooKeeper server of {servers} answered within {timeout_s:g} s "
                f"({self._failure}): is metadataStoreUrl right, and are they running?"
            ) from None

    async def close(self) -> None:
        """End the session: its ephemeral nodes are removed at once. Idempotent."""
        if self._state is SessionState.CONNECTED and self._connection is not None:
            ending = self._connection.request(OpCode.CLOSE_SESSION, b"", "close")
            await asyncio.wait([ending], timeout=CLOSE_S)
            if ending.done():
                ending.exception()
        if self._state is not SessionState.CLOSED:
            self._become(SessionState.CLOSED)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._connection is not None:
            self._connection.end(ConnectionLoss("this client is closed"))

    # --- nodes

    async def make_parents(self, path: str) -> None:
        """Create the missing parent nodes. Raises ZooKeeperError."""
        parts = path.split("/")[1:-1]
        missing = []
        while parts:
            try:
                await self.create("/" + "/".join(parts), b"")
                break
            except NodeExists:
                break
            except NoNode:
                missing.append(parts.pop())
        for part in reversed(missing):
            parts.append(part)
            try:
                await self.create("/" + "/".join(parts), b"")
            except NodeExists:
                continue

    async def get(self, path: str, insist: bool = False) -> Node:
        """Raises NoNode, TooManyWaiting. `insist` avoids TooManyWaiting, for callers that must
        learn the outcome of a change whose answer was lost.
        """
        return node_of(await self._read(OpCode.GET_DATA, path, insist=insist))

    async def children(self, path: str) -> list[str]:
        """The names of the child nodes, unordered. Raises NoNode."""
        return (await self._read(OpCode.GET_CHILDREN, path)).texts()

    async def create(
        self, path: str, value: bytes, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        """The path, with ZooKeeper's number appended if `sequential`. Raises NodeExists, NoNode (no
        parent), ConnectionLoss.
        """
        create = Create(path, value, ephemeral, sequential)
        return (await self._ask(create.code, create.body(), path)).text()

    async def ensure(self, path: str) -> None:
        """Create the node unless it exists. Raises NoNode (no parent)."""
        while True:
            try:
                await self.create(path, b"")
                return
            except NodeExists:
                return
            except ConnectionLoss:
                continue  # `_ask` waits for the next connection, or raises when there will be none

    async def set(self, path: str, value: bytes, version: int = ANY_VERSION) -> int:
        """The new version. Raises BadVersionError, NoNode, ConnectionLoss."""
        change = SetData(path, value, version)
        return stat_of(await self._ask(change.code, change.body(), path))[0]

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Raises NoNode, NotEmpty if the node has children, BadVersionError if it has another
        version, ConnectionLoss if it may have been deleted.
        """
        removal = Delete(path, version)
        await self._ask(removal.code, removal.body(), path)

    async def multi(self, operations: Sequence[Operation]) -> list[int]:
        """One transaction: all operations or none. Returns each node's version; raises the error of
        the failed operation.
        """
        names = ", ".join(each.path for each in operations)
        reader = await self._ask(OpCode.MULTI, multi_body(operations), names)
        return multi_result(reader, operations)

    async def watch(self, path: str, is_recursive: bool, watcher: Watcher) -> None:
        """Report changes of the node and its children (or, if recursive, of everything below) to
        `watcher` from when this returns. The node need not exist.
        """
        self._watches.append((path, is_recursive, watcher))
        await self._read(OpCode.ADD_WATCH, path, add_watch_body(path, is_recursive))

    async def sync(self, path: str) -> None:
        """Later reads see everything that was written before this returned, on any server."""
        await self._read(OpCode.SYNC, path, JuteWriter().text(path).getvalue())

    # --- requests

    async def _read(
        self, code: OpCode, path: str, body: bytes | None = None, insist: bool = False
    ) -> JuteReader:
        body = read_body(path) if body is None else body
        while True:
            try:
                return await self._ask(code, body, path, insist)
            except ConnectionLoss:
                continue  # `_ask` waits for the next connection, or raises when there will be none

    async def _ask(self, code: OpCode, body: bytes, what: str, insist: bool = False) -> JuteReader:
        connection = await self._connected(what, insist)
        return await connection.request(code, body, what)

    async def _connected(self, what: str, insist: bool) -> ZooKeeperConnection:
        while self._state is not SessionState.CONNECTED or self._connection is None:
            if self._state in FINAL_STATES:
                raise SessionExpired(f"the session is {self._state.value}: {what}")
            if self._waiting >= MAX_WAITING and not insist:
                raise TooManyWaiting(
                    f"{MAX_WAITING} requests are already waiting for "
                    f"ZooKeeper; try again later: {what}"
                )
            self._waiting += 1
            try:
                await self._wait_for_change()
            finally:
                self._waiting -= 1
        return self._connection

    async def _wait_for_change(self) -> None:
        changed = self._changed
        await changed.wait()

    def _become(self, state: SessionState) -> None:
        assert state in SESSION_TRANSITIONS[self._state], f"{self._state} to {state}"
        self._state = state
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        for listener in self._listeners:
            listener(state)

    # --- connecting

    async def _keep_connected(self) -> None:
        """Connect and reconnect until the session is over, in a random order of servers."""
        loop = asyncio.get_running_loop()
        servers = self._rng.sample(self._servers, len(self._servers))
        heard_s = loop.time()
        while self._state not in FINAL_STATES:
            for host, port in servers:
                over = loop.create_future()
                try:
                    connection = await self._connect(host, port, over)
                except SessionExpired:
                    self._become(SessionState.EXPIRED)
                    return
                except (OSError, TimeoutError, ZooKeeperError) as mistake:
                    self._failure = str(mistake) or "no answer"
                    log.info("ZooKeeper at %s:%d: %s", host, port, self._failure)
                else:
                    await over
                    heard_s = connection.heard_s
                if self._is_too_late(loop.time() - heard_s):
                    self._become(SessionState.EXPIRED)
                    return
                pause_s = RECONNECT_S * (1 + self._rng.random())
                await asyncio.sleep(pause_s)

    def _is_too_late(self, silent_s: float) -> bool:
        """Never without a session, which cannot expire: keep trying for as long as `open` waits."""
        is_suspended = self._state is SessionState.SUSPENDED
        return is_suspended and silent_s > self._grant.timeout_ms / 1000

    async def _connect(
        self, host: str, port: int, over: "asyncio.Future[None]"
    ) -> ZooKeeperConnection:
        loop = asyncio.get_running_loop()

        def lost(connection: ZooKeeperConnection) -> None:
            # Clear it at once: a caller that repeats a request must wait for the next connection.
            if self._connection is connection:
                self._connection = None
                if self._state is SessionState.CONNECTED:
                    self._become(SessionState.SUSPENDED)
            if not over.done():
                over.set_result(None)

        connection = ZooKeeperConnection(self._grant, self._heard, lost)
        try:
            async with asyncio.timeout(self._grant.timeout_ms / 3000):
                if self._tls is None:
                    await loop.create_connection(lambda: connection, host, port)
                else:
                    context = self._tls.context()
                    await loop.create_connection(lambda: connection, host, port, ssl=context)
                await connection.ready
            if over.done():
                raise ConnectionLoss("the connection was lost as soon as it was established")
        except BaseException:
            connection.end(ConnectionLoss("no connection in time"))
            raise
        is_new = self._state is SessionState.CONNECTING
        self._connection = connection
        if not is_new:
            for path, is_recursive, _ in self._watches:
                connection.request(
                    OpCode.ADD_WATCH, add_watch_body(path, is_recursive), path
                ).add_done_callback(_look_at)
        self._become(SessionState.CONNECTED)
        if not is_new:
            for path, _, watcher in self._watches:
                watcher(EventType.RESYNC, path)
        return connection

    def _heard(self, kind: int, path: str) -> None:
        try:
            event = EventType(kind)
        except ValueError:
            return  # an event of the session's state, which the connection reports
        for watched, is_recursive, watcher in self._watches:
            below = is_recursive and path.startswith(watched.rstrip("/") + "/")
            if path == watched or below:
                watcher(event, path)


def _look_at(done: "asyncio.Future[JuteReader]") -> None:
    """Ignore a failure to set a watch: the connection is gone, and the next one sets it again."""
    if not done.cancelled():
        done.exception()


def _address(server: str) -> tuple[str, int]:
    host, _, port = server.strip().rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"{server!r} is not a ZooKeeper server: write host:port")
    return host, int(port)
