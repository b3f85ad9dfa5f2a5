"""A simulated ZooKeeper server: the real protocol, and a tree that survives crashes."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from struct import Struct
from typing import Any, Final

from managed_ledger.storage.zookeeper.jute import JuteReader, JuteWriter
from managed_ledger.storage.zookeeper.operations import EventType, OpCode
from pybroker.simulation.node import Node

PORT: Final = 2181
ADDRESS: Final = f"127.0.0.1:{PORT}"
_NO_NODE, _BAD_VERSION, _EXISTS, _NOT_EMPTY = -101, -103, -110, -111
_RUNTIME_INCONSISTENCY: Final = -2
_TICK_S: Final = 0.1
_HEAD: Final = Struct(">iqi")
_STAT: Final = Struct(">qqqqiiiqiiq")


class Refused(Exception):
    """The operation's error code."""


@dataclass
class Stored:
    value: bytes
    owner: int
    version: int = 0
    sequence: int = 0  # of the next sequential child


@dataclass
class Session:
    timeout_s: float
    heard_s: float
    connection: "Connection | None" = None


Event = tuple[EventType, str]


@dataclass
class Tree:
    """The durable data."""

    nodes: dict[str, Stored] = field(default_factory=lambda: {"": Stored(b"", 0)})
    sessions: dict[int, Session] = field(default_factory=dict)
    zxid: int = 0
    next_session: int = 1000

    def make(self, path: str) -> None:
        parts = path.strip("/").split("/")
        for count in range(1, len(parts) + 1):
            self.nodes.setdefault("/" + "/".join(parts[:count]), Stored(b"", 0))

    def node(self, path: str) -> Stored:
        found = self.nodes.get(path)
        if found is None:
            raise Refused(_NO_NODE)
        return found

    def children(self, path: str) -> list[str]:
        self.node(path)
        start = path + "/"
        below = (each[len(start) :] for each in self.nodes if each.startswith(start))
        return [name for name in below if "/" not in name]

    def create(self, path: str, value: bytes, flags: int, session: int) -> tuple[str, list[Event]]:
        parent = path.rpartition("/")[0]
        above = self.node(parent)
        if flags & 2:
            path = f"{path}{above.sequence:010}"
            self.nodes[parent] = replace(above, sequence=above.sequence + 1)
        if path in self.nodes:
            raise Refused(_EXISTS)
        self.nodes[path] = Stored(value, session if flags & 1 else 0)
        return path, [(EventType.CREATED, path), (EventType.CHILDREN, parent)]

    def set(self, path: str, value: bytes, version: int) -> list[Event]:
        self.check(path, version)
        stored = self.node(path)
        self.nodes[path] = replace(stored, value=value, version=stored.version + 1)
        return [(EventType.CHANGED, path)]

    def delete(self, path: str, version: int) -> list[Event]:
        self.check(path, version)
        if self.children(path):
            raise Refused(_NOT_EMPTY)
        del self.nodes[path]
        return [(EventType.DELETED, path), (EventType.CHILDREN, path.rpartition("/")[0])]

    def check(self, path: str, version: int) -> None:
        if version not in (-1, self.node(path).version):
            raise Refused(_BAD_VERSION)

    def snapshot(self) -> dict[str, Stored]:
        """A change replaces what is stored in a node, so this stays as it is."""
        return dict(self.nodes)


class SimulatedZooKeeper:
    def __init__(self, node: Node, tree: Tree) -> None:
        self.node = node
        self.tree = tree
        self.connections: list[Connection] = []
        for session in tree.sessions.values():  # a restart extends all sessions
            session.heard_s = node.time()
            session.connection = None

    async def run(self) -> None:
        await self.node.create_server(lambda: Connection(self), "127.0.0.1", PORT)
        while True:
            await asyncio.sleep(_TICK_S)
            now = self.node.time()
            for session_id, session in list(self.tree.sessions.items()):
                if now - session.heard_s > session.timeout_s:
                    self.expire(session_id)

    def expire(self, session_id: int) -> None:
        session = self.tree.sessions.pop(session_id, None)
        owned = [path for path, each in self.tree.nodes.items() if each.owner == session_id]
        for path in owned:
            self.tell(self.tree.delete(path, -1))
        if session is not None and session.connection is not None:
            session.connection.hang_up()

    def tell(self, events: list[Event]) -> None:
        for connection in list(self.connections):
            if connection.watches:
                for kind, path in events:
                    connection.tell(kind, path)


def split(data: bytes) -> tuple[list[bytes], bytes]:
    """The messages, each of which follows its length in 4 bytes, and the beginning of the next."""
    messages, at = [], 0
    while len(data) - at >= 4:
        end = at + 4 + int.from_bytes(data[at : at + 4], "big")
        if end > len(data):
            break
        messages.append(data[at + 4 : end])
        at = end
    return messages, data[at:]


