"""Why a RecordBatch is refused: one class per error code of Kafka's protocol."""

from typing import ClassVar


class BadRecords(ValueError):
    """The message says what is wrong with the records. `code` is Kafka's error code."""

    code: ClassVar[int] = 87  # INVALID_RECORD


class CorruptBatch(BadRecords):
    """The bytes are not a RecordBatch, or not the one that was sent. Clients send it again."""

    code = 2  # CORRUPT_MESSAGE


class UnsupportedFormat(BadRecords):
    """A message format older than magic 2."""

    code = 43  # UNSUPPORTED_FOR_MESSAGE_FORMAT


class UnsupportedCompression(BadRecords):
    """An unknown codec, or one whose library is not installed."""

    code = 76  # UNSUPPORTED_COMPRESSION_TYPE


class TooManyBytes(BadRecords):
    """Decompressed, the records take more than the broker allows."""

    code = 10  # MESSAGE_TOO_LARGE


class TooManyRecords(BadRecords):
    """More records than an entry may have messages. Clients that can split a batch do."""

    code = 10  # MESSAGE_TOO_LARGE


class BadTimestamp(BadRecords):
    """A producer claims to know when its records are appended."""

    code = 32  # INVALID_TIMESTAMP
