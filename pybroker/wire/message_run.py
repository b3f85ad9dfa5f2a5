"""The client's receive path: consecutive MESSAGEs of one consumer, by column.

SENDs are the broker's hot path, MESSAGEs the client's. A MESSAGE command is recognised by its first
bytes, and only its body goes through protobuf. A MESSAGE encoded differently is returned as a
CommandFrame.
"""

from dataclasses import dataclass, field
from typing import Any, Final

from google.protobuf.message import DecodeError

from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.frames import SIZES, FrameDecoder

_MESSAGE: Final = b"\x08\x09\x4a"  # BaseCommand{type: MESSAGE, message: ...}; the length follows
_HEAD: Final = len(_MESSAGE) + 1


@dataclass(slots=True)
class MessageRun:
    """Consecutive MESSAGE commands, and the entry after each."""

    consumer_id: int
    messages: list[pb.CommandMessage] = field(default_factory=list)
    entries: list[bytes] = field(default_factory=list)


class ClientDecoder(FrameDecoder):
    """A FrameDecoder for data from brokers; its events include MessageRuns."""

    def _parse(self, data: bytes | memoryview, events: list[Any]) -> int:
        return super()._parse(bytes(data), events)

    def _add_command(
        self,
        data: bytes | memoryview,
        start: int,
        end: int,
        frame_end: int,
        view: memoryview,
        events: list[Any],
    ) -> int:
        assert isinstance(data, bytes)
        behind = self._add_messages(data, start - 8, events)
        if behind >= frame_end:
            return behind
        return super()._add_command(data, start, end, frame_end, view, events)

    def _add_messages(self, data: bytes, position: int, events: list[Any]) -> int:
        """Parses up to the first frame that is not a complete plain MESSAGE; returns its offset."""
        end, sizes, is_message = len(data), SIZES.unpack_from, data.startswith
        parse, run, run_id = pb.CommandMessage.FromString, None, -1
        while position + 8 + _HEAD <= end:
            total, command_size = sizes(data, position)
            start, frame_end = position + 8, position + 4 + total
            command_end = start + command_size
            if frame_end > end or command_end > frame_end or total > self._max_frame_bytes:
                break
            if not is_message(_MESSAGE, start) or data[start + 3] != command_size - _HEAD:
                break
            try:
                message = parse(data[start + _HEAD : command_end])
            except DecodeError:
                break  # `FrameDecoder._add_command` refuses it.
            if run is None or message.consumer_id != run_id:
                run_id = message.consumer_id
                run = MessageRun(run_id)
                events.append(run)
            run.messages.append(message)
            run.entries.append(data[command_end:frame_end])
            position = frame_end
        return position
