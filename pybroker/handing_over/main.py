"""`pybroker hand-over --config broker.conf`: reports its progress, and the obstacles."""

import argparse
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from pybroker.base.arguments import Parser
from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.configuration.config_file import load_config
from pybroker.base.names import TopicName
from pybroker.base.runtime import Clock, SystemClock
from pybroker.cluster.settings import cluster_settings
from pybroker.cluster.transactions.formats import use_pulsars_formats
from pybroker.handing_over.hand_over import HandOver, Summary
from pybroker.moving.cluster import alone
from pybroker.moving.repeatable import run
from pybroker.process.app import Broker
from pybroker.process.clustered import shared_storage

_NAMED: Final = 50  # topics


def main(arguments: list[str]) -> int:
    return run(_hand_over(_parser().parse_args(arguments)))


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="pybroker hand-over",
        description="Prepare a cluster so that Apache Pulsar's brokers serve it instead of "
        "pybroker's. Stop all brokers first. It ends transactions, names aborted ones in Apache "
        "Pulsar's snapshots, and closes all ledgers. It can be interrupted and repeated. Exit "
        "code 0: handed over, 1: not.",
    )
    parser.add_argument(
        "--config", type=Path, required=True, help="the brokers' own configuration file"
    )
    parser.add_argument(
        "--wait",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="how long to wait until open transactions time out (default: 0)",
    )
    parser.add_argument("--abort-open", action="store_true", help="abort open transactions")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    return parser


async def _hand_over(options: argparse.Namespace) -> int:
    config = load_config(options.config)
    clock, rng, began_s = SystemClock(), random.Random(), time.monotonic()
    settings = cluster_settings(config)  # raises BadSettings
    session_timeout_ms = config.metadata_store_session_timeout_millis
    tell = _silent if options.quiet else partial(print, file=sys.stderr, flush=True)
    async with alone(settings.servers, rng, session_timeout_ms, settings.zookeeper_tls):
        summary = await handed_over(
            lonely_broker(config, clock, rng), config, clock, tell, options.wait, options.abort_open
        )
    print(_said(summary, time.monotonic() - began_s))
    if summary.with_policies:
        print(_said_of_policies(summary.with_policies))
    if summary.of_kafka:
        print(_said_of_kafka(summary.of_kafka))
    return 0


def _silent(line: str) -> None:
    """No progress is shown."""


def lonely_broker(config: BrokerConfig, clock: Clock, rng: random.Random) -> Broker:
    """A broker that owns the whole storage and listens on no port."""
    config = replace(config, authentication_enabled=False, authorization_enabled=False)
    return Broker(config, shared_storage(config, clock, rng), clock, rng)


async def handed_over(
    broker: Broker,
    config: BrokerConfig,
    clock: Clock,
    tell: Callable[[str], None],
    wait_s: float,
    abort_open: bool,
) -> Summary:
    """Start `broker`, hand over, and stop it. Raises NotHandedOver, ManagedLedgerError,
    PulsarError.
    """
    use_pulsars_formats(broker.coordinators)
    await broker.start(None)
    try:
        return await HandOver(broker, clock, tell, config.max_message_size).run(wait_s, abort_open)
    finally:
        await broker.stop()


def _said(done: Summary, took_s: float) -> str:
    aborted = f"{done.aborted} open transactions were aborted; " if done.aborted else ""
    return (
        f"{aborted}handed over {done.coordinators} transaction coordinators and {done.topics} "
        f"topics with transactions ({done.snapshots} snapshots name {done.hidden} aborted ones) in "
        f"{took_s:.1f} s; start Apache Pulsar's brokers now"
    )


def _said_of_kafka(topics: Sequence[TopicName]) -> str:
    return (
        f"{len(topics)} topics have been used by Kafka's clients: Apache Pulsar's brokers deliver "
        f"Kafka's records as they are stored, and only KoP reads them: {_some(topics)}"
    )


def _some(topics: Sequence[TopicName]) -> str:
    more = f" and {len(topics) - _NAMED} more" if len(topics) > _NAMED else ""
    return ", ".join(map(str, topics[:_NAMED])) + more


def _said_of_policies(topics: Sequence[TopicName]) -> str:
    return (
        f"{len(topics)} topics have policies of their own, which Apache Pulsar's brokers do not "
        f"find: set them again there, with pulsar-admin topicPolicies: {_some(topics)}"
    )
