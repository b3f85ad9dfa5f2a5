"""What passes on a connection of a Pulsar client: its steps, and lookups that name the proxy."""

from google.protobuf.message import DecodeError

from pybroker.eos_check.connection_trace import ConnectionTrace, Seen
from pybroker.eos_check.wire import FRAME_AT_MOST, Unreadable
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.frames import SIZES, encode_frame


class PulsarWire:
    """Implements Wire."""

    frame_at_least = 4
    frame_at_most = FRAME_AT_MOST

    def __init__(self, url: str) -> None:
        """`url` is the proxy's."""
        self._url = url
        self._trace = ConnectionTrace()

    def from_client(self, frame: bytes) -> Seen:
        return self._trace.from_client(_command(frame))

    def from_broker(self, frame: bytes) -> tuple[Seen, bytes]:
        command = _command(frame)
        if command.type == pb.BaseCommand.LOOKUP_RESPONSE and command.lookupTopicResponse.HasField(
            "brokerServiceUrl"
        ):
            command.lookupTopicResponse.brokerServiceUrl = self._url
            frame = encode_frame(command)
        return self._trace.from_broker(command), frame


def _command(frame: bytes) -> pb.BaseCommand:
    size = SIZES.unpack_from(frame)[1]
    try:
        return pb.BaseCommand.FromString(frame[8 : 8 + size])
    except DecodeError:
        raise Unreadable from None
