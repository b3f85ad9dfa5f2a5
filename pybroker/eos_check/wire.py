"""What the proxy needs of a protocol: frames begin with their size, and each is one message."""

from typing import Protocol

from pybroker.eos_check.connection_trace import Seen


class Unreadable(Exception):
    """A frame that the broker would not understand either: it would close the connection."""


class Wire(Protocol):
    """A connection. Frames have their size in front; everything raises Unreadable."""

    frame_at_most: int  # bytes; the broker, too, closes a connection for a larger one

    def from_client(self, frame: bytes) -> Seen: ...

    def from_broker(self, frame: bytes) -> tuple[Seen, bytes]:
        """Also the frame for the client, in which the broker's address is the proxy's."""
        ...
