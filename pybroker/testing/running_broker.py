"""A broker on a thread of this process, which tests can stop, kill, restart and inspect.

Each start creates a new event loop and a new broker; ports and storage stay. `kill` leaves the
storage as a killed process would: with everything durable, without what a graceful stop writes.
"""

import asyncio
import itertools
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import urlsplit

from pybroker.base.configuration.config import PORTS, BrokerConfig
from pybroker.base.names import TopicName, pending_ack_log
from pybroker.broker.policies.policies import checked_namespace
from pybroker.faults.registry import Faults
from pybroker.faults.rule import Rule
from pybroker.process.app import Broker, embedded_backend, memory_backend, standalone
from pybroker.testing.clock import AdvancingLoop, VirtualClock
from pybroker.testing.loop_thread import LoopThread
from pybroker.testing.reserved_port import ReservedPort

T = TypeVar("T")

log = logging.getLogger(__name__)

_START_TIMEOUT_S: Final = 300.0
_END_TIMEOUT_S: Final = 60.0
_WEB: Final = ("web_service_port", "web_service_port_tls")


class RunningBroker:
    """The result of `pybroker.testing.broker()`. Clients connect to `service_url`."""

    def __init__(
        self, config: BrokerConfig, data_dir: Path | None, http: bool, faults: bool = True
    ) -> None:
        self.service_url = ""
        self.admin_url = ""
        self.service_url_tls = self.admin_url_tls = ""
        self.kafka_bootstrap = ""  # bootstrap.servers for Kafka's clients, with `kafka=True`
        self.clock = VirtualClock()
        self._namespaces = itertools.count(1)
        self._faults = Faults(self.clock) if faults else None
        # Called on any thread, with "has started", "was stopped" or "was killed".
        self.changed: tuple[Callable[[str], None], ...] = ()
        self._config = config
        self._data_dir = data_dir
        self._http = http
        self._reserved: list[ReservedPort] = []
        self._memory = memory_backend()
        self._changing = threading.RLock()  # a crash ends the broker on another thread
        self._is_over = False
        self._thread: LoopThread | None = None
        self._broker: Broker | None = None

    @property
    def faults(self) -> Faults:
        """The broker's fault points. Raises RuntimeError if it was created without them."""
        if self._faults is None:
            raise RuntimeError("This broker has no fault points: make it with broker(faults=True)")
        return self._faults

    # -- life

    def start(self) -> None:
        """Starts the broker. Later starts use the same addresses."""
        with self._changing:
            self._start()

    def _start(self) -> None:
        if not self._reserved:
            self._reserve_ports()
        self._thread = LoopThread("pybroker", partial(AdvancingLoop, self.clock))
        try:
            self._broker = self._thread.run(_within(_START_TIMEOUT_S, "start", self._serve()))
        except BaseException:
            self._thread.close()
            raise
        broker = self._broker
        self.clock.run = self._thread.run
        self.service_url, self.admin_url = broker.service_url, broker.admin_url
        self.service_url_tls, self.admin_url_tls = broker.service_url_tls, broker.admin_url_tls
        urls = {
            "broker_service_port": self.service_url,
            "web_service_port": self.admin_url,
            "broker_service_port_tls": self.service_url_tls,
            "web_service_port_tls": self.admin_url_tls,
            "kafka_service_port": broker.kafka_url,
            "kafka_service_port_tls": broker.kafka_url_tls,
        }
        self.kafka_bootstrap = urlsplit(broker.kafka_url or broker.kafka_url_tls).netloc
        ports = {name: urlsplit(url).port for name, url in urls.items() if url}
        self._config = replace(self._config, **ports)  # type: ignore[arg-type]
        self._tell("has started")

    def _tell(self, what: str) -> None:
        for told in self.changed:
            told(what)

    def _reserve_ports(self) -> None:
        """Reserves a free port for each port that is 0 in the configuration."""
        names = [name for name in PORTS if self._http or name not in _WEB]
        free = {name: ReservedPort() for name in names if getattr(self._config, name) == 0}
        self._reserved = list(free.values())
        numbers = {name: port.number for name, port in free.items()}
        self._config = replace(self._config, **numbers)  # type: ignore[arg-type]

    def stop(self) -> None:
        """Stops the broker gracefully. Steps that rules hold continue; the ports stay reserved.
        Idempotent.
        """
        if self._faults is not None:
            for rule in self._faults.rules:
                rule.release()
        self._end(Broker.stop, "was stopped")

    def release_ports(self) -> None:
        """Ends the broker for the last time; it cannot start again."""
        with self._changing:
            self._is_over = True  # prevents a restart after a crash
            self._end_once(Broker.stop)
        for port in self._reserved:
            port.release()

    def kill(self) -> None:
        """Stops the broker as if its process were killed. Idempotent."""
        self._end(Broker.abandon, "was killed")

    def restart(self) -> None:
        self.stop()
        self.start()

    def kill_and_restart(self) -> None:
        self.kill()
        self.start()

    def restart_after(self, crash: Rule) -> None:
        """Starts the broker again as soon as `crash` has struck. Returns at once: the caller then
        causes the crash.
        """
        crash.when_down = self._come_back
        if crash.hits:
            self._come_back()

    def _come_back(self) -> None:
        with self._changing:
            if self._broker is None and not self._is_over:
                self._start()

    async def _serve(self) -> Broker:
        backend = self._memory
        if self._data_dir is not None:
            backend = embedded_backend(self._config, self._data_dir, _disk_failed)
        if self._faults is not None:
            self._faults.attach(self._crash)
        return await standalone(self._config, backend, self._http, self.clock, faults=self._faults)

    def _crash(self, struck: Callable[[], None]) -> None:
        """Ends the broker after a crash rule has struck. Meanwhile nothing passes a fault point."""

        def crash() -> None:
            try:
                self.kill()
            finally:
                struck()

        threading.Thread(target=crash, name="pybroker crash", daemon=True).start()

    def _end(self, how: Callable[[Broker], Awaitable[None]], told: str) -> None:
        with self._changing:
            if self._broker is not None:
                self._end_once(how)
                self._tell(told)

    def _end_once(self, how: Callable[[Broker], Awaitable[None]]) -> None:
        if self._thread is None or self._broker is None:
            return
        self.clock.hold()
        thread, broker = self._thread, self._broker
        self._thread = self._broker = None

        try:
            thread.run(_within(_END_TIMEOUT_S, "end", how(broker)))
        finally:
            thread.close()
            if self._faults is not None:
                self._faults.detach()

    # -- inspection

    def call(self, work: Callable[[Broker], Awaitable[T]]) -> T:
        """Runs `work` on the broker's loop and returns its result."""
        if self._thread is None or self._broker is None:
            raise RuntimeError("The broker is not running; call start()")
        broker = self._broker

        async def run() -> T:
            return await work(broker)

        return self._thread.run(run())

    def new_namespace(self, like: str = "test") -> str:
        """Creates a namespace "public/{like}-{number}", with a name that was never used, and
        returns the name.
        """

        async def create(broker: Broker) -> str:
            tenants = broker.topics.tenants
            while tenants.has_namespace(name := f"public/{like}-{next(self._namespaces)}"):
                pass
            await tenants.create_namespace(name, checked_namespace({}, self._config.cluster_name))
            return name

        return self.call(create)

    def backlog(self, topic: str, subscription: str) -> int:
        """The number of unacknowledged entries, without markers and aborted messages."""

        async def look(broker: Broker) -> int:
            found = await broker.topics.get(topic)
            if found is None:
                return 0
            asked = found.subscriptions[subscription]
            await asked.replayed()
            return asked.backlog

        return self.call(look)

    def unacked_messages(self, topic: str, subscription: str) -> int:
        """Messages delivered but not acknowledged (Shared and Key_Shared)."""

        async def look(broker: Broker) -> int:
            found = await broker.topics.get(topic)
            return found.subscriptions[subscription].dispatch.unacked_messages if found else 0

        return self.call(look)

    def hidden_entries(self, topic: str) -> int:
        """The number of markers and aborted messages in the topic's log."""

        async def look(broker: Broker) -> int:
            found = await broker.topics.get(topic)
            if found is None:
                return 0
            before_all = found.ledger.first_position.before
            return found.hidden.count(before_all, found.ledger.last_confirmed)

        return self.call(look)

    def pending_ack_log_entries(self, topic: str, subscription: str) -> int:
        """The number of entries in the subscription's log of transactional acknowledgements."""
        log = pending_ack_log(TopicName.parse(topic), subscription)

        async def look(broker: Broker) -> int:
            if not broker.ledgers.exists(log):
                return 0
            ledger = await broker.ledgers.open(log)
            (cursor,) = ledger.cursors.values()
            return cursor.backlog(ledger.last_confirmed)

        return self.call(look)

    def trim(self, topic: str) -> None:
        """Deletes closed ledgers that are no longer needed, now instead of at the next check."""

        async def work(broker: Broker) -> None:
            found = await broker.topics.get(topic)
            if found is not None:
                await found.ledger.trim()

        self.call(work)

    def wait_until(self, condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
        """Returns when the condition holds. Raises TimeoutError."""
        deadline_s = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"The condition did not hold within {timeout_s:g} s")
            time.sleep(0.01)


async def _within(timeout_s: float, what: str, change: Awaitable[T]) -> T:
    """Raises TimeoutError with the tasks that have not finished."""
    done = asyncio.ensure_future(change)
    await asyncio.wait([done], timeout=timeout_s)
    if done.done():
        return done.result()
    runs = _what_runs()
    done.cancel()
    raise TimeoutError(f"The broker did not {what} within {timeout_s:g} s: {runs}")


def _what_runs() -> str:
    """What each task of this loop waits for, in one line."""
    waits = (f"{task.get_name()} in {task.get_coro()}" for task in asyncio.all_tasks())
    return "; ".join(sorted(waits))


def _disk_failed(error: Exception) -> None:
    log.critical("the disk failed to store data: %s", error)
