"""What a pipeline calls beside the broker: services of the scenario, or a sentence why not."""

import asyncio
import os
import platform
import socket
import subprocess

import httpx
import pytest

from pybroker.simulation import run_seed


def doing(*works):
    def scenario(sim):
        for number, work in enumerate(works):
            sim.process(f"worker-{number}", work)
        sim.faults()

    return scenario


def broken(*works):
    return [str(violation) for violation in run_seed(doing(*works), 0).violations]


async def prices():
    """A small HTTP service."""

    async def answer(reader, writer):
        while (await reader.readline()).strip():
            pass  # the request's lines
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: close\r\n\r\n7")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 8080)
    await server.serve_forever()


def test_httpx_reaches_a_service_of_the_scenario():
    heard = []

    async def work():
        await asyncio.sleep(1)
        async with httpx.AsyncClient() as http:
            heard.append((await http.get("http://prices.example:8080/lamp")).text)

    assert broken(prices, work) == []
    assert heard == ["7"]


def test_a_socket_connected_by_the_loop_reaches_a_service_of_the_scenario():
    """As aiohttp connects."""
    heard = []

    async def work():
        await asyncio.sleep(1)
        loop = asyncio.get_running_loop()
        connection = socket.socket()
        await loop.sock_connect(connection, ("127.0.0.1", 8080))
        reader, writer = await asyncio.open_connection(sock=connection)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        heard.append(await reader.read())

    assert broken(prices, work) == []
    assert heard[0].endswith(b"\r\n\r\n7")


@pytest.mark.parametrize("how", ["asyncio", "httpx"])
def test_a_service_that_is_not_in_the_scenario_is_named(how):
    async def work():
        if how == "httpx":
            async with httpx.AsyncClient() as http:
                await http.get("http://prices.example:8080/lamp")
        await asyncio.open_connection("prices.example", 8080)

    (text,) = broken(work)
    assert text.startswith("PROCESS FAILS: worker-0 ended 5 times in a row with ")
    assert "nothing in the simulation listens on port 8080" in text
    assert text.endswith("make the service a process of the scenario")


def test_a_service_that_is_down_for_a_while_is_waited_for():
    heard = []

    async def late():
        await asyncio.sleep(30)
        await prices()

    async def work():
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", 8080)
            except OSError:
                await asyncio.sleep(1)
                continue
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            heard.append(await reader.read())
            return

    def scenario(sim):
        doing(late, work)(sim)

        @sim.check
        async def it_answered(logs):
            await asyncio.sleep(40)
            assert heard

    assert run_seed(scenario, 0).violations == ()


@pytest.mark.parametrize(
    "start",
    [
        lambda: subprocess.run(["true"], check=True),
        lambda: os.system("true"),
        lambda: os.posix_spawn("/bin/true", ["true"], {}),
        lambda: os.popen("true"),
        lambda: asyncio.to_thread(subprocess.check_call, ["true"]),
    ],
    ids=["run", "system", "posix_spawn", "popen", "in an executor"],
)
def test_a_program_is_refused_with_what_to_do(start):
    async def work():
        if asyncio.iscoroutine(started := start()):
            await started

    (text,) = broken(work)
    assert "a simulation starts no programs: call an async function in its place" in text


def test_python_may_ask_its_machine(monkeypatch):
    """It starts `uname` at the first question."""
    monkeypatch.setattr(platform, "_uname_cache", None, raising=False)
    asked = []

    async def work():
        asked.append(platform.uname().processor)

    assert broken(work) == []
    assert asked


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda loop: loop.add_reader(0, print), "has no add_reader(): a simulation has no real"),
        (lambda loop: loop.create_datagram_endpoint(None), "has no create_datagram_endpoint()"),
        (lambda loop: loop.run_forever(), "is awaited on a loop that runs already"),
        (lambda loop: loop.start_tls(None, None, None), "has no TLS"),
    ],
)
def test_what_the_loop_lacks_is_told_in_a_sentence(call, says):
    async def work():
        call(asyncio.get_running_loop())

    (text,) = broken(work)
    assert says in text


@pytest.mark.parametrize("call", ["connect", "connect_ex", "sendto"])
def test_a_real_socket_reaches_nobody(call):
    async def work():
        with socket.socket(type=socket.SOCK_DGRAM) as connection:
            arguments = (b"count:1|c",) if call == "sendto" else ()
            getattr(connection, call)(*arguments, ("127.0.0.1", 9))

    (text,) = broken(work)
    assert "a simulation has no real network" in text
