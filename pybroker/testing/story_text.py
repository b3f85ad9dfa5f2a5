"""Formats a step of a broker as a line of text: escaped, and shortened."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.decompression import CannotDecompress, decompressed
from pybroker.wire.message_metadata import BadEntry, split_entry
from pybroker.wire.single_messages import split_batch

_NAME_CHARS: Final = 80
_PAYLOAD_BYTES: Final = 40
_MESSAGES: Final = 3  # shown of a batch
_PLAIN_BYTES: Final = 64 * 1024  # the longest decompressed payload that is shown
_POSITIONS: Final = 5
_OUTCOMES: Final = {
    "transaction.decided.after": ("will abort", "will commit"),
    "transaction.completed.after": ("aborted", "committed"),
}


class Line(NamedTuple):
    """A passing of a fault point, with the beginning and the whole length of its first entries."""

    at_s: float
    point: str
    topic: str
    subscription: str
    producer: str
    transaction: str
    connection: int | None
    positions: Sequence[tuple[int, int]]
    entries: Sequence[tuple[bytes, int]]
    detail: str
    error: str
    struck: str


def since(seconds: float) -> str:
    """A duration in 12 columns: " 0.004", " 1:00:00.004"."""
    minutes, rest = divmod(max(0.0, seconds), 60)
    hours, minutes = divmod(int(minutes), 60)
    text = f"{rest:.3f}"
    if hours or minutes:
        text = f"{hours}:{minutes:02}:{rest:06.3f}"
    return f"{text:>12}"


def short_topic(topic: str) -> str:
    name = topic.removeprefix("persistent://").removeprefix("public/default/")
    return escaped(name)


def escaped(text: str) -> str:
    """Escapes and shortens text of a client, which may have sent anything."""
    plain = "".join(each if each.isprintable() else repr(each)[1:-1] for each in text[:_NAME_CHARS])
    return plain + "…" * (len(text) > _NAME_CHARS)


def line(step: Line, told: Mapping[str, str]) -> str:
    """`told` are the names of points in a story."""
    what = told.get(step.point, step.point)
    if step.point in _OUTCOMES:
        what = _OUTCOMES[step.point][step.detail == "commit"]
    if step.struck:
        what = f"FAULT {step.struck} at {step.point}:"
    elif step.error:
        what = f"REFUSED {step.point}:"
    parts = [f"{what:<12}", *_where(step), *map(payload, step.entries)]
    if step.transaction:
        parts.append(f"in {step.transaction}" if step.topic else step.transaction)
    if step.producer:
        parts.append(f"by {escaped(step.producer)}")
    if step.detail and step.detail not in ("commit", "abort"):
        parts.append(f"({escaped(step.detail)})")
    if step.error:
        parts.append(f"because {escaped(step.error)}")
    return " ".join(part for part in parts if part)


def _where(step: Line) -> list[str]:
    """Topic with subscription, and positions. Without them and without a transaction, the
    connection.
    """
    positions = " ".join(f"{ledger}:{entry}" for ledger, entry in step.positions[:_POSITIONS])
    more = len(step.positions) - _POSITIONS
    if more > 0:
        positions += f" and {more} more"
    where = short_topic(step.topic)
    if step.subscription:
        where += f" / {escaped(step.subscription)}"
    if not where and not step.transaction and step.connection is not None:
        where = f"connection {step.connection}"
    return [where, positions]


def payload(entry: tuple[bytes, int]) -> str:
    """An entry's payload; `entry` is the beginning of the entry and its whole length."""
    data, size = entry
    try:
        metadata, at = split_entry(data)
        plain = _plain(metadata, data[at:], size - at)
        if isinstance(plain, str):
            return plain
        if not metadata.HasField("num_messages_in_batch"):
            return _shown(plain, size - at if not metadata.compression else len(plain))
    except (BadEntry, CannotDecompress):
        return f"({size} bytes)"
    return _batch(plain, metadata.num_messages_in_batch)


def _batch(plain: bytes, count: int) -> str:
    """The first messages of a batch, as far as they are known."""
    found = []
    with suppress(BadEntry):
        for _, content in split_batch(plain, min(count, _MESSAGES)):
            found.append(_shown(content, len(content)))
    if count > len(found):
        found.append(f"… {count} messages")
    return f"[{', '.join(found)}]"


def _plain(metadata: pb.MessageMetadata, data: bytes, size: int) -> bytes | str:
    """The payload; a text instead if it cannot be shown."""
    if metadata.encryption_keys:
        return f"(encrypted, {size} bytes)"
    if not metadata.compression:
        return data
    if len(data) < size or metadata.uncompressed_size > _PLAIN_BYTES:
        return f"({pb.CompressionType.Name(metadata.compression)}, {size} bytes)"
    return decompressed(metadata.compression, data, metadata.uncompressed_size)


def _shown(content: bytes, size: int) -> str:
    if size <= _PAYLOAD_BYTES:
        return repr(content)
    return f"{content[:_PAYLOAD_BYTES]!r}… {size} bytes"
