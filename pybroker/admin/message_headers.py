"""A message's metadata as HTTP headers, under Apache Pulsar's names.

What a producer wrote may be very long or very many. The headers hold the first of it, and
`X-Pulsar-Omitted` says how many are missing.

Differs: Apache Pulsar writes all, but its server fails beyond 8 KiB of headers.
"""

import base64
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

from pybroker.base.runtime import iso_time

MOST_BYTES: Final = 256 * 1024  # of all values
_MOST_REPEATED: Final = 1000  # properties, or names of clusters
OMITTED: Final = "Omitted"
# Fields of MessageMetadata that are shown unchanged, and their headers.
_PLAIN: Final = {
    "producer_name": "producer-name",
    "sequence_id": "sequence-id",
    "highest_sequence_id": "highest-sequence-id",
    "replicated_from": "replicated-from",
    "partition_key": "partition-key",
    "partition_key_b64_encoded": "partition-key-b64-encoded",
    "null_partition_key": "null-partition-key",
    "null_value": "null-value",
    "uncompressed_size": "uncompressed-size",
    "encryption_algo": "encryption-algo",
    "marker_type": "marker-type",
    "txnid_least_bits": "txnid-least-bits",
    "txnid_most_bits": "txnid-most-bits",
    "uuid": "uuid",
    "num_chunks_from_msg": "num-chunks-from-msg",
    "total_chunk_msg_size": "total-chunk-msg-size",
    "chunk_id": "chunk-id",
    "num_messages_in_batch": "num-batch-message",
}
_TIMES: Final = {
    "publish_time": "publish-time",
    "event_time": "event-time",
    "deliver_at_time": "deliver-at-time",
}
_BYTES: Final = {
    "ordering_key": "Base64-ordering-key",
    "encryption_param": "Base64-encryption-param",
    "schema_version": "Base64-schema-version-b64encoded",
}
_COMPRESSIONS: Final = ("NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY")
_UNFIT: Final = re.compile(rb"[^!#$%&'*+.^_`|~0-9A-Za-z-]")  # not allowed in the name of a header
_CONTROL: Final = re.compile(rb"[\x00-\x1f\x7f]")

Field = tuple[str, object]


class _Left:
    """What still fits into the headers."""

    def __init__(self) -> None:
        self._bytes = MOST_BYTES
        self.omitted = 0

    def fits(self, *values: str | bytes) -> bool:
        """Counts the values; those that do not fit count as omitted, together as one."""
        size = sum(map(len, values))
        if size > self._bytes:
            self.omitted += 1
            return False
        self._bytes -= size
        return True


def as_headers(first: Iterable[Field], metadata: Any) -> list[tuple[bytes, bytes]]:
    """Headers of `first` and of a MessageMetadata."""
    left = _Left()
    fields = [*first, *_of_metadata(metadata, left)]
    if left.omitted:
        fields.append((OMITTED, left.omitted))
    return [(_header(name), _value(value)) for name, value in fields]


def _of_metadata(metadata: Any, left: _Left) -> Iterator[Field]:
    for field, name in _PLAIN.items():
        if metadata.HasField(field):
            value = getattr(metadata, field)
            if not isinstance(value, str | bytes) or left.fits(value):
                yield name, value
    for field, name in _TIMES.items():
        if metadata.HasField(field):
            yield name, _time(getattr(metadata, field))
    for field, name in _BYTES.items():
        if metadata.HasField(field) and left.fits(value := getattr(metadata, field)):
            yield name, base64.b64encode(value).decode()
    if metadata.HasField("compression") and metadata.compression < len(_COMPRESSIONS):
        yield "compression", _COMPRESSIONS[metadata.compression]
    yield "Is-Encrypted", bool(metadata.encryption_keys)
    for cluster in islice(metadata.replicate_to, _MOST_REPEATED):
        if left.fits(cluster):
            yield "replicated-to", cluster
    left.omitted += max(0, len(metadata.replicate_to) - _MOST_REPEATED)
    yield from _properties(metadata, left)


def first_properties(pairs: Sequence[Any]) -> tuple[dict[str, str], int]:
    """The properties that fit, and how many do not."""
    left = _Left()
    return _first_of(pairs, left), left.omitted


def _first_of(pairs: Sequence[Any], left: _Left) -> dict[str, str]:
    left.omitted += max(0, len(pairs) - _MOST_REPEATED)
    return {
        _text(pair.key): _text(pair.value)
        for pair in islice(pairs, _MOST_REPEATED)
        if left.fits(pair.key, pair.value)
    }


def _properties(metadata: Any, left: _Left) -> Iterator[Field]:
    properties = _first_of(metadata.properties, left)
    if properties:
        yield "PROPERTY", json.dumps(properties)  # for Apache Pulsar's clients since version 3
    for key, value in properties.items():
        yield f"PROPERTY-{key}", value  # for earlier clients


def _text(value: str | bytes) -> str:
    """A producer's string; protobuf returns bytes if it is not UTF-8."""
    return value if isinstance(value, str) else value.decode("utf-8", errors="replace")


def _time(at_ms: int) -> str:
    try:
        return iso_time(at_ms)
    except (ValueError, OverflowError, OSError):
        return str(at_ms)  # outside the calendar's range


def _header(name: str) -> bytes:
    """Spelled as in Apache Pulsar, because the Java client is case-sensitive."""
    return _UNFIT.sub(b"_", f"X-Pulsar-{name}".encode())


def _value(value: object) -> bytes:
    if isinstance(value, bytes):
        value = _text(value)
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return _CONTROL.sub(b" ", text.encode()).strip()
