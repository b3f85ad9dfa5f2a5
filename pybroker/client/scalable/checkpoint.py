"""How far a scalable topic was read: a place in each of its segments. In the Java SDK's format."""

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final

from google.protobuf.message import DecodeError

from pybroker.client.errors import InvalidConfiguration
from pybroker.client.messages import MessageId

_PLACES: Final = 0  # the first byte of the serialized form
_EARLIEST: Final = 1
_LATEST: Final = 2
_COUNT: Final = struct.Struct(">i")
_PLACE: Final = struct.Struct(">qi")  # the segment's number, and the length of the message id


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """`places`: the last message that was read, by the segment's number. A segment without a place
    is read from its beginning. Picklable.
    """

    places: Mapping[int, MessageId] = field(default_factory=dict)
    is_latest: bool = False

    earliest: ClassVar["Checkpoint"]
    latest: ClassVar["Checkpoint"]

    def serialize(self) -> bytes:
        if self.is_latest:
            return bytes([_LATEST])
        if not self.places:
            return bytes([_EARLIEST])
        parts = [bytes([_PLACES]), _COUNT.pack(len(self.places))]
        for number, place in sorted(self.places.items()):
            said = place.serialize()
            parts += [_PLACE.pack(number, len(said)), said]
        return b"".join(parts)

    @staticmethod
    def deserialize(checkpoint_bytes: bytes) -> "Checkpoint":
        """Raises InvalidConfiguration for bytes that `serialize` did not return."""
        kind, rest = checkpoint_bytes[:1], checkpoint_bytes[1:]
        if kind == bytes([_LATEST]) and not rest:
            return Checkpoint.latest
        if kind == bytes([_EARLIEST]) and not rest:
            return Checkpoint.earliest
        try:
            if kind != bytes([_PLACES]):
                raise ValueError("its first byte is neither 0, 1 nor 2")
            return Checkpoint(_places(rest))
        except (ValueError, struct.error, DecodeError) as error:
            raise InvalidConfiguration(f"These bytes are no checkpoint: {error}") from None


def _places(said: bytes) -> dict[int, MessageId]:
    (count,), at = _COUNT.unpack_from(said), _COUNT.size
    places: dict[int, MessageId] = {}
    for _ in range(count):
        number, length = _PLACE.unpack_from(said, at)
        at += _PLACE.size
        if not 0 <= length <= len(said) - at:
            raise ValueError(f"the place in segment {number} is cut off")
        places[number] = MessageId.deserialize(said[at : at + length])
        at += length
    if at != len(said) or count < 0:
        raise ValueError("it has more bytes than places")
    return places


Checkpoint.earliest = Checkpoint()
Checkpoint.latest = Checkpoint(is_latest=True)
