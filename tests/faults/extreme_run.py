"""`make extremes`: a broker process, and all extreme values that the protocol can carry.

A bystander publishes and receives all the time. Prints what blocked the broker's loop the longest,
by the broker's own measure, and asserts that nothing blocked it for 50 ms. This needs a quiet
machine.
"""

import argparse
import http.client
import random
import re
import socket
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import extreme_pages
import extreme_values as extremes
from peer import CONNECT, frame
from raw_client import RawClient

from pybroker.testing.broker_process import BrokerProcess
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.commands import PING

T = TypeVar("T")
SEED = 1
LONGEST_STALL_S = 0.05
NOTABLE_S = 0.015
GROUP = 50
# On a busy machine more work is in flight. The heap keeps its peak: messages that take megabytes
# once they are decompressed, in each of the threads that decompress.
MEMORY_MIB = 40
Work = Callable[[], object]
_T = pb.BaseCommand
_PONG = re.compile(rb"\x08\x13\x9a\x01\x00")
_LAG = re.compile(r"pybroker_loop_lag_seconds_max\{[^}]*\} (\S+)")


class Bystander:
    """Publishes and receives continuously, on its own connection."""

    def __init__(self, service_url: str) -> None:
        self._client = RawClient(service_url, answer_timeout_s=30)
        self._client.create_producer("bystander")
        self._client.subscribe("bystander")
        self._client.flow(2**30)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.served = 0
        self.error: Exception | None = None
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stopped.wait(0.001):
                self._client.publish(b"x", self.served)
                self._client.receive(_T.MESSAGE)
                self.served += 1
        except Exception as error:  # reported on the main thread
            self.error = error

    def stop(self) -> int:
        """Stop; returns the number of messages published and received."""
        self._stopped.set()
        self._thread.join()
        self._client.close()
        if self.error is not None:
            raise self.error
        return self.served


class Attacker:
    """A connection with a producer and a consumer; reconnects when the broker closes it."""

    def __init__(self, service_url: str) -> None:
        host, _, port = service_url.removeprefix("pulsar://").rpartition(":")
        self._address = host, int(port)
        self._socket: socket.socket | None = None

    def send(self, command: bytes) -> None:
        """Send a command; returns when the broker has handled it or closed the connection."""
        connection = self._socket or self._connect()
        try:
            connection.sendall(frame(command) + PING)
            if self._heard_pong(connection):
                return
        except OSError:
            pass
        self.close()

    def _connect(self) -> socket.socket:
        self._socket = socket.create_connection(self._address, timeout=30)
        producer = pb.CommandProducer(topic=extremes.TOPIC, producer_id=1, request_id=1)
        subscribe = pb.CommandSubscribe(
            topic=extremes.TOPIC,
            subscription=extremes.SUBSCRIPTION,
            subType=pb.CommandSubscribe.Shared,
            consumer_id=1,
            request_id=2,
        )
        first = _T(type=_T.PRODUCER, producer=producer).SerializeToString()
        second = _T(type=_T.SUBSCRIBE, subscribe=subscribe).SerializeToString()
        self._socket.sendall(CONNECT + frame(first) + frame(second) + PING)
        assert self._heard_pong(self._socket)
        return self._socket

    def _heard_pong(self, connection: socket.socket) -> bool:
        tail = b""
        while data := connection.recv(1 << 20):
            if _PONG.search(tail + data):
                return True
            tail = data[-8:]
        return False

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class Asker:
    """An HTTP connection; reconnects when the broker closes it."""

    def __init__(self, admin_url: str) -> None:
        self._address = urlsplit(admin_url).netloc
        self._connection = http.client.HTTPConnection(self._address, timeout=30)

    def ask(self, request: extremes.Request) -> int:
        """The status of the answer; 0 if the broker closed the connection without one."""
        try:
            self._connection.request(request.method, request.path, request.body)
            answer = self._connection.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException):
            self._connection.close()
            return 0
        return answer.status


def memory_mib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) // 1024


