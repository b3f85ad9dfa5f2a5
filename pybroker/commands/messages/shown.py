"""Formats a message as pulsar-client shows it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, Self

from pybroker.client import Message
from pybroker.commands.messages.schemas import Decoder

BOUNDARY: Final = "----- got message -----"
_ROW: Final = 16


@dataclass(frozen=True, slots=True)
class Shown:
    """The parts of a message that are shown. `data` is None if the message has no value."""

    data: bytes | None
    key: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    publish_time_ms: int = 0
    event_time_ms: int = 0
    message_id: str = ""
    producer_name: str = ""
    replicated_from: str = ""
    sequence_id: int = 0
    redeliveries: int = 0
    ordering_key: bytes = b""
    schema_version: bytes = b""
    topic: str = ""

    @classmethod
    def of(cls, message: Message) -> Self:
        found = message.message_id()
        numbers = [found.ledger_id(), found.entry_id(), found.partition()]
        if found.batch_index() >= 0:
            numbers.append(found.batch_index())
        return cls(
            data=None if message.has_null_value() else message.data(),
            key=message.partition_key() if message.has_partition_key() else None,
            properties=message.properties(),
            publish_time_ms=message.publish_timestamp(),
            event_time_ms=message.event_timestamp(),
            message_id=":".join(map(str, numbers)),
            producer_name=message.producer_name(),
            replicated_from=message.entry.metadata.replicated_from,
            sequence_id=message.sequence_id(),
            redeliveries=message.redelivery_count(),
            ordering_key=message.ordering_key(),
            schema_version=message.schema_version(),
            topic=message.topic_name(),
        )


@dataclass(frozen=True, slots=True)
class Look:
    """How messages are formatted."""

    hex: bool = False
    hidden: bool = False
    metadata: bool = False
    decoder: Decoder | None = None

    def lines(self, shown: Shown, number: int) -> Iterator[str]:
        """The lines of the `number`-th message."""
        if self.hidden:
            if number % 1000 == 0:
                yield f"Received {number} messages"
            return
        yield BOUNDARY
        yield self._line(shown)

    def _line(self, shown: Shown) -> str:
        properties = ", ".join(f"{key}={value}" for key, value in shown.properties.items())
        line = (
            f"publishTime:[{shown.publish_time_ms}], eventTime:[{shown.event_time_ms}], "
            f"key:[{'null' if shown.key is None else shown.key}], properties:[{properties}], "
            f"content:{self._content(shown)}"
        )
        return line + _metadata(shown) if self.metadata else line

    def _content(self, shown: Shown) -> str:
        if shown.data is None:
            return "null"
        if self.decoder is not None:
            text = self.decoder.text(shown.topic, shown.schema_version, shown.data, shown.key or "")
            if text is not None:
                return text
        return hex_dump(shown.data) if self.hex else shown.data.decode(errors="replace")


def _metadata(shown: Shown) -> str:
    said = {
        "event-time": _iso(shown.event_time_ms),
        "message-id": shown.message_id,
        "producer-name": shown.producer_name,
        "sequence-id": shown.sequence_id,
        "replicated-from": shown.replicated_from or "null",
        "redelivery-count": shown.redeliveries,
        "ordering-key": shown.ordering_key.decode(errors="replace"),
        "schema-version": int.from_bytes(shown.schema_version) if shown.schema_version else "",
    }
    return "".join(f", {name}:{value}" for name, value in said.items())


def _iso(time_ms: int) -> str:
    try:
        at = datetime.fromtimestamp(time_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(time_ms)  # the producer set it, so it may not be a valid time
    precise = "milliseconds" if time_ms % 1000 else "seconds"
    return at.isoformat(timespec=precise).replace("+00:00", "Z")


def hex_dump(data: bytes) -> str:
    """Sixteen bytes per line: offset, bytes, printable characters."""
    rows = range(0, len(data), _ROW)
    return "".join(_row(data[start : start + _ROW], start) for start in rows)


def _row(part: bytes, start: int) -> str:
    text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
    return f"{start:08X} {part.hex(' ').upper() + ' ':{3 * _ROW}}{text}\n"
