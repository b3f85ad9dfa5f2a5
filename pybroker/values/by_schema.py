"""Converts text to the bytes of a schema's type, as the Java client encodes them.

Numbers are big-endian. A timestamp is written in milliseconds or in ISO 8601. JSON is not changed,
and Avro values are written in JSON. The work for Avro values is limited, for all values of a
`TextEncoder` together.
"""

import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from typing import Final

from pybroker.base.json_text import json_of
from pybroker.values.avro import Codec

Encode = Callable[[str], bytes]
_MOST_STEPS: Final = 1_000_000  # about a second
_STEPS_A_VALUE: Final = 1000
_STEPS_A_CHAR: Final = 8
_EPOCH: Final = date(1970, 1, 1).toordinal()
_UNIX: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_DIGITS: Final = 40
_MOST_SAID: Final = 1000


class NotEncodable(ValueError):
    """The text is not a value of the schema, or the schema's type has no text form."""


class TextEncoder:
    """Encodes values of one schema. `kind` is the name of its type in the admin API. Raises
    NotEncodable.
    """

    def __init__(self, kind: str, definition: bytes) -> None:
        self._kind = kind
        if kind == "AVRO":
            self._encode: Encode = _Avro(definition)
        elif kind in _ENCODERS:
            self._encode = _ENCODERS[kind]
        else:
            raise NotEncodable(
                f"Text cannot be converted to a value of a {kind} schema; use a client"
            )

    def encode(self, text: str) -> bytes:
        """Raises NotEncodable if the text is not a value of the schema."""
        try:
            return self._encode(text)
        except (ValueError, OverflowError, RecursionError, struct.error) as error:
            why = str(error)[:_MOST_SAID]  # the caller may repeat it for many texts
            raise NotEncodable(f"{text[:80]!r} is not a valid {self._kind}: {why}") from None


class _Avro:
    def __init__(self, definition: bytes) -> None:
        try:
            self._codec = Codec(definition)
        except ValueError as error:
            raise NotEncodable(str(error)) from None
        self._steps_a_value = _STEPS_A_VALUE + len(definition) // 8
        self._steps_left = _MOST_STEPS

    def __call__(self, text: str) -> bytes:
        value = json_of(text)
        most = min(self._steps_a_value + _STEPS_A_CHAR * len(text), self._steps_left)
        try:
            return self._codec.encode(value, most)
        finally:
            self._steps_left -= most - max(self._codec.steps_left, 0)


def _as_json(text: str) -> bytes:
    json_of(text)
    return text.encode()


def _packed(layout: str, parse: Callable[[str], float]) -> Encode:
    pack = struct.Struct(layout).pack
    return lambda text: pack(parse(text))


def _whole(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError("it is too long")
    return int(text)


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("it is neither true nor false")
    return text.lower() == "true"


def _is_number(text: str) -> bool:
    return text.removeprefix("-").isdecimal()


def _milliseconds(text: str) -> int:
    return _whole(text) if _is_number(text) else _since_1970_us(text) // 1000


def _since_1970_us(text: str) -> int:
    """Microseconds since 1970. A text without an offset is in UTC."""
    moment = datetime.fromisoformat(text)
    since = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _UNIX
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def _nanos_of_day(moment: time | datetime) -> int:
    seconds = (moment.hour * 60 + moment.minute) * 60 + moment.second
    return seconds * 1_000_000_000 + moment.microsecond * 1000


def _instant(text: str) -> bytes:
    seconds, micros = divmod(_since_1970_us(text), 1_000_000)
    return struct.pack(">qi", seconds, micros * 1000)


def _local_date_time(text: str) -> bytes:
    moment = datetime.fromisoformat(text)
    return struct.pack(">qq", moment.toordinal() - _EPOCH, _nanos_of_day(moment))


_ENCODERS: Final[dict[str, Encode]] = {
    "NONE": str.encode,
    "BYTES": str.encode,
    "STRING": str.encode,
    "JSON": _as_json,
    "BOOLEAN": _packed(">?", _truth),
    "INT8": _packed(">b", _whole),
    "INT16": _packed(">h", _whole),
    "INT32": _packed(">i", _whole),
    "INT64": _packed(">q", _whole),
    "FLOAT": _packed(">f", float),
    "DOUBLE": _packed(">d", float),
    "DATE": _packed(">q", _milliseconds),
    "TIME": _packed(">q", _milliseconds),
    "TIMESTAMP": _packed(">q", _milliseconds),
    "INSTANT": _instant,
    "LOCAL_DATE": _packed(">q", lambda text: date.fromisoformat(text).toordinal() - _EPOCH),
    "LOCAL_TIME": _packed(">q", lambda text: _nanos_of_day(time.fromisoformat(text))),
    "LOCAL_DATE_TIME": _local_date_time,
}
