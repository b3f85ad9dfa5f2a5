"""What the proxy needs of a protocol: frames begin with their size, and each is one message."""

from typing import Final, Protocol

from pybroker.eos_check.connection_trace import Seen

# As Kafka's socket.request.max.bytes: an answer has many batches. The broker has limits of its own,
# such as maxMessageSize, and closes a connection for a larger frame.
FRAME_AT_MOST: Final = 100 * 1024 * 1024


class Unreadable(Exception):
    """A frame that the broker would not understand either: it would close the connection."""


class Wire(Protocol):
    """A connection. Frames have their size in front; everything raises Unreadable."""

    frame_at_least: int  # bytes after the size; a frame beyond these ends the connection
    frame_at_most: int

    def from_client(self, frame: bytes) -> Seen: ...

    def from_broker(self, frame: bytes) -> tuple[Seen, bytes]:
        """Also the frame for the client, in which the broker's address is the proxy's."""
        ...
