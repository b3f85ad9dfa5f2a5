"""What a client reads: consecutive MESSAGEs of one consumer, by column.

As SENDs are the broker's hot path, MESSAGEs are the client's. A MESSAGE command is recognised by
its first bytes, and only its body goes through protobuf. One that is spelled in another way comes
as a CommandFrame.
"""

from dataclasses import dataclass, field
from typing import Any, Final

from google.protobuf.message import DecodeError

from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.frames import FrameDecoder

_MESSAGE: Final = b"\x08\x09\x4a"  # BaseCommand{type: MESSAGE, message: ...}; the length follows


@dataclass(slots=True)
class MessageRun:
    """MESSAGE commands, one right behind the other, and the entry behind each."""

    consumer_id: int
    messages: list[pb.CommandMessage] = field(default_factory=list)
    entries: list[bytes] = field(default_factory=list)


class ClientDecoder(FrameDecoder):
    """A FrameDecoder for what brokers say; among its events are MessageRuns."""

    def __init__(self, max_message_bytes: int) -> None:
        super().__init__(max_message_bytes)
        self._messages: MessageRun | None = None

    def receive(self, data: bytes | memoryview) -> list[Any]:
        self._messages = None
        return super().receive(data)

    def _add_command(
        self,
        data: bytes | memoryview,
        start: int,
        end: int,
        frame_end: int,
        view: memoryview,
        events: list[Any],
    ) -> None:
        if data[start : start + 3] == _MESSAGE and data[start + 3] == end - start - 4:
            try:
                message = pb.CommandMessage.FromString(bytes(data[start + 4 : end]))
            except DecodeError:
                pass  # The whole command is refused below.
            else:
                self._add_message(message, bytes(data[end:frame_end]), events)
                return
        self._messages = None
        super()._add_command(data, start, end, frame_end, view, events)

    def _add_message(self, message: pb.CommandMessage, entry: bytes, events: list[Any]) -> None:
        run, consumer_id = self._messages, message.consumer_id
        if run is None or run.consumer_id != consumer_id:
            run = self._messages = MessageRun(consumer_id)
            events.append(run)
        run.messages.append(message)
        run.entries.append(entry)
