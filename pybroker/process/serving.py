"""Runs a broker until it is told to stop.

A failed start prints one line on stderr; a successful start prints the URLs in one line on stdout.
"""

import argparse
import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn

from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.version import version
from pybroker.logs.control import LogControl
from pybroker.logs.levels import Levels
from pybroker.logs.line_writer import LineWriter
from pybroker.logs.lines import TEXT
from pybroker.logs.output import drain_log, log_as, log_to
from pybroker.process.configuration import configuration
from pybroker.process.paced_loop import paced_loop
from pybroker.process.reloading import reload_on_hangup

if TYPE_CHECKING:
    from pybroker.faults.registry import Faults
    from pybroker.process.app import Broker
    from pybroker.testing.clock import VirtualClock

EXIT_CANNOT_START: Final = 1
EXIT_DISK_FAILED: Final = 70
EXIT_SESSION_LOST: Final = 71
EXIT_SECOND_SIGNAL: Final = 130
# Thresholds: a number of objects, then numbers of collections of the previous generation. The first
# is large enough that the objects of dozens of open transactions come and go without a collection.
# A collection of generation 1 visits about 6,000 objects; with 20,000 it paused everything for up
# to 30 ms on a busy machine.
GARBAGE_THRESHOLDS: Final = (3_000, 1, 9_000)

log = logging.getLogger("pybroker")

# Runs a broker until it is told to stop, and returns the process's exit code.
Running = Callable[[BrokerConfig, argparse.Namespace, LogControl], int]


def run(options: argparse.Namespace, running: Running) -> int:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there is something to reload
    output = log_to(LineWriter(sys.stderr.fileno()))
    try:
        config = configuration(options)
    except ValueError as error:
        output.begin(options.log_format or TEXT)
        return refuse(error)
    logs = LogControl(Levels.parse(config.log_level), output.recent)
    log_as(output, Levels.parse(config.log_level), config.log_format)
    if not config.local_only and config.authentication_enabled and _listens_without_tls(config):
        log.warning(
            "credentials and messages travel unencrypted: set brokerServicePortTls and "
            "webServicePortTls, and leave brokerServicePort and webServicePort empty"
        )
    return running(config, options, logs)


def in_a_cluster(config: BrokerConfig, options: argparse.Namespace, logs: LogControl) -> int:
    from pybroker.process.clustered import cluster_broker

    if config.test_mode:
        return refuse(ValueError("a broker of a cluster has no test mode: leave out testMode"))

    async def started(config: BrokerConfig, stop: Callable[[], None]) -> "Broker":
        return await cluster_broker(config, True, stop, logs, _session_lost)

    with asyncio.Runner(loop_factory=paced_loop) as runner:
        return runner.run(_serve(config, options, logs, started, config.metadata_store_url))


def on_own_storage(config: BrokerConfig, options: argparse.Namespace, logs: LogControl) -> int:
    if not config.journal_sync_data:
        log.warning("durability is relaxed: a power failure may lose acknowledged messages")
    if config.metadata_store_url:
        log.warning("metadataStoreUrl has no effect on standalone: pybroker broker uses it")
    if config.test_mode and options.no_http:
        return refuse(ValueError("test mode needs the admin API: leave out --no-http"))
    clock = None
    new_loop: Callable[[], asyncio.AbstractEventLoop] = paced_loop
    if config.test_mode:
        from pybroker.testing.clock import AdvancingLoop, VirtualClock

        log.warning(
            "test mode: everyone on this machine can crash the broker and advance its clock"
        )
        clock = VirtualClock()
        new_loop = partial(AdvancingLoop, clock)

    async def started(config: BrokerConfig, stop: Callable[[], None]) -> "Broker":
        from pybroker.process.app import embedded_backend, standalone

        backend = embedded_backend(config, options.data_dir, _disk_failed)
        faults = None if clock is None else _faults(clock)
        return await standalone(config, backend, not options.no_http, clock, stop, logs, faults)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(_serve(config, options, logs, started, str(options.data_dir.absolute())))


