"""The simulated network delivers bytes in order, splits them, and breaks like TCP."""

import asyncio

import pytest

from pybroker.simulation.events import Weather
from pybroker.simulation.world import World


class EchoServer(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.transport.write(data)


class BufferedEchoServer(asyncio.BufferedProtocol):
    def connection_made(self, transport):
        self.transport = transport
        self.buffer = bytearray(7)

    def get_buffer(self, sizehint):
        return self.buffer

    def buffer_updated(self, nbytes):
        self.transport.write(self.buffer[:nbytes])


class Collector(asyncio.Protocol):
    def __init__(self):
        self.received = bytearray()
        self.pieces = 0
        self.made = False
        self.lost = asyncio.get_running_loop().create_future()
        self.paused = 0

    def connection_made(self, transport):
        self.made = True

    def data_received(self, data):
        self.received += data
        self.pieces += 1

    def connection_lost(self, error):
        self.lost.set_result(error)

    def pause_writing(self):
        self.paused += 1

    def resume_writing(self):
        self.paused -= 1


async def listen(factory=EchoServer):
    loop = asyncio.get_running_loop()
    server = await loop.create_server(factory, "127.0.0.1", 0)
    return server.sockets[0].getsockname()[1]


async def connect(port):
    loop = asyncio.get_running_loop()
    transport, collector = await loop.create_connection(Collector, "127.0.0.1", port)
    assert collector.made
    return transport, collector


@pytest.mark.parametrize("factory", [EchoServer, BufferedEchoServer])
def test_bytes_come_back_in_order_however_they_are_split(factory):
    sent = bytes(range(256)) * 20

    async def talk(port):
        transport, collector = await connect(port)
        for start in range(0, len(sent), 100):
            transport.write(sent[start : start + 100])
            await asyncio.sleep(0.0001)
        while len(collector.received) < len(sent):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        return bytes(collector.received), collector.pieces

    pieces = set()
    for seed in range(20):
        world = World(seed)
        port = world.call(world.node("server"), listen(factory))
        received, count = world.call(world.node("client"), talk(port))
        assert received == sent
        pieces.add(count)
        world.close()
    assert len(pieces) > 5


def test_streams_run_over_the_simulated_network():
    async def talk(port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"hello\n")
        line = await reader.readline()
        writer.close()
        await writer.wait_closed()
        return line

    world = World(3)
    port = world.call(world.node("server"), listen())
    assert world.call(world.node("client"), talk(port)) == b"hello\n"
    world.close()


def test_nobody_listening_refuses_the_connection():
    world = World(1)
    with pytest.raises(ConnectionRefusedError):
        world.call(world.node("client"), connect(1234))
    world.close()


def test_a_crash_resets_the_peer_s_connection():
    async def outlive(port):
        _, collector = await connect(port)
        world.after(1, server.crash)
        return await collector.lost

    world = World(1)
    server = world.node("server")
    port = world.call(server, listen())
    assert isinstance(world.call(world.node("client"), outlive(port)), ConnectionResetError)
    world.close()


def test_a_close_delivers_what_was_written_before():
    async def say_and_close(port):
        transport, _ = await connect(port)
        transport.write(b"last words")
        transport.close()

    async def listen_for(received):
        class Listener(Collector):
            def connection_lost(self, error):
                received.append((bytes(self.received), error))

        return await listen(Listener)

    world, received = World(1), []
    port = world.call(world.node("server"), listen_for(received))
    world.call(world.node("client"), say_and_close(port))
    world.sleep(10)
    assert received == [(b"last words", None)]
    world.close()


def test_a_reader_that_pauses_makes_the_writer_pause():
    async def write(port):
        transport, collector = await connect(port)
        transport.set_write_buffer_limits(high=100)
        transport.write(bytes(1000))
        assert collector.paused == 1
        accepted = transport.peer
        accepted.pause_reading()
        await asyncio.sleep(10)
        assert collector.paused == 1
        accepted.resume_reading()
        await asyncio.sleep(10)
        assert collector.paused == 0

    world = World(1)
    port = world.call(world.node("server"), listen())
    world.call(world.node("client"), write(port))
    world.close()


def test_a_half_open_connection_is_reported_to_neither_end():
    async def write(port):
        transport, collector = await connect(port)
        world.network.connections[0].go_silent()
        transport.write(b"hello")
        await asyncio.sleep(300)
        return collector.received, collector.lost.done()

    world = World(1, Weather())
    port = world.call(world.node("server"), listen())
    assert world.call(world.node("client"), write(port)) == (b"", False)
    world.close()


@pytest.mark.parametrize("who_dies", ["server", "client"])
def test_a_half_open_connection_whose_other_end_dies_is_known_until_it_is_closed(who_dies):
    async def close(transport):
        transport.close()
        await asyncio.sleep(1)

    world = World(1)
    server, client = world.node("server"), world.node("client")
    port = world.call(server, listen())
    transport, _ = world.call(client, connect(port))
    transport.go_silent()
    assert world.network.half_open == []
    (server if who_dies == "server" else client).crash()
    living = client if who_dies == "server" else server
    (end,) = world.network.half_open
    assert end.node is living and world.network.connections == []
    if who_dies == "server":
        world.call(client, close(end))
    else:
        server.crash()
    assert world.network.half_open == []
    world.close()


def test_processes_that_are_cut_off_do_not_reach_one_another_for_a_while():
    async def write_and_call(port):
        transport, collector = await connect(port)
        world.network.cut_off(client, server, 5.0)
        transport.write(b"hello")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(4.0):
                await connect(port)
        await asyncio.sleep(2.0)
        await connect(port)
        return collector.received, collector.lost.done()

    world = World(1, Weather())
    client, server = world.node("client"), world.node("server")
    port = world.call(server, listen())
    assert world.call(client, write_and_call(port)) == (b"", False)
    world.close()
