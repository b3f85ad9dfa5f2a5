"""broker.conf's keys about ZooKeeper and BookKeeper, as Apache Pulsar spells them."""

import hashlib
import re
from dataclasses import dataclass, field
from typing import Final

from managed_ledger.storage.bookkeeper.backend import ClusterConfig
from managed_ledger.storage.bookkeeper.bookies import MAX_PENDING_BYTES, BookieLimits
from managed_ledger.storage.bookkeeper.protocol import MAX_FRAME_BYTES
from managed_ledger.storage.bookkeeper.quorums import Quorums
from managed_ledger.storage.tls_files import ClientTls
from pybroker.base.configuration.config import BrokerConfig
from pybroker.cluster.bad_settings import BadSettings
from pybroker.cluster.tls_settings import bookie_tls, zookeeper_tls

_SERVERS: Final = re.compile(r"[^\s:/,;]+:[0-9]{1,5}|\[[0-9a-fA-F:]+\]:[0-9]{1,5}")
_LEDGERS: Final = re.compile(
    r"(?:metadata-store:)?zk(?:\+[a-z]+)?:(?://)?(?P<servers>[^/]+)(?P<root>/[^\s]*)?"
)

_METADATA_BYTES: Final = 64 * 1024  # of a message, in addition to maxMessageSize; at most
_USUAL_METADATA_BYTES: Final = 1024


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    servers: str  # host:port,host:port
    ledgers_root: str
    quorums: Quorums
    ledger_password: bytes = field(repr=False)
    bookie_tls: ClientTls | None
    zookeeper_tls: ClientTls | None


def cluster_settings(config: BrokerConfig) -> ClusterSettings:
    """Raises BadSettings, which names the setting, for what the storage cannot do."""
    servers = zookeeper_servers("metadataStoreUrl", config.metadata_store_url.removeprefix("zk:"))
    _require_one_store(config.configuration_metadata_store_url, servers)
    ensemble, write, ack = (
        config.managed_ledger_default_ensemble_size,
        config.managed_ledger_default_write_quorum,
        config.managed_ledger_default_ack_quorum,
    )
    if not 1 <= ack <= write <= ensemble:
        raise BadSettings(
            f"managedLedgerDefaultEnsembleSize={ensemble}, managedLedgerDefaultWriteQuorum={write} "
            f"and managedLedgerDefaultAckQuorum={ack}: each must be at most the one before, and "
            "the last at least 1"
        )
    if (digest := config.managed_ledger_digest_type).upper() != "CRC32C":
        raise BadSettings(
            f"managedLedgerDigestType={digest[:80]}: pybroker stores and reads ledgers with "
            "CRC32C, Apache Pulsar's default, and no other; remove it"
        )
    root = _ledgers_root(config.bookkeeper_metadata_service_uri, servers)
    return ClusterSettings(
        ",".join(servers),
        root,
        Quorums(ensemble, write, ack),
        config.managed_ledger_password.encode(),
        bookie_tls(config),
        zookeeper_tls(config),
    )


def common_settings(config: BrokerConfig) -> dict[str, str]:
    """What must be the same on all brokers, by key: brokers with different names, passwords or
    folders of ledgers would not find each other's data.
    """
    password = hashlib.sha256(config.managed_ledger_password.encode()).hexdigest()
    uri = "bookkeeperMetadataServiceUri"
    root = config.bookkeeper_metadata_service_uri and _LEDGERS.fullmatch(
        config.bookkeeper_metadata_service_uri
    )
    return {
        "clusterName": config.cluster_name,
        "managedLedgerPassword": f"(one with the SHA-256 {password[:8]}…)",
        uri: (root["root"] or "/ledgers").rstrip("/") if root else "/ledgers",
    }


def storage_config(config: BrokerConfig) -> ClusterConfig:
    """The storage's configuration, without the formats. Raises BadSettings."""
    settings = cluster_settings(config)
    entry_bytes = config.max_message_size + _METADATA_BYTES
    return ClusterConfig(
        ledgers_root=settings.ledgers_root,
        session_timeout_ms=config.metadata_store_session_timeout_millis,
        quorums=settings.quorums,
        ledger_password=settings.ledger_password,
        limits=BookieLimits(
            max_pending_bytes=max(MAX_PENDING_BYTES, 4 * entry_bytes),
            max_frame_bytes=max(MAX_FRAME_BYTES, entry_bytes + _METADATA_BYTES),
            usual_frame_bytes=min(config.max_message_size + _USUAL_METADATA_BYTES, MAX_FRAME_BYTES),
        ),
        bookie_tls=settings.bookie_tls,
        zookeeper_tls=settings.zookeeper_tls,
    )


def _require_one_store(url: str, servers: list[str]) -> None:
    """Raises BadSettings if tenants and namespaces are in another ZooKeeper."""
    key = "configurationMetadataStoreUrl"
    if url and set(zookeeper_servers(key, url.removeprefix("zk:"))) != set(servers):
        raise BadSettings(
            f"{key} must name the same ZooKeeper servers as metadataStoreUrl, or be empty: "
            "pybroker keeps tenants and namespaces where the rest of the metadata is"
        )


def zookeeper_servers(key: str, text: str) -> list[str]:
    """The servers in a list host:port,host:port. Raises BadSettings, which names the key."""
    servers = [each.strip() for each in re.split("[,;]", text) if each.strip()]
    if not servers:
        raise BadSettings(
            f"{key} is empty: name ZooKeeper's servers, as in {key}=zk:one:2181,two:2181"
        )
    for each in servers:
        if not _SERVERS.fullmatch(each):
            raise BadSettings(
                f"{key}: {each[:200]!r} is not host:port; write zk:one:2181,two:2181, without a "
                "path after it"
            )
    return servers


def _ledgers_root(uri: str, servers: list[str]) -> str:
    if not uri:
        return "/ledgers"
    found = _LEDGERS.fullmatch(uri)
    if found is None:
        raise BadSettings(
            f"bookkeeperMetadataServiceUri={uri[:200]!r} is not of the form "
            "zk+hierarchical://one:2181;two:2181/ledgers"
        )
    if set(zookeeper_servers("bookkeeperMetadataServiceUri", found["servers"])) != set(servers):
        raise BadSettings(
            "bookkeeperMetadataServiceUri must name the same ZooKeeper servers as metadataStoreUrl"
        )
    return (found["root"] or "").rstrip("/") or "/ledgers"
