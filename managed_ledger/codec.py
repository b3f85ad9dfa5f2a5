"""Compact binary values: varints (7 bits a byte, least first), and bytes and text by length."""

from collections.abc import Iterable
from functools import lru_cache

from managed_ledger.errors import CorruptStorage


class Writer:
    def __init__(self) -> None:
        self._out = bytearray()

    def getvalue(self) -> bytes:
        return bytes(self._out)

    def number(self, value: int) -> None:
        if 0 <= value <= 0x7F:  # nearly all are
            self._out.append(value)
        else:
            self._out += _encoded(value)

    def numbers(self, values: Iterable[int]) -> None:
        out = self._out
        for value in values:
            if 0 <= value <= 0x7F:
                out.append(value)
            else:
                out += _encoded(value)

    def blob(self, value: bytes) -> None:
        self.number(len(value))
        self._out += value

    def text(self, value: str) -> None:
        data = value.encode()
        size = len(data)
        if size > 0x7F:
            self._out += _encoded(size)
        else:
            self._out.append(size)
        self._out += data

    def raw(self, value: bytes) -> None:
        self._out += value


@lru_cache(maxsize=4096)  # times and ids repeat
def _encoded(value: int) -> bytes:
    assert value >= 0
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


class Reader:
    """Raises CorruptStorage if the value ends too early; `what` names it in the message."""

    def __init__(self, data: bytes, what: str) -> None:
        self._data = data
        self._what = what
        self._at = 0

    @property
    def at_end(self) -> bool:
        return self._at == len(self._data)

    def number(self) -> int:
        # Inlined: a start reads millions of them.
        data, at = self._data, self._at
        try:
            value = data[at]
            at += 1
            if value > 0x7F:
                value, shift = value & 0x7F, 7
                while (byte := data[at]) > 0x7F:
                    at += 1
                    value |= (byte & 0x7F) << shift
                    shift += 7
                at += 1
                value |= byte << shift
        except IndexError:
            raise self._too_short() from None
        self._at = at
        return value

    def numbers(self, count: int) -> list[int]:
        """The next `count` values. Stops where the bytes end, however large `count` is."""
        data, at = self._data, self._at
        values = []
        try:
            for _ in range(count):
                value = data[at]
                at += 1
                if value > 0x7F:
                    value, shift = value & 0x7F, 7
                    while (byte := data[at]) > 0x7F:
                        at += 1
                        value |= (byte & 0x7F) << shift
                        shift += 7
                    at += 1
                    value |= byte << shift
                values.append(value)
        except IndexError:
            raise self._too_short() from None
        self._at = at
        return values

    def blob(self) -> bytes:
        return self.raw(self.number())

    def text(self) -> str:
        data, at = self._data, self._at
        if at < len(data) and (size := data[at]) <= 0x7F:  # inlined: nearly all are short
            at += 1
            end = at + size
            if end <= len(data):
                self._at = end
                return data[at:end].decode()
        return self.blob().decode()

    def raw(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._data):
            raise self._too_short()
        value = self._data[self._at : end]
        self._at = end
        return value

    def _too_short(self) -> CorruptStorage:
        return CorruptStorage(
            f"{self._what} ends after {len(self._data)} bytes, in the middle of a field; "
            "restore the data directory from a backup"
        )

    def version(self, known: int) -> None:
        """Check the format, which is the first byte of a value. Raises CorruptStorage."""
        found = self.raw(1)[0]
        if found != known:
            raise CorruptStorage(
                f"{self._what} has format {found}; this version reads format {known}: "
                "run the version that wrote it"
            )
