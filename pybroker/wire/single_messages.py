"""The messages of a decompressed batch: see message_metadata."""

import struct
from collections.abc import Iterator
from typing import Final

from google.protobuf.message import DecodeError

from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.message_metadata import BadEntry

_U32: Final = struct.Struct(">I")


def single_messages(
    plain: bytes, count: int, most_bytes: int | None = None
) -> Iterator[pb.SingleMessageMetadata]:
    """The metadata of each of the batch's `count` messages. Raises BadEntry, also for metadata of
    more than `most_bytes`: parsed, they may take twenty times that.
    """
    at = 0
    parse = pb.SingleMessageMetadata.FromString
    try:
        for _ in range(count):
            start = at + 4
            at = start + _U32.unpack_from(plain, at)[0]
            if most_bytes is not None and at - start > most_bytes:
                raise BadEntry(f"A message of a batch has {at - start} bytes of metadata")
            single = parse(plain[start:at])
            at += single.payload_size
            if at > len(plain) or single.payload_size < 0:
                raise BadEntry(f"A message of a batch of {len(plain)} bytes goes beyond its end")
            yield single
    except (DecodeError, struct.error) as error:
        raise BadEntry(f"A batch of {len(plain)} bytes does not parse") from error


def split_batch(
    plain: bytes, count: int, most_bytes: int | None = None
) -> Iterator[tuple[pb.SingleMessageMetadata, bytes]]:
    """Like `single_messages`, with the content of each message."""
    at = 0
    for single in single_messages(plain, count, most_bytes):
        start = at + 4 + _U32.unpack_from(plain, at)[0]
        at = start + single.payload_size
        yield single, plain[start:at]
