"""What a channel counts of a message that arrives in parts."""

import asyncio
import struct
from typing import Any

import pytest

from pybroker.gateway.websocket.channel import Channel, ChannelClosed, Limits
from pybroker.server.connections.frame_budget import FrameBudget

FIN, TEXT, CONTINUATION = 0x80, 0x1, 0x0
LIMIT = 100_000
HEADERS = [
    (b"host", b"localhost"),
    (b"upgrade", b"websocket"),
    (b"connection", b"Upgrade"),
    (b"sec-websocket-version", b"13"),
    (b"sec-websocket-key", b"AAAAAAAAAAAAAAAAAAAAAA=="),
]


class FakeTransport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.reads = True

    def write(self, data: Any) -> None:
        self.written += data

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None:
        pass

    def close(self) -> None:
        pass


def frame(head: int, payload: bytes) -> bytes:
    size = len(payload)
    if size < 126:
        length = bytes([0x80 | size])
    else:
        length = (
            (b"\xfe" + struct.pack("!H", size))
            if size < 2**16
            else (b"\xff" + struct.pack("!Q", size))
        )
    return bytes([head]) + length + bytes(4) + payload


def opened() -> tuple[Channel, FakeTransport, FrameBudget]:
    budget, transport = FrameBudget(10 * LIMIT), FakeTransport()
    limits = Limits(message_bytes=LIMIT, idle_s=60, ping_s=0)
    channel = Channel(HEADERS, b"/ws/v2/producer/persistent/public/default/t", limits, budget)
    channel.head()
    channel.connection_made(transport)
    return channel, transport, budget


def closed_with(channel: Channel, transport: FakeTransport) -> int:
    assert channel.closed
    return int.from_bytes(transport.written[2:4], "big")


def test_what_arrived_before_the_first_receive_counts_too() -> None:
    async def scenario() -> None:
        channel, transport, _ = opened()
        channel.begin(frame(TEXT, b"x" * 60_000))
        receiving = asyncio.ensure_future(channel.receive())
        await asyncio.sleep(0)
        channel.begin(frame(CONTINUATION, b"x" * 60_000))
        with pytest.raises(ChannelClosed):
            await receiving
        assert closed_with(channel, transport) == 1009
        channel.connection_lost(None)

    asyncio.run(scenario())


def test_nothing_of_the_next_message_is_taken_while_one_is_in_use() -> None:
    async def scenario() -> None:
        channel, _, budget = opened()
        channel.begin(frame(FIN | TEXT, b"first"))
        assert await channel.receive() == "first"
        channel.begin(frame(TEXT, b"x" * 90_000))
        channel.resume_writing()
        await asyncio.sleep(0)
        assert budget.taken_bytes == 0
        receiving = asyncio.ensure_future(channel.receive())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert budget.taken_bytes == LIMIT
        channel.begin(frame(FIN | CONTINUATION, b"y"))
        assert len(await receiving) == 90_001
        channel.connection_lost(None)
        assert budget.taken_bytes == 0

    asyncio.run(scenario())