class Connection(asyncio.Protocol):
    def __init__(self, server: SimulatedZooKeeper) -> None:
        self._server = server
        self._tree = server.tree
        self._buffer = b""
        self._session_id = 0
        self.watches: list[tuple[str, bool]] = []
        self._transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        if self in self._server.connections:
            self._server.connections.remove(self)

    def hang_up(self) -> None:
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        messages, self._buffer = split(self._buffer + data)
        for message in messages:
            if self._session_id == 0:
                self._welcome(JuteReader(message))
            else:
                self._request(JuteReader(message))

    def _welcome(self, reader: JuteReader) -> None:
        reader.i32(), reader.i64()
        timeout_ms, session_id = reader.i32(), reader.i64()
        now = self._server.node.time()
        if session_id == 0:
            session_id = self._tree.next_session
            self._tree.next_session += 1
            self._tree.sessions[session_id] = Session(timeout_ms / 1000, now)
        session = self._tree.sessions.get(session_id)
        if session is None:
            timeout_ms = session_id = 0
        else:
            if session.connection is not None:
                session.connection.hang_up()
            session.connection, session.heard_s = self, now
            self._server.connections.append(self)
        self._session_id = session_id
        answer = JuteWriter().i32(0).i32(timeout_ms).i64(session_id).buffer(bytes(16))
        self._transport.write(answer.flag(False).frame())

    def tell(self, kind: EventType, path: str) -> None:
        for watched, is_recursive in self.watches:
            below = is_recursive and path.startswith(watched + "/")
            wanted = below or path == watched
            if wanted and not (is_recursive and kind is EventType.CHILDREN):
                event = JuteWriter().i32(-1).i64(-1).i32(0).i32(kind).i32(3).text(path)
                self._transport.write(event.frame())
                return

    def _request(self, reader: JuteReader) -> None:
        xid, code = reader.i32(), reader.i32()
        session = self._tree.sessions.get(self._session_id)
        if session is None:
            self.hang_up()
            return
        session.heard_s = self._server.node.time()
        error, result = 0, b""
        if code == OpCode.CLOSE_SESSION:
            self._server.expire(self._session_id)
            return
        if code != OpCode.PING:
            try:
                result = self._answer(code, reader)
            except Refused as refused:
                error = refused.args[0]
        head = _HEAD.pack(xid, self._tree.zxid, error)
        self._transport.write(JuteWriter().raw(head).raw(result).frame())

    def _answer(self, code: int, reader: JuteReader) -> bytes:
        if code == OpCode.MULTI:
            return self._multi(reader)
        if code == OpCode.ADD_WATCH:
            self.watches.append((reader.text(), reader.i32() == 1))
            return b""
        if code == OpCode.SYNC:
            return b""  # there is only one server
        if code == OpCode.GET_DATA:
            stored = self._tree.node(reader.text())
            return JuteWriter().buffer(stored.value).raw(_stat(stored)).getvalue()
        if code == OpCode.SYNC:
            return JuteWriter().text(reader.text()).getvalue()
        if code == OpCode.GET_CHILDREN:
            names = self._tree.children(reader.text())
            out = JuteWriter().i32(len(names))
            for name in names:
                out.text(name)
            return out.getvalue()
        result, events = self._change(code, reader)
        self._tree.zxid += 1
        self._server.tell(events)
        return result

    def _change(self, code: int, reader: JuteReader) -> tuple[bytes, list[Event]]:
        tree, path = self._tree, reader.text()
        if code == OpCode.CREATE:
            value = reader.buffer()
            for _ in range(reader.i32()):
                reader.i32(), reader.text(), reader.text()
            path, events = tree.create(path, value, reader.i32(), self._session_id)
            return JuteWriter().text(path).getvalue(), events
        if code == OpCode.SET_DATA:
            events = tree.set(path, reader.buffer(), reader.i32())
            return _stat(tree.node(path)), events
        if code == OpCode.DELETE:
            return b"", tree.delete(path, reader.i32())
        assert code == OpCode.CHECK
        tree.check(path, reader.i32())
        return b"", []

    def _multi(self, reader: JuteReader) -> bytes:
        before = self._tree.snapshot()
        results: list[tuple[int, bytes]] = []
        events: list[Event] = []
        parts = list(self._parts(reader, results, events))
        if any(parts):
            self._tree.nodes = before
            results = [(-1, JuteWriter().i32(error).getvalue()) for error in parts]
            events = []
        self._tree.zxid += 1
        self._server.tell(events)
        out = JuteWriter()
        for code, result in results:
            error = int.from_bytes(result[:4], "big", signed=True) if code == -1 else 0
            out.i32(code).flag(False).i32(error).raw(result)
        return out.i32(-1).flag(True).i32(-1).getvalue()

    def _parts(
        self, reader: JuteReader, results: list[tuple[int, bytes]], events: list[Event]
    ) -> Iterator[int]:
        """The error of each operation; operations after the first failure are not tried."""
        has_failed = False
        while True:
            code, is_done, _ = reader.i32(), reader.flag(), reader.i32()
            if is_done:
                return
            if has_failed:
                _skip(code, reader)
                yield _RUNTIME_INCONSISTENCY
                continue
            try:
                result, told = self._change(code, reader)
            except Refused as refused:
                yield refused.args[0]
                has_failed = True
                continue
            results.append((code, result))
            events += told
            yield 0


def _skip(code: int, reader: JuteReader) -> None:
    reader.text()
    if code in (OpCode.CREATE, OpCode.SET_DATA):
        reader.buffer()
    if code == OpCode.CREATE:
        for _ in range(reader.i32()):
            reader.i32(), reader.text(), reader.text()
    reader.i32()


def _stat(stored: Stored) -> bytes:
    size = len(stored.value)
    return _STAT.pack(0, 0, 0, 0, stored.version, 0, 0, stored.owner, size, 0, 0)
