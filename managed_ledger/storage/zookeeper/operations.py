"""Requests to ZooKeeper as bytes, and their results from bytes. No I/O.

Source: zookeeper.jute; org.apache.zookeeper.ZooDefs.OpCode.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import Final

from managed_ledger.storage.zookeeper.errors import ZooKeeperError, error_of
from managed_ledger.storage.zookeeper.jute import JuteReader, JuteWriter

ANY_VERSION: Final = -1
_ANYBODY: Final = JuteWriter().i32(1).i32(31).text("world").text("anyone").getvalue()
# czxid, mzxid, ctime, mtime, version, cversion, aversion, ephemeralOwner, dataLength, numChildren,
# pzxid
_STAT: Final = Struct(">qqqqiiiqiiq")
_RUNTIME_INCONSISTENCY: Final = -2


class OpCode(IntEnum):
    CREATE = 1
    DELETE = 2
    GET_DATA = 4
    SET_DATA = 5
    SYNC = 9
    PING = 11
    GET_CHILDREN = 8
    CHECK = 13
    MULTI = 14
    ADD_WATCH = 106
    CLOSE_SESSION = -11


class EventType(IntEnum):
    """What happened to a watched node; RESYNC: events may be missing, read everything again."""

    RESYNC = -1
    CREATED = 1
    DELETED = 2
    CHANGED = 3
    CHILDREN = 4


@dataclass(frozen=True, slots=True)
class Node:
    value: bytes
    version: int  # counts from 0 at creation
    ephemeral_owner: int  # a session, or 0


@dataclass(frozen=True, slots=True)
class Create:
    path: str
    value: bytes
    ephemeral: bool = False
    sequential: bool = False

    code = OpCode.CREATE

    def body(self) -> bytes:
        flags = self.ephemeral | self.sequential << 1
        return JuteWriter().text(self.path).buffer(self.value).raw(_ANYBODY).i32(flags).getvalue()


@dataclass(frozen=True, slots=True)
class Delete:
    path: str
    version: int = ANY_VERSION

    code = OpCode.DELETE

    def body(self) -> bytes:
        return JuteWriter().text(self.path).i32(self.version).getvalue()


@dataclass(frozen=True, slots=True)
class SetData:
    path: str
    value: bytes
    version: int = ANY_VERSION

    code = OpCode.SET_DATA

    def body(self) -> bytes:
        return JuteWriter().text(self.path).buffer(self.value).i32(self.version).getvalue()


@dataclass(frozen=True, slots=True)
class Check:
    """Fails the transaction unless the node has this version."""

    path: str
    version: int

    code = OpCode.CHECK

    def body(self) -> bytes:
        return JuteWriter().text(self.path).i32(self.version).getvalue()


Operation = Create | Delete | SetData | Check


def read_body(path: str) -> bytes:
    """The body of GET_DATA or GET_CHILDREN, without a watch."""
    return JuteWriter().text(path).flag(False).getvalue()


def add_watch_body(path: str, is_recursive: bool) -> bytes:
    return JuteWriter().text(path).i32(int(is_recursive)).getvalue()


def multi_body(operations: Sequence[Operation]) -> bytes:
    out = JuteWriter()
    for operation in operations:
        out.i32(operation.code).flag(False).i32(-1).raw(operation.body())
    return out.i32(-1).flag(True).i32(-1).getvalue()


def node_of(reader: JuteReader) -> Node:
    value = reader.buffer()
    version, owner = stat_of(reader)
    return Node(value, version, owner)


def stat_of(reader: JuteReader) -> tuple[int, int]:
    """The version of the data, and the session that owns the node."""
    stat = reader.numbers(_STAT)
    return stat[4], stat[7]


def multi_result(reader: JuteReader, operations: Sequence[Operation]) -> list[int]:
    """The current version of each operation's node (0 if created, -1 if deleted or only checked).
    Raises the error of the failed operation.
    """
    versions: list[int] = []
    failures: list[tuple[int, ZooKeeperError]] = []
    for operation in operations:
        code, _, error = reader.i32(), reader.flag(), reader.i32()
        if code == -1:
            error = reader.i32()
            failures.append((error, error_of(error, operation.path)))
        elif code == OpCode.CREATE:
            reader.text()
            versions.append(0)
        elif code == OpCode.SET_DATA:
            versions.append(stat_of(reader)[0])
        else:
            versions.append(-1)
    for error, failure in failures:
        if error not in (
            0,
            _RUNTIME_INCONSISTENCY,
        ):  # operations that did not fail themselves
            raise failure
    if failures:
        raise failures[0][1]
    return versions
