"""TCP between nodes, in memory. It guarantees only the order of bytes within a connection.

Each write arrives after its own latency. Data that has arrived is delivered in pieces of random
size, so that frames are split and joined anywhere. Addresses are port numbers; hosts are ignored. A
connection ends by close (written data still arrives), by abort or reset (data on its way is lost),
or goes silent: nothing arrives any more, and nobody is told.
"""

import asyncio
import contextvars
import errno
import itertools
import random
import socket
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

from pybroker.simulation.events import Events

_LARGEST_READ: Final = 256 * 1024  # the largest read of asyncio's selector transports
_EOF: Final = b""


class Host(Protocol):
    """What the network needs of a process's loop (`Node`)."""

    name: str
    dead: bool

    def create_future(self) -> Any: ...
    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> object: ...
    def call_exception_handler(self, context: dict[str, Any]) -> None: ...


class NobodyListens(ConnectionRefusedError):
    """No process of the simulation has ever listened on this port."""

    def __init__(self, port: int) -> None:
        super().__init__(
            errno.ECONNREFUSED,
            f"nothing in the simulation listens on port {port}: there is no real network, so make "
            "the service a process of the scenario",
        )


class SimulatedSocket:
    """The part of a socket that servers and transports use."""

    family = socket.AF_INET
    type = socket.SOCK_STREAM
    proto = 6

    def __init__(self, address: tuple[str, int], peer: tuple[str, int] | None = None) -> None:
        self._address = address
        self._peer = peer

    def getsockname(self) -> tuple[str, int]:
        return self._address

    def getpeername(self) -> tuple[str, int] | None:
        return self._peer

    def setsockopt(self, *option: Any) -> None:
        """Has no effect."""

    def fileno(self) -> int:
        return -1


class Network:
    """All listeners and connections of a world."""

    def __init__(self, world: Events) -> None:
        self.world = world
        self.rng: random.Random = world.stream("network")
        self.stalled_until = 0.0  # virtual seconds
        self.callers: set[tuple[str, int]] = set()  # attempts to connect, as process and port
        self._servers: dict[int, Server] = {}
        self._connections: dict[Transport, None] = {}  # the clients' ends
        self._half_open: dict[Transport, None] = {}
        self._ports = itertools.count(40_000)
        self._cuts: set[frozenset[Host]] = set()

    @property
    def connections(self) -> list["Transport"]:
        """The clients' ends of the connections that are up."""
        return list(self._connections)

    @property
    def half_open(self) -> list["Transport"]:
        """Ends that do not learn that the other end is gone: nothing arrives there any more."""
        return list(self._half_open)

    def listen(self, node: Host, factory: Any, port: int) -> "Server":
        port = port or next(self._ports)
        current = self._servers.get(port)
        if current is not None and current.is_serving():
            raise OSError(errno.EADDRINUSE, f"port {port} is in use")
        server = self._servers[port] = Server(node, factory, port)
        return server

    async def connect(self, node: Host, factory: Any, port: int) -> tuple["Transport", Any]:
        server = await self.reach(node, port)
        here, there = ("127.0.0.1", next(self._ports)), ("127.0.0.1", port)
        client = Transport(self, node, here, there)
        accepted = Transport(self, server.node, there, here)
        client.peer, accepted.peer = accepted, client
        self._connections[client] = None
        server.node.call_soon(accepted.accept, server, context=server.context)
        protocol = factory()
        client.start(protocol)
        await asyncio.sleep(0)  # `connection_made` runs before this returns
        return client, protocol

    async def reach(self, node: Host, port: int) -> "Server":
        """The listener on this port, after a handshake. Raises ConnectionRefusedError."""
        self.callers.add((node.name, port))
        await self._travel(node)
        server = self._servers.get(port)
        if server is None:
            raise NobodyListens(port)
        if not server.is_serving():
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"nothing listens on port {port}")
        if frozenset((node, server.node)) in self._cuts:
            await node.create_future()  # no answer comes
        return server

    def cut_off(self, one: Host, other: Host, for_s: float) -> None:
        """Blocks all traffic between two processes for a while. Existing connections go silent for
        good.
        """
        pair = frozenset((one, other))
        self._cuts.add(pair)
        self.world.after(for_s, self._cuts.discard, pair)
        for client in self.connections:
            if frozenset((client.node, client.peer.node)) == pair:
                client.go_silent()

    @property
    def is_cut(self) -> bool:
        """Whether any two processes are cut off from each other now."""
        return bool(self._cuts)

    async def _travel(self, node: Host) -> None:
        there_and_back = node.create_future()
        self.world.after(self.latency() + self.latency(), node.call_soon, _arrive, there_and_back)
        await there_and_back

    def latency(self) -> float:
        weather = self.world.weather
        seconds = weather.latency_s * (0.2 + self.rng.random())
        if weather.latency_spike_chance and self.rng.random() < weather.latency_spike_chance:
            seconds += weather.latency_spike_s * self.rng.random()
        stalled_s = self.stalled_until - self.world.now
        return seconds + stalled_s if stalled_s > 0.0 else seconds

    def leave_half_open(self, transport: "Transport") -> None:
        self._half_open[transport] = None

    def forget(self, transport: "Transport") -> None:
        self._half_open.pop(transport, None)
        self._connections.pop(transport, None)
        self._connections.pop(transport.peer, None)

    def node_died(self, node: Host, silently: bool) -> None:
        for server in self._servers.values():
            if server.node is node:
                server.close()
        for client in self.connections:
            for end in (client, client.peer):
                if end.node is node:
                    end.vanish(silently)
        self._half_open = {each: None for each in self._half_open if each.node is not node}