def _listens_without_tls(config: BrokerConfig) -> bool:
    ports = config.broker_service_port, config.web_service_port, config.kafka_service_port
    return any(port is not None for port in ports)


async def _serve(
    config: BrokerConfig,
    options: argparse.Namespace,
    logs: LogControl,
    started: "Callable[[BrokerConfig, Callable[[], None]], Awaitable[Broker]]",
    storage: str,
) -> int:
    from pybroker.process.descriptors import connections, raise_limit
    from pybroker.process.ports import StartFailed

    configured = config
    limit = raise_limit()
    tls_ports = (config.broker_service_port_tls, config.web_service_port_tls)
    allowed = connections(
        config.broker_max_connections or limit, limit, sum(port is not None for port in tls_ports)
    )
    if config.broker_max_connections == 0:
        config = replace(config, broker_max_connections=allowed)
    elif allowed < config.broker_max_connections:
        config = replace(config, broker_max_connections=allowed)
        log.warning(
            "only %d connections: this process may open %d files; raise that limit (ulimit -n)",
            allowed,
            limit,
        )
    stop = asyncio.Event()
    _stop_on_signals(stop)
    _collect_garbage_seldom()
    try:
        broker = await started(config, stop.set)
    except StartFailed as error:
        return refuse(error)
    gc.freeze()  # the objects loaded so far are permanent: collections skip them
    reload_on_hangup(partial(configuration, options), configured, broker, logs)
    sys.stdout.write(_ready_line(broker))  # not print: unbuffered, it writes the newline later
    sys.stdout.flush()
    log.info("version %s serves %s", version(), storage)
    _keep_memory_at_hand()
    await stop.wait()
    await broker.stop()
    log.info("stopped; all data is on disk")
    return 0


def _faults(clock: "VirtualClock") -> "Faults":
    """Fault points at which the process can end as if by kill -9."""
    from pybroker.faults.registry import Faults

    faults = Faults(clock)
    faults.attach(lambda _: os.kill(os.getpid(), signal.SIGKILL))
    faults.record()
    return faults


def _collect_garbage_seldom() -> None:
    """A broker allocates few cyclic objects, but collections visit its live objects again and
    again. That took a fifth of the CPU time of small transactions, and an eighth of the CPU time of
    a broker's start with many open ones. Young objects are collected a few thousand at a time,
    because a collection pauses everything.
    """
    gc.set_threshold(*GARBAGE_THRESHOLDS)


def _keep_memory_at_hand() -> None:
    from pybroker.process.memory import (
        keep_memory_at_hand,  # slow to import; the broker is already serving
    )

    keep_memory_at_hand()


def _ready_line(broker: "Broker") -> str:
    plain = broker.service_url, broker.admin_url, broker.kafka_url
    tls = broker.service_url_tls, broker.admin_url_tls, broker.kafka_url_tls
    return " ".join(filter(None, ("pybroker ready", *plain, *tls))) + "\n"


def _stop_on_signals(stop: asyncio.Event) -> None:
    def received(number: int) -> None:
        if stop.is_set():
            drain_log()
            os._exit(EXIT_SECOND_SIGNAL)
        log.info("stopping: %s", signal.Signals(number).name)
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, received, number)


def refuse(error: Exception) -> int:
    drain_log()
    print(f"pybroker: {error}", file=sys.stderr)
    return EXIT_CANNOT_START


def _session_lost(why: str) -> NoReturn:
    """End the process at once: it must not answer from memory that may be outdated."""
    drain_log()
    print(
        f"pybroker: stopped, because {why}; no unsaved data was acknowledged; start it again",
        file=sys.stderr,
        flush=True,
    )
    os._exit(EXIT_SESSION_LOST)


def _disk_failed(error: Exception) -> NoReturn:
    """End the process at once: after a failed fsync the contents of the disk are unknown, and
    continuing could lose messages.
    """
    drain_log()
    print(
        f"pybroker: stopped, because the disk failed to store data: {error}; no unsaved data was "
        "acknowledged; check the disk and start again",
        file=sys.stderr,
        flush=True,
    )
    os._exit(EXIT_DISK_FAILED)