class Run:
    """Sends extreme values to one broker; if `measured`, records the loop's worst lag for each."""

    def __init__(self, broker: BrokerProcess, measured: bool, every: int = 1) -> None:
        self._broker = broker
        self._measured = measured
        self._every = every
        self.lags: list[tuple[float, str]] = []

    def commands(self) -> None:
        attacker = Attacker(self._broker.service_url)
        cases = _shuffled(extremes.cases())[:: self._every]
        self._measure([(case.name, partial(attacker.send, case.data)) for case in cases])
        attacker.close()

    def requests(self) -> list[str]:
        """Send all requests; returns those answered with an internal error."""
        self._prepare(Asker(self._broker.admin_url))
        return self._ask_all(extremes.requests())

    def pages(self) -> list[str]:
        """Like `requests`, for the console."""
        self._prepare(Asker(self._broker.admin_url))
        with RawClient(self._broker.service_url, answer_timeout_s=30) as client:
            extreme_pages.publish(client)
        return self._ask_all(extreme_pages.requests())

    def _ask_all(self, requests: Iterator[extremes.Request]) -> list[str]:
        asker, failed = Asker(self._broker.admin_url), list[str]()

        def ask(name: str, request: extremes.Request) -> None:
            if asker.ask(request) == 500:
                failed.append(name)

        works: list[tuple[str, Work]] = []
        for request in _shuffled(requests)[:: self._every]:
            name = f"{request.method} {request.path[:100]} {request.body[:60]!r}"
            works.append((name, partial(ask, name, request)))
        self._measure(works)
        return failed

    def _prepare(self, asker: Asker) -> None:
        asker.ask(extremes.Request("PUT", "/admin/v2/namespaces/public/extremes", b""))

    def _measure(self, works: Sequence[tuple[str, Work]]) -> None:
        """Run the work in groups; if a group blocks the loop, measure each member alone."""
        for start in range(0, len(works), GROUP):
            group = works[start : start + GROUP]
            if self._lag_of([work for _, work in group]) > NOTABLE_S:
                self.lags += [(self._lag_of([work]), name) for name, work in group]

    def _lag_of(self, works: Sequence[Work]) -> float:
        if self._measured:
            self.lag_s()
        for work in works:
            work()
        if not self._measured:
            return 0.0
        time.sleep(0.03)  # so that the monitor measures
        return self.lag_s()

    def lag_s(self) -> float:
        """The loop's worst lag since the last call, as the broker measures it."""
        with urllib.request.urlopen(self._broker.admin_url + "/metrics") as answer:
            found = _LAG.search(answer.read().decode())
        assert found is not None
        return float(found[1])


def _shuffled(items: Iterator[T]) -> list[T]:
    found = list(items)
    random.Random(SEED).shuffle(found)
    return found


def attack(measured: bool, every: int = 1) -> tuple[list[str], Run]:
    """The failures, and the run. Of the values, each `every`-th is tried."""
    with tempfile.TemporaryDirectory() as folder, open(f"{folder}/log", "wb") as log:
        with BrokerProcess(Path(folder, "data"), log=log) as broker:
            run, faults = Run(broker, measured, every), []
            run._prepare(Asker(broker.admin_url))
            bystander = Bystander(broker.service_url)
            Asker(broker.admin_url).ask(extremes.Request("GET", "/console", b""))  # imports it
            before = memory_mib(broker.pid)
            run.commands()
            faults += [f"answered with 500: {name}" for name in run.pages() + run.requests()]
            grown = memory_mib(broker.pid) - before
            served = bystander.stop()
            print(f"seed {SEED}: {served} messages of the bystander, memory {before} + {grown} MiB")
            if grown > MEMORY_MIB * (1 if measured else 2):
                faults.append(f"the memory grew by {grown} MiB")
        text = Path(folder, "log").read_text()
        if "Traceback" in text:
            faults.append(text[max(0, text.index("Traceback") - 300) :][:3000])
    return faults, run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--longest-stall-ms", type=float, default=LONGEST_STALL_S * 1000)
    parser.add_argument("--every", type=int, default=1, help="try each N-th value only (1: all)")
    options = parser.parse_args()
    limit_s = options.longest_stall_ms / 1000
    faults, run = attack(measured=True, every=options.every)
    run.lags.sort(reverse=True)
    for lag_s, name in run.lags[:20]:
        print(f"{lag_s * 1000:7.1f} ms  {name}")
    faults += [f"{lag_s:.3f} s: {name}" for lag_s, name in run.lags if lag_s > limit_s]
    for fault in faults:
        print("FAULT:", fault)
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