def _arrive(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Server(asyncio.AbstractServer):
    """A listener. Its protocols run in the context in which it was created, as in asyncio."""

    def __init__(self, node: Host, factory: Any, port: int) -> None:
        self.node = node
        self.factory = factory
        self.context = contextvars.copy_context()
        self.port = port
        self._serving = True

    @property
    def sockets(self) -> tuple[SimulatedSocket, ...]:
        return (SimulatedSocket(("127.0.0.1", self.port)),) if self._serving else ()

    def get_loop(self) -> Any:
        return self.node

    def is_serving(self) -> bool:
        return self._serving and not self.node.dead

    async def start_serving(self) -> None:
        """No effect: it serves from its creation."""

    async def serve_forever(self) -> None:
        await self.node.create_future()

    def close(self) -> None:
        self._serving = False

    async def wait_closed(self) -> None:
        await asyncio.sleep(0)


class Transport(asyncio.Transport):
    """One end of a connection. Writes go to `peer`, which delivers them to its protocol later."""

    peer: "Transport"

    def __init__(
        self, network: Network, node: Host, here: tuple[str, int], there: tuple[str, int]
    ) -> None:
        super().__init__()
        self.node = node
        self._network = network
        self._world = network.world
        self._extra_info = {
            "sockname": here,
            "peername": there,
            "socket": SimulatedSocket(here, there),
        }
        self._context = contextvars.copy_context()
        self._protocol: Any = None
        self._arrivals: deque[tuple[float, bytes]] = deque()
        self._last_arrival = 0.0
        self._expecting = False  # a delivery is scheduled
        self._silent = False
        self._reading_paused = False
        self._closing = False
        self._lost = False
        self._unread_bytes = 0  # written here, not yet read at the other end
        self._writing_paused = False
        self.set_write_buffer_limits()

    def __repr__(self) -> str:
        return f"<Transport of {self.node.name} to {self.peer.node.name}>"

    # --- opening and closing

    def start(self, protocol: Any) -> None:
        self._protocol = protocol
        self._run_soon(protocol.connection_made, self)

    def accept(self, server: Server) -> None:
        if not server.is_serving() or self._lost:
            self.abort()
            return
        self._context = server.context.copy()
        self._protocol = server.factory()
        self._protocol.connection_made(self)

    def close(self) -> None:
        """Stops reading. Written data still arrives, then the peer reads the end."""
        if self._closing:
            return
        self._closing = True
        self._send(_EOF)
        self._run_soon(self._lose, None)

    def abort(self) -> None:
        self.break_off(None)
        self._closing = True

    def break_off(self, error: Exception | None) -> None:
        """Resets the connection: this end loses it now, the other end after a latency."""
        self._run_soon(self._lose, error)
        if not self._silent:
            self._world.after(self._network.latency(), self.peer.reset)

    def reset(self) -> None:
        if not self._silent:
            self._run_soon(self._lose, ConnectionResetError(errno.ECONNRESET, "reset by peer"))

    def vanish(self, silently: bool) -> None:
        """Called when the node of this end has died."""
        self._lost = self._closing = True
        self._network.forget(self)
        if silently:
            self.go_silent()
        else:
            self._world.after(self._network.latency(), self.peer.reset)
        if self._silent and not self.peer._lost:
            self._network.leave_half_open(self.peer)

    @property
    def is_silent(self) -> bool:
        return self._silent

    def go_silent(self) -> None:
        """Makes the connection half-open: from now on nothing arrives at either end."""
        self._silent = self.peer._silent = True

    def _lose(self, error: Exception | None) -> None:
        if self._lost:
            return
        self._lost = self._closing = True
        self._arrivals.clear()
        self._network.forget(self)
        if self._protocol is not None:
            self._protocol.connection_lost(error)

    def _run_soon(self, callback: Any, *args: Any) -> None:
        self.node.call_soon(callback, *args, context=self._context)

    def is_closing(self) -> bool:
        return self._closing

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._extra_info.get(name, default)

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def get_protocol(self) -> Any:
        return self._protocol

    # --- writing

    def write(self, data: Any) -> None:
        if self._closing or not data:
            return
        self._send(bytes(data))
        if self.get_write_buffer_size() > self._high_bytes and not self._writing_paused:
            self._writing_paused = True
            self._protocol.pause_writing()

    def writelines(self, parts: Iterable[Any]) -> None:
        self.write(b"".join(parts))

    def _send(self, data: bytes) -> None:
        self._unread_bytes += len(data)
        peer = self.peer
        if self._silent or peer._lost:
            return
        arrival = self._world.now + self._network.latency()
        if arrival > peer._last_arrival:
            peer._last_arrival = arrival
        peer._arrivals.append((peer._last_arrival, data))
        if not peer._expecting:
            peer._expect()

    def can_write_eof(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return self._unread_bytes

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low_bytes, self._high_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = 64 * 1024 if low is None else 4 * low
        self._high_bytes = min(high, self._world.weather.write_limit_bytes)
        self._low_bytes = min(high // 4 if low is None else low, self._high_bytes // 4)

    def _was_read(self, size: int) -> None:
        self._unread_bytes -= size
        if self._writing_paused and self._unread_bytes <= self._low_bytes:
            self._run_soon(self._resume_writing)

    def _resume_writing(self) -> None:
        if self._writing_paused and not self._lost and self._unread_bytes <= self._low_bytes:
            self._writing_paused = False
            self._protocol.resume_writing()

    # --- reading

    def is_reading(self) -> bool:
        return not self._reading_paused and not self._closing

    def pause_reading(self) -> None:
        self._reading_paused = True

    def resume_reading(self) -> None:
        self._reading_paused = False
        self._expect()

    def _expect(self) -> None:
        if self._arrivals and not self._expecting and not self._reading_paused:
            self._expecting = True
            self._world.at(self._arrivals[0][0], self._run_soon, self._deliver)

    def _deliver(self) -> None:
        self._expecting = False
        if self._closing or self._reading_paused or self._silent or not self._arrivals:
            return
        data = self._take_arrived()
        if data == _EOF:
            self._end_of_stream()
            return
        try:
            self._hand_over(data)
        except Exception as error:
            self.node.call_exception_handler(
                {"message": "a protocol failed to take its data", "exception": error}
            )
            self.abort()
        self._expect()

    def _take_arrived(self) -> bytes:
        """All data that has arrived, or a random first part of it; `_EOF` at the end."""
        arrivals, now = self._arrivals, self._world.now
        pieces: list[bytes] = []
        while arrivals and arrivals[0][0] <= now:
            if pieces and arrivals[0][1] == _EOF:
                break
            pieces.append(arrivals.popleft()[1])
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if self._network.rng.random() < self._world.weather.split_chance:
            return self._keep_back(data, self._network.rng.randint(1, max(1, len(data))))
        return self._keep_back(data, _LARGEST_READ) if len(data) > _LARGEST_READ else data

    def _keep_back(self, data: bytes, size: int) -> bytes:
        if len(data) > size:
            self._arrivals.appendleft((self._world.now, data[size:]))
        return data[:size]

    def _hand_over(self, data: bytes) -> None:
        protocol = self._protocol
        if isinstance(protocol, asyncio.BufferedProtocol):
            buffer = memoryview(protocol.get_buffer(len(data)))
            data = self._keep_back(data, len(buffer))
            buffer[: len(data)] = data
            self.peer._was_read(len(data))
            protocol.buffer_updated(len(data))
        else:
            self.peer._was_read(len(data))
            protocol.data_received(data)

    def _end_of_stream(self) -> None:
        if not self._protocol.eof_received():
            self._closing = True
            self._lose(None)
