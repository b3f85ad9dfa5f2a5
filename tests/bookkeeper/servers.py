"""Real bookies and a real ZooKeeper as test servers, from Maven Central's jars.

`python tests/bookkeeper/servers.py 3` starts ZooKeeper and three bookies on free ports, prints
their addresses, and stops them at the end of its input. All data is in one temporary folder; each
JVM has a heap of 128 MB. The servers die with this process, however it ends.
"""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, Self

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))

from certificates import Authority
from one_at_a_time import one_at_a_time

from pybroker.spark.jars import resolved_jars
from pybroker.testing.reserved_port import ReservedPort

HERE: Final = Path(__file__).resolve().parent
START_S: Final = 180
SESSION_TIMEOUT_MS: Final = 4000
_PR_SET_PDEATHSIG: Final = 1


def server_jars() -> list[Path]:
    with one_at_a_time("jars") as folder:
        return resolved_jars(HERE / "java" / "pom.xml", folder / "bookkeeper")


# The kernel kills a server when the thread that started it ends, and a test's thread ends too soon.
_starter: Final = ThreadPoolExecutor(1)


def _dies_with_us() -> None:
    """Runs in the child before it becomes Java: the kernel kills the child when its parent dies."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class JavaServer:
    def __init__(
        self, name: str, folder: Path, main: str, arguments: Sequence[str], port: int
    ) -> None:
        self.name = name
        self.port = port
        self._log = folder / f"{name}.log"
        self._command = self.command(main, arguments)
        self._process: subprocess.Popen[bytes] | None = None

    @staticmethod
    def command(main: str, arguments: Sequence[str]) -> list[str]:
        return java_command(server_jars(), main, arguments)

    @property
    def log(self) -> str:
        return self._log.read_text()

    def start(self) -> None:
        self._log_bytes = self._log.stat().st_size if self._log.exists() else 0
        with self._log.open("ab") as log:
            starting = _starter.submit(
                subprocess.Popen,
                self._command,
                stdout=log,
                stderr=log,
                preexec_fn=_dies_with_us,
            )
            self._process = starting.result()

    def wait_until(self, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_S
        while not ready():
            if self._process is None or self._process.poll() is not None:
                raise RuntimeError(f"{self.name} has ended:\n{self.log[-3000:]}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} is not ready:\n{self.log[-3000:]}")
            _pause()

    def answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        except OSError:
            return False
        return True

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def is_registered(self) -> bool:
        """Whether the bookie has started, which it does once ZooKeeper lists it."""
        with self._log.open("rb") as log:
            log.seek(self._log_bytes)
            return b"Started component bookie-server" in log.read()

    def kill(self) -> None:
        """kill -9, and wait for the process to end."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)
            self._process = None

    def freeze(self) -> None:
        """Stop the process: it keeps its connections and answers nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


def java_command(
    jars: Sequence[Path], main: str, arguments: Sequence[str], more_options: Sequence[str] = ()
) -> list[str]:
    """`more_options` override the options that all servers have."""
    options = ["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]
    options += ["-Dio.netty.maxDirectMemory=67108864", *more_options]
    return ["java", *options, "-cp", f"{jars[0].parent}/*", main, *arguments]


def _pause() -> None:
    """Wait between two checks of whether a server is ready."""
    signal.sigtimedwait([], 0.05)


class Cluster:
    """ZooKeeper and `bookies` bookies, empty, started by `with`."""

    def __init__(
        self,
        bookies: int = 3,
        set_up: Callable[["Cluster"], object] | None = None,
        tls: Authority | None = None,
    ) -> None:
        """`set_up` prepares ZooKeeper instead of only formatting BookKeeper's metadata. With `tls`,
        bookies offer TLS, and ZooKeeper has a second port with TLS.
        """
        self._count = bookies
        self._tls = tls
        self._set_up = set_up or Cluster.format
        self._cleanup = ExitStack()
        self.bookies: list[JavaServer] = []

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._cleanup.close()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._cleanup.close()

    @property
    def zookeeper_address(self) -> str:
        return f"127.0.0.1:{self.zookeeper.port}"

    @property
    def metadata_service_uri(self) -> str:
        return f"zk+hierarchical://{self.zookeeper_address}/ledgers"

    def start_again(self, server: JavaServer) -> None:
        server.start()
        server.wait_until(server.answers if server is self.zookeeper else server.is_registered)

    def shell(self, *arguments: str) -> str:
        """The output of BookKeeper's own shell."""
        main = "org.apache.bookkeeper.bookie.BookieShell"
        command = JavaServer.command(main, ["-conf", str(self._client_conf), *arguments])
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        if done.returncode != 0:
            raise RuntimeError(f"{arguments}:\n{(done.stdout + done.stderr)[-3000:]}")
        return done.stdout + done.stderr

    def format(self) -> None:
        self.shell("metaformat", "-nonInteractive", "-force")

    def _start(self) -> None:
        self.folder = Path(
            self._cleanup.enter_context(tempfile.TemporaryDirectory(prefix="bookies"))
        )
        self.zookeeper = self._zookeeper()
        self._cleanup.callback(self.zookeeper.kill)
        self.start_again(self.zookeeper)
        self._client_conf = self._bookie_conf("client", 3181)
        self._set_up(self)
        for number in range(self._count):
            bookie = self._bookie(f"bookie{number}")
            self.bookies.append(bookie)
            self._cleanup.callback(bookie.kill)
            bookie.start()
        for bookie in self.bookies:
            bookie.wait_until(bookie.is_registered)

    def _zookeeper(self) -> JavaServer:
        port = self.port()
        conf = self.folder / "zoo.cfg"
        settings = {
            "tickTime": 200,
            "minSessionTimeout": 400,
            "maxSessionTimeout": 60_000,
            "dataDir": self.folder / "zookeeper",
            "clientPort": port,
            "clientPortAddress": "127.0.0.1",
            "admin.enableServer": "false",
            "maxClientCnxns": 0,
        }
        if self._tls is not None:
            settings |= self._zookeeper_tls(self._tls)
        write_settings(conf, settings)
        main = "org.apache.zookeeper.server.ZooKeeperServerMain"
        return JavaServer("zookeeper", self.folder, main, [str(conf)], port)

    def _zookeeper_tls(self, authority: Authority) -> dict[str, object]:
        """ZooKeeper's settings for TLS; by default clients must have a certificate."""
        certificate, key = authority.issue("zookeeper")
        both, trusted = self.folder / "zookeeper.pem", self.folder / "trusted.pem"
        both.write_text(Path(key).read_text() + Path(certificate).read_text())
        trusted.write_text(authority.path.read_text())
        self.secure_port = self.port()
        return {
            "secureClientPort": self.secure_port,
            "secureClientPortAddress": "127.0.0.1",
            "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
            "ssl.keyStore.location": both,
            "ssl.trustStore.location": trusted,
        }

    def _bookie_tls(self, authority: Authority) -> dict[str, object]:
        """A bookie's settings for TLS; clients that ask for TLS must have a certificate."""
        certificate, key = authority.issue("bookie")
        return {
            "tlsProvider": "JDK",
            "tlsProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory",
            "tlsClientAuthentication": "true",
            "tlsKeyStoreType": "PEM",
            "tlsKeyStore": key,
            "tlsCertificatePath": certificate,
            "tlsTrustStoreType": "PEM",
            "tlsTrustStore": authority.path,
        }

    def _bookie(self, name: str) -> JavaServer:
        port = self.port()
        conf = self._bookie_conf(name, port)
        main = "org.apache.bookkeeper.server.Main"
        return JavaServer(name, self.folder, main, ["--conf", str(conf)], port)

    def start_auto_recovery(self) -> JavaServer:
        """Start auto-recovery, which copies entries of lost bookies to others. It has no port."""
        conf = self._bookie_conf("auto-recovery", self.port())
        main = "org.apache.bookkeeper.replication.AutoRecoveryMain"
        server = JavaServer("auto-recovery", self.folder, main, ["--conf", str(conf)], 0)
        self._cleanup.callback(server.kill)
        server.start()
        return server

    def _bookie_conf(self, name: str, port: int) -> Path:
        conf = self.folder / f"{name}.conf"
        settings = {
            "bookiePort": port,
            "allowLoopback": "true",
            "advertisedAddress": "127.0.0.1",
            "journalDirectory": self.folder / name / "journal",
            "ledgerDirectories": self.folder / name / "ledgers",
            "metadataServiceUri": self.metadata_service_uri,
            "zkTimeout": SESSION_TIMEOUT_MS,
            "httpServerEnabled": "false",
            "journalPreAllocSizeMB": 4,
            "journalMaxSizeMB": 16,
            "skipListSizeLimit": 8 << 20,
            "diskUsageThreshold": 0.99,
            "diskUsageWarnThreshold": 0.98,
            "numAddWorkerThreads": 1,
            "numReadWorkerThreads": 1,
        }
        if self._tls is not None:
            settings |= self._bookie_tls(self._tls)
        write_settings(conf, settings)
        return conf

    def port(self) -> int:
        """A port reserved until the end, so that no other process takes it while its server is
        down.
        """
        reserved = ReservedPort()
        self._cleanup.callback(reserved.release)
        return reserved.number


def write_settings(conf: Path, settings: dict[str, object]) -> None:
    conf.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))


@contextmanager
def cluster(bookies: int = 3) -> Iterator[Cluster]:
    with Cluster(bookies) as started:
        yield started


if __name__ == "__main__":
    with cluster(int(sys.argv[1]) if len(sys.argv) > 1 else 3) as running:
        ports = " ".join(f"127.0.0.1:{bookie.port}" for bookie in running.bookies)
        print(f"zookeeper {running.zookeeper_address} bookies {ports}", os.getpid(), flush=True)
        sys.stdin.read()
