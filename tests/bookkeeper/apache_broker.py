"""Apache Pulsar's own broker as a test server, on the ZooKeeper and the bookies of a `Cluster`.

Its heap is small, and it has only the threads that tests need. It stores everything in ZooKeeper
and on the bookies, so `kill` is a realistic crash.
"""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.request import urlopen

from one_at_a_time import one_at_a_time
from servers import (
    HERE,
    START_S,
    Cluster,
    JavaServer,
    java_command,
    write_settings,
)

from pybroker.spark.jars import resolved_jars

CLUSTER: Final = "east"
SESSION_MS: Final = 15_000
_OPENED: Final = ("java.lang", "java.net", "java.nio", "java.util", "sun.net", "jdk.internal.misc")
_OPTIONS: Final = [
    "-Xmx384m",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dpulsar.allocator.pooled=false",
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED),
]


def broker_jars() -> list[Path]:
    with one_at_a_time("jars") as folder:
        return resolved_jars(HERE / "java" / "broker" / "pom.xml", folder / "apache-broker")


def _command(main: str, arguments: Sequence[str]) -> list[str]:
    return java_command(broker_jars(), main, arguments, _OPTIONS)


def set_up_metadata(cluster: Cluster, coordinators: int = 16) -> None:
    """Initialize the cluster as every installation of Apache Pulsar does: BookKeeper's metadata,
    the cluster, and the first namespaces.
    """
    main = "org.apache.pulsar.PulsarClusterMetadataSetup"
    options = {
        "cluster": CLUSTER,
        "metadata-store": f"zk:{cluster.zookeeper_address}",
        "configuration-metadata-store": f"zk:{cluster.zookeeper_address}",
        "web-service-url": "http://127.0.0.1:8080",
        "broker-service-url": "pulsar://127.0.0.1:6650",
        "initial-num-transaction-coordinators": str(coordinators),
    }
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    done = subprocess.run(_command(main, words), capture_output=True, text=True, timeout=START_S)
    if done.returncode != 0:
        raise RuntimeError((done.stdout + done.stderr)[-3000:])


class ApacheBroker(JavaServer):
    """Started by `start_on`."""

    command = staticmethod(_command)

    def __init__(self, cluster: Cluster, settings: Mapping[str, object] | None = None) -> None:
        """`settings` of broker.conf, in addition to those that keep the broker small."""
        self.web_port, port = cluster.port(), cluster.port()
        conf = cluster.folder / "apache-broker.conf"
        write_settings(
            conf,
            {
                "clusterName": CLUSTER,
                "metadataStoreUrl": f"zk:{cluster.zookeeper_address}",
                "metadataStoreSessionTimeoutMillis": SESSION_MS,
                "bindAddress": "127.0.0.1",
                "advertisedAddress": "127.0.0.1",
                "brokerServicePort": port,
                "webServicePort": self.web_port,
                "numIOThreads": 2,
                "numHttpServerThreads": 8,
                "numExecutorThreadPoolSize": 2,
                "numOrderedExecutorThreads": 2,
                "managedLedgerDefaultEnsembleSize": 2,
                "managedLedgerDefaultWriteQuorum": 2,
                "managedLedgerDefaultAckQuorum": 2,
                "managedLedgerCacheSizeMB": 16,
                "functionsWorkerEnabled": "false",
                "brokerShutdownTimeoutMs": 10_000,
                **(settings or {}),
            },
        )
        main = "org.apache.pulsar.PulsarBrokerStarter"
        super().__init__("apache-broker", cluster.folder, main, ["--broker-conf", str(conf)], port)

    @property
    def service_url(self) -> str:
        return f"pulsar://127.0.0.1:{self.port}"

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self.web_port}"

    def is_healthy(self) -> bool:
        try:
            return urlopen(f"{self.admin_url}/admin/v2/brokers/ready", timeout=5).status == 200
        except OSError:
            return False

    def start_and_wait(self) -> None:
        self.start()
        self.wait_until(self.is_healthy)
