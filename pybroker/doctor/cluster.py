"""Checks the cluster that metadataStoreUrl names: ZooKeeper, the bookies, and what they take."""

import asyncio
import random
from collections.abc import Mapping
from typing import Final

from managed_ledger.errors import ManagedLedgerError
from managed_ledger.storage.bookkeeper.bookies import Bookies
from managed_ledger.storage.bookkeeper.client import BookKeeper
from managed_ledger.storage.bookkeeper.quorums import Quorums
from managed_ledger.storage.zookeeper.client import ZooKeeper
from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.runtime import SystemClock
from pybroker.cluster.bad_settings import BadSettings
from pybroker.cluster.settings import ClusterSettings, cluster_settings, storage_config
from pybroker.doctor.finding import Finding, Level

_PATIENCE_S: Final = 15.0
_PADDING_BYTES: Final = 10 * 1024  # of a message's metadata, as Apache Pulsar counts them
_NAMED: Final = 5


def check_cluster(config: BrokerConfig) -> list[Finding]:
    try:
        settings = cluster_settings(config)
    except BadSettings as error:
        return [Finding("cluster", Level.ERROR, str(error), "correct the key that it names")]
    try:
        return asyncio.run(_check(config, settings))
    except (ManagedLedgerError, OSError, TimeoutError) as error:
        what = str(error) or f"no answer within {_PATIENCE_S:g} s"
        advice = f"start ZooKeeper at {settings.servers}, or correct metadataStoreUrl"
        return [Finding("ZooKeeper", Level.ERROR, what, advice)]


async def _check(config: BrokerConfig, settings: ClusterSettings) -> list[Finding]:
    rng, storage = random.Random(), storage_config(config)
    zookeeper = ZooKeeper(settings.servers, rng, storage.session_timeout_ms, storage.zookeeper_tls)
    try:
        await zookeeper.open(_PATIENCE_S)
        client = BookKeeper(
            zookeeper,
            SystemClock(),
            rng,
            storage.quorums,
            storage.ledgers_root,
            storage.limits,
            storage.bookie_tls,
        )
        await client.open()
        try:
            size_bytes = config.max_message_size + _PADDING_BYTES
            takes = await _takes(client.bookies, size_bytes)
        finally:
            await client.close()
    finally:
        await zookeeper.close()
    found = Finding("ZooKeeper", Level.OK, f"{settings.servers} answers")
    return [found, _number(takes, settings.quorums), *_sizes(takes, size_bytes)]


async def _takes(bookies: Bookies, size_bytes: int) -> dict[str, bool | str]:
    """Whether each registered bookie takes requests of this size, or why it is not known."""

    async def ask(bookie: str) -> bool | str:
        try:
            return await bookies.frames.find_out(bookie, size_bytes)
        except ManagedLedgerError as why:
            return str(why)

    asked = bookies.registered
    return dict(zip(asked, await asyncio.gather(*map(ask, asked)), strict=True))


def _number(takes: Mapping[str, bool | str], quorums: Quorums) -> Finding:
    answer = [each for each, found in takes.items() if not isinstance(found, str)]
    said = f"{len(answer)} of {len(takes)} registered bookies answer"
    silent = "; ".join(found for found in takes.values() if isinstance(found, str))
    if len(answer) < quorums.ack:
        advice = f"start bookies: managedLedgerDefaultAckQuorum needs {quorums.ack}"
        return Finding("bookies", Level.ERROR, f"{said}. {silent}".strip(), advice)
    if len(answer) < quorums.write or silent:
        advice = f"start bookies: each entry shall have {quorums.write} copies"
        return Finding("bookies", Level.WARNING, f"{said}. {silent}".strip(), advice)
    return Finding("bookies", Level.OK, said)


def _sizes(takes: Mapping[str, bool | str], size_bytes: int) -> list[Finding]:
    refuse = [each for each, found in takes.items() if found is False]
    if refuse:
        named = ", ".join(refuse[:_NAMED]) + (" and others" if len(refuse) > _NAMED else "")
        return [
            Finding(
                "nettyMaxFrameSizeBytes",
                Level.ERROR,
                f"the largest messages ({size_bytes} bytes) are refused by {named}",
                f"set nettyMaxFrameSizeBytes={size_bytes} or more in bookkeeper.conf, or lower "
                "maxMessageSize in broker.conf",
            )
        ]
    said = f"bookies take messages of maxMessageSize ({size_bytes} bytes with metadata)"
    return [Finding("nettyMaxFrameSizeBytes", Level.OK, said)] if True in takes.values() else []
