"""A proxy between the pipeline and the broker, which inspects each frame before it forwards it.

It forwards frame by frame, so that the run can stop exactly before a command or exactly before its
answer. It changes the answer to a lookup so that it names the proxy. When a victim is killed, all
connections end; frames that were already forwarded still reach the broker if it is alive.

It runs on its own event loop in a thread, where it calls `on_passing` and `on_event`.
"""

import asyncio
import contextlib
import struct
from collections.abc import Awaitable, Callable, Iterator
from typing import Final, Self
from urllib.parse import urlsplit

from google.protobuf.message import DecodeError

from pybroker.eos_check.connection_trace import ConnectionTrace, Event, Seen, after
from pybroker.eos_check.faults import Passing, Victim
from pybroker.testing.loop_thread import LoopThread
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.frames import FRAME_OVERHEAD_BYTES, encode_frame

OnPassing = Callable[[Passing], Victim | None]
OnEvent = Callable[[Event], None]
_SIZES: Final = struct.Struct(">II")
_TLS_HANDSHAKE: Final = b"\x16\x03"  # the first bytes of TLS; as a frame's size they are too large
_FRAME_AT_MOST: Final = 5 * 1024 * 1024 + FRAME_OVERHEAD_BYTES  # as maxMessageSize
# A command without an answer gets this long to reach the broker before the kill "after" it.
_UNANSWERED_S: Final = 0.05


class _Ended(Exception):
    """This connection has ended."""


class Proxy:
    """Accepts connections at `url` until it is closed."""

    def __init__(self, on_passing: OnPassing, on_event: OnEvent) -> None:
        self.url = ""
        self.saw_tls = False  # a client tried TLS, which the proxy does not support
        self._on_passing = on_passing
        self._on_event = on_event
        self._broker = "", 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._frozen = False
        self._age = 0  # connections of an earlier age have ended
        self._open = asyncio.Event()  # while it is not set, nothing is forwarded
        self._open.set()
        self._thread = LoopThread("eos-check proxy")
        self._server = self._thread.run(self._listen())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.run(self._close())
        self._thread.close()

    def forward_to(self, service_url: str) -> None:
        """From now on, accepts connections and forwards them to this address."""
        at = urlsplit(service_url)
        # On the loop, so that a crash in progress is over.
        self._thread.run(self._accept_for(at.hostname or "", at.port or 0))

    async def _accept_for(self, host: str, port: int) -> None:
        self._broker = host, port
        self._frozen = False

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Within the block nothing is forwarded, so no victim is killed."""
        self._thread.run(self._set_open(False))
        try:
            yield
        finally:
            self._thread.run(self._set_open(True))

    async def _set_open(self, is_open: bool) -> None:
        if is_open:
            self._open.set()
        else:
            self._open.clear()

    async def _listen(self) -> asyncio.Server:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"pulsar://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        return server

    async def _close(self) -> None:
        self._server.close()
        self._freeze()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _freeze(self) -> None:
        """Ends all connections, and accepts none. Frames already forwarded still arrive."""
        self._frozen = True
        self._age += 1
        for writer in list(self._writers):
            writer.close()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Creates the task here: before 3.11.9, Python reports the cancellation of a task that
        # asyncio's streams create from a coroutine function as a failed callback.
        task = asyncio.ensure_future(self._serve_one(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            await self._serve(reader, writer)
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._frozen or not self._broker[1]:
            return
        age = self._age
        try:
            to_read, to_write = await asyncio.open_connection(*self._broker)
        except OSError:
            return
        if self._age != age:
            to_write.close()
            return
        self._writers.add(to_write)
        trace = ConnectionTrace()
        try:
            pumps = [
                asyncio.ensure_future(self._pump(reader, to_write, trace, self._client_frame)),
                asyncio.ensure_future(self._pump(to_read, writer, trace, self._broker_frame)),
            ]
            _, pending = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for each in pending:
                each.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
        finally:
            self._writers.discard(to_write)
            to_write.close()

    async def _pump(
        self,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        trace: ConnectionTrace,
        pass_on: Callable[
            [pb.BaseCommand, bytes, asyncio.StreamWriter, ConnectionTrace], Awaitable[None]
        ],
    ) -> None:
        age = self._age
        with contextlib.suppress(_Ended, OSError, asyncio.IncompleteReadError):
            while True:
                frame = await self._read_frame(source)
                await self._open.wait()
                if self._age != age:
                    return
                await pass_on(_command(frame), frame, sink, trace)
                await sink.drain()

    async def _read_frame(self, source: asyncio.StreamReader) -> bytes:
        head = await source.readexactly(4)
        size = int.from_bytes(head, "big")
        if not 4 <= size <= _FRAME_AT_MOST:
            self.saw_tls |= head.startswith(_TLS_HANDSHAKE)
            raise _Ended  # the broker would also just close the connection
        return head + await source.readexactly(size)

    async def _client_frame(
        self,
        command: pb.BaseCommand,
        frame: bytes,
        sink: asyncio.StreamWriter,
        trace: ConnectionTrace,
    ) -> None:
        seen = trace.from_client(command)
        self._strike_if_due(seen.passing)
        self._show(seen)
        sink.write(frame)
        if not seen.is_answered and seen.event is not None:
            age = self._age
            await sink.drain()
            await asyncio.sleep(_UNANSWERED_S)
            await self._open.wait()
            if self._age != age:
                raise _Ended
            self._strike_if_due(after(seen.event))

    async def _broker_frame(
        self,
        command: pb.BaseCommand,
        frame: bytes,
        sink: asyncio.StreamWriter,
        trace: ConnectionTrace,
    ) -> None:
        if command.type == pb.BaseCommand.LOOKUP_RESPONSE and command.lookupTopicResponse.HasField(
            "brokerServiceUrl"
        ):
            command.lookupTopicResponse.brokerServiceUrl = self.url
            frame = encode_frame(command)
        seen = trace.from_broker(command)
        self._strike_if_due(seen.passing)
        self._show(seen)
        sink.write(frame)

    def _show(self, seen: Seen) -> None:
        if seen.event is not None:
            self._on_event(seen.event)

    def _strike_if_due(self, passing: Passing | None) -> None:
        if passing is None or self._on_passing(passing) is None:
            return
        self._freeze()
        raise _Ended


def _command(frame: bytes) -> pb.BaseCommand:
    size = _SIZES.unpack_from(frame)[1]
    try:
        return pb.BaseCommand.FromString(frame[8 : 8 + size])
    except DecodeError:
        raise _Ended from None
