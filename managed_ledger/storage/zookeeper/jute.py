"""ZooKeeper's serialization: big-endian integers; bytes and text with a 4-byte length in front."""

from struct import Struct, error
from typing import Any, Final

from managed_ledger.storage.zookeeper.errors import ZooKeeperError

_INT: Final = Struct(">i")
_LONG: Final = Struct(">q")
_TOO_SHORT: Final = "a message of ZooKeeper ends within a field"


class JuteWriter:
    __slots__ = ("_out",)

    def __init__(self) -> None:
        self._out = bytearray()

    def i32(self, value: int) -> "JuteWriter":
        self._out += _INT.pack(value)
        return self

    def i64(self, value: int) -> "JuteWriter":
        self._out += _LONG.pack(value)
        return self

    def flag(self, value: bool) -> "JuteWriter":
        self._out.append(value)
        return self

    def buffer(self, value: bytes) -> "JuteWriter":
        self.i32(len(value))
        self._out += value
        return self

    def text(self, value: str) -> "JuteWriter":
        return self.buffer(value.encode())

    def raw(self, value: bytes) -> "JuteWriter":
        self._out += value
        return self

    def frame(self) -> bytes:
        return _INT.pack(len(self._out)) + self._out

    def getvalue(self) -> bytes:
        return bytes(self._out)


class JuteReader:
    """Raises ZooKeeperError if a message ends within a field."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def i32(self) -> int:
        at = self._at
        self._at = at + _INT.size
        try:
            (value,) = _INT.unpack_from(self._data, at)
        except error:
            raise ZooKeeperError(_TOO_SHORT) from None
        return value  # type: ignore[no-any-return]

    def i64(self) -> int:
        return int(self.numbers(_LONG)[0])

    def flag(self) -> bool:
        return self._take(1) != b"\0"

    def buffer(self) -> bytes:
        """A buffer; a null buffer is read as empty."""
        size = self.i32()
        return self._take(size) if size > 0 else b""

    def text(self) -> str:
        return self.buffer().decode()

    def texts(self) -> list[str]:
        return [self.text() for _ in range(max(0, self.i32()))]

    def rest(self) -> bytes:
        return self._data[self._at :]

    @property
    def at_end(self) -> bool:
        return self._at >= len(self._data)

    def numbers(self, fields: Struct) -> tuple[Any, ...]:
        """Several fields that follow one another."""
        try:
            values = fields.unpack_from(self._data, self._at)
        except error:
            raise ZooKeeperError(_TOO_SHORT) from None
        self._at += fields.size
        return values

    def _take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._data):
            raise ZooKeeperError(_TOO_SHORT)
        found = self._data[self._at : end]
        self._at = end
        return found
