"""`pybroker move --from PLACE --to PLACE`: copies, verifies, and reports its progress."""

import argparse
import random
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from managed_ledger.storage.bookkeeper.backend import BookKeeperBackend
from managed_ledger.storage.importing import ImportTarget
from pybroker.base.arguments import Parser
from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.configuration.config_file import load_config
from pybroker.base.runtime import SystemClock
from pybroker.cluster.bad_settings import BadSettings
from pybroker.cluster.node_values import bundles_data, equal_boundaries
from pybroker.cluster.settings import storage_config, zookeeper_servers
from pybroker.formats.apache.families import in_apaches_formats
from pybroker.moving.cluster import cluster
from pybroker.moving.directory import directory_source, directory_target
from pybroker.moving.move import Move, discard
from pybroker.moving.places import BackendSource, Source
from pybroker.moving.plan import Plan, check_for_several_brokers, plan
from pybroker.moving.progress import Progress
from pybroker.moving.record import Sum
from pybroker.moving.repeatable import run

_CLUSTER: Final = "zk:"
_MB: Final = 1_000_000


def main(arguments: list[str]) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.discard == (options.source is not None):
        parser.error("name the place to copy from with --from, or give up a copy with --discard")
    if options.source is not None and _is_cluster(options.source) == _is_cluster(options.target):
        parser.error("one place is a data directory, the other a cluster: zk:host:port[,host:port]")
    if options.discard and not _is_cluster(options.target):
        parser.error("--discard is for a cluster; if the copy is a data directory, delete it")
    return run(_discard(options) if options.discard else _move(options))


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="pybroker move",
        description="Copy everything that a broker stores from a data directory to a BookKeeper "
        "cluster, or back, while no broker uses either. Message ids stay the same. The source is "
        "not changed. After a crash, repeat the command to continue. No broker starts on "
        "the target before everything is copied and verified. Exit code 0: moved, 1: not.",
        epilog="A place is a data directory, or zk:host:port[,host:port] for the cluster of these "
        "ZooKeeper servers.",
    )
    parser.add_argument("--from", dest="source", metavar="PLACE", help="the place to copy")
    parser.add_argument(
        "--to", dest="target", metavar="PLACE", required=True, help="an empty place"
    )
    parser.add_argument(
        "--discard", action="store_true", help="delete an unfinished copy from --to"
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="the configuration file of the brokers on the cluster: TLS, copies of an entry, the "
        "path of the ledgers, clusterName",
    )
    parser.add_argument(
        "--cluster-name",
        help="the clusterName of the brokers on the cluster (default: that of --config, or "
        f"{BrokerConfig().cluster_name})",
    )
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    return parser


def _is_cluster(place: str) -> bool:
    return place.startswith(_CLUSTER)


async def _move(options: argparse.Namespace) -> int:
    async with AsyncExitStack() as places:
        config = _config(options)
        source = await places.enter_async_context(_source(options.source, config))
        target = await places.enter_async_context(_target(options.target, config))
        planned = await plan(source, SystemClock().now_ms())
        if _is_cluster(options.target):
            check_for_several_brokers(planned.items)
        progress = Progress(None if options.quiet else sys.stderr)
        progress.begin(len(planned.ledgers), planned.size_bytes)
        began_s = time.monotonic()
        try:
            total = await Move(_name(options.source), source, planned, target, progress).run()
        finally:
            progress.end()
        took_s = time.monotonic() - began_s
    print(_summary(planned, total, took_s))
    return 0


async def _discard(options: argparse.Namespace) -> int:
    async with _target(options.target, _config(options)) as target:
        ledgers = await discard(target)
    print(f"deleted an unfinished copy with {ledgers} ledgers from {options.target}")
    return 0


def _summary(planned: Plan, total: Sum, took_s: float) -> str:
    size = total.size_bytes / _MB
    counted = f"{len(planned.ledgers)} ledgers with {total.entries} entries ({size:,.1f} MB)"
    counted += f" and {len(planned.items)} keys"
    return f"moved and verified {counted} in {took_s:.1f} s; do not use the source any more"


@asynccontextmanager
async def _source(place: str, config: BrokerConfig) -> AsyncIterator[Source]:
    if _is_cluster(place):
        async with _cluster(place, config) as backend:
            await backend.refresh_ledgers()
            yield BackendSource(backend)
    else:
        async with directory_source(Path(place)) as directory:
            yield directory


@asynccontextmanager
async def _target(place: str, config: BrokerConfig) -> AsyncIterator[ImportTarget]:
    if _is_cluster(place):
        async with _cluster(place, config) as backend:
            yield backend
    else:
        async with directory_target(Path(place), SystemClock()) as directory:
            yield directory


@asynccontextmanager
async def _cluster(place: str, config: BrokerConfig) -> AsyncIterator[BookKeeperBackend]:
    """`config` is that of the cluster's brokers. Raises BadSettings."""
    servers = place.removeprefix(_CLUSTER)
    bundles = bundles_data(equal_boundaries(config.default_number_of_namespace_bundles))
    stored = in_apaches_formats(storage_config(config), config.cluster_name, bundles)
    async with cluster(servers, SystemClock(), random.Random(), stored) as backend:
        yield backend


def _config(options: argparse.Namespace) -> BrokerConfig:
    """The configuration of the cluster's brokers. Raises ValueError."""
    place = next(each for each in (options.source, options.target) if each and _is_cluster(each))
    servers = zookeeper_servers(f"the cluster {place[:200]}", place.removeprefix(_CLUSTER))
    config = BrokerConfig() if options.config is None else load_config(options.config)
    there = config.metadata_store_url
    found = (
        zookeeper_servers("metadataStoreUrl", there.removeprefix(_CLUSTER)) if there else servers
    )
    if set(found) != set(servers):
        raise BadSettings(
            f"{options.config} is of another cluster: metadataStoreUrl={there[:200]} does not name "
            f"the servers of {place[:200]}"
        )
    name = options.cluster_name or config.cluster_name
    return replace(config, metadata_store_url=place, cluster_name=name)


def _name(place: str) -> str:
    """The name of a place, the same for all its spellings."""
    if not _is_cluster(place):
        return str(Path(place).resolve())
    return _CLUSTER + ",".join(sorted(place.removeprefix(_CLUSTER).split(",")))
