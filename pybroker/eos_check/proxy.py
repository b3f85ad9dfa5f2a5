"""A proxy between the pipeline and the broker, which inspects each frame before it forwards it.

It forwards frame by frame, so that the run can stop exactly before a command or exactly before its
answer. It changes answers that name a broker so that they name the proxy. Kafka's clients have a
port of their own. When a victim is killed, all connections end; frames that were already forwarded
still reach the broker if it is alive.

It runs on its own event loop in a thread, where it calls `on_passing` and `on_event`.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Final, Self
from urllib.parse import urlsplit

from pybroker.eos_check.connection_trace import Event, Seen, after
from pybroker.eos_check.faults import Passing, Victim
from pybroker.eos_check.pulsar_wire import PulsarWire
from pybroker.eos_check.wire import Unreadable, Wire
from pybroker.testing.loop_thread import LoopThread

OnPassing = Callable[[Passing], Victim | None]
OnEvent = Callable[[Event], None]
_Place = tuple[str, int]
_NOWHERE: Final[_Place] = ("", 0)
_HOST: Final = "127.0.0.1"
_TLS_HANDSHAKE: Final = b"\x16\x03"  # the first bytes of TLS; as a frame's size they are too large
# A command without an answer gets this long to reach the broker before the kill "after" it.
_UNANSWERED_S: Final = 0.05


class _Ended(Exception):
    """This connection has ended."""


class Proxy:
    """Accepts connections at `url` until it is closed; with `kafka`, those of Kafka's clients at
    `kafka_bootstrap`, too.
    """

    def __init__(self, on_passing: OnPassing, on_event: OnEvent, kafka: bool = False) -> None:
        self.url = self.kafka_bootstrap = ""
        self.saw_tls = False  # a client tried TLS, which the proxy does not support
        self._on_passing = on_passing
        self._on_event = on_event
        self._broker, self._for_kafka = _NOWHERE, _NOWHERE
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._frozen = False
        self._age = 0  # connections of an earlier age have ended
        self._open = asyncio.Event()  # while it is not set, nothing is forwarded
        self._open.set()
        self._thread = LoopThread("eos-check proxy")
        self._servers = [self._thread.run(self._listen())]
        if kafka:
            self._servers.append(self._thread.run(self._listen_for_kafka()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.run(self._close())
        self._thread.close()

    def forward_to(self, service_url: str, kafka_bootstrap: str = "") -> None:
        """From now on, accepts connections and forwards them to these addresses."""
        places = (_place(service_url), _place(f"//{kafka_bootstrap}"))
        # On the loop, so that a crash in progress is over.
        self._thread.run(self._accept_for(*places))

    async def _accept_for(self, broker: _Place, for_kafka: _Place) -> None:
        self._broker, self._for_kafka = broker, for_kafka
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
        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._accept(reader, writer, PulsarWire(self.url), self._broker)

        server = await asyncio.start_server(accept, _HOST, 0)
        self.url = f"pulsar://{_HOST}:{server.sockets[0].getsockname()[1]}"
        return server

    async def _listen_for_kafka(self) -> asyncio.Server:
        from pybroker.eos_check.kafka_wire import KafkaWire

        topics: dict[bytes, str] = {}

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._accept(reader, writer, KafkaWire(_HOST, port, topics), self._for_kafka)

        server = await asyncio.start_server(accept, _HOST, 0)
        port: int = server.sockets[0].getsockname()[1]
        self.kafka_bootstrap = f"{_HOST}:{port}"
        return server

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
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

    def _accept(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        wire: Wire,
        broker: _Place,
    ) -> None:
        # Creates the task here: before 3.11.9, Python reports the cancellation of a task that
        # asyncio's streams create from a coroutine function as a failed callback.
        task = asyncio.ensure_future(self._serve_one(reader, writer, wire, broker))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve_one(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        wire: Wire,
        broker: _Place,
    ) -> None:
        self._writers.add(writer)
        try:
            await self._serve(reader, writer, wire, broker)
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _serve(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        wire: Wire,
        broker: _Place,
    ) -> None:
        if self._frozen or broker == _NOWHERE:
            return
        age = self._age
        try:
            to_read, to_write = await asyncio.open_connection(*broker)
        except OSError:
            return
        if self._age != age:
            to_write.close()
            return
        self._writers.add(to_write)
        try:
            pumps = [
                asyncio.ensure_future(self._pump(reader, to_write, wire, self._client_frame)),
                asyncio.ensure_future(self._pump(to_read, writer, wire, self._broker_frame)),
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
        wire: Wire,
        pass_on: Callable[[bytes, asyncio.StreamWriter, Wire], Awaitable[None]],
    ) -> None:
        age = self._age
        with contextlib.suppress(_Ended, Unreadable, OSError, asyncio.IncompleteReadError):
            while True:
                frame = await self._read_frame(source, wire)
                await self._open.wait()
                if self._age != age:
                    return
                await pass_on(frame, sink, wire)
                await sink.drain()

    async def _read_frame(self, source: asyncio.StreamReader, wire: Wire) -> bytes:
        head = await source.readexactly(4)
        size = int.from_bytes(head, "big")
        if not wire.frame_at_least <= size <= wire.frame_at_most:
            self.saw_tls |= head.startswith(_TLS_HANDSHAKE)
            raise _Ended  # the broker would also just close the connection
        return head + await source.readexactly(size)

    async def _client_frame(self, frame: bytes, sink: asyncio.StreamWriter, wire: Wire) -> None:
        seen = wire.from_client(frame)
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

    async def _broker_frame(self, frame: bytes, sink: asyncio.StreamWriter, wire: Wire) -> None:
        seen, frame = wire.from_broker(frame)
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


def _place(url: str) -> _Place:
    at = urlsplit(url)
    return at.hostname or "", at.port or 0
