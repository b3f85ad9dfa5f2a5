"""Configuration files of other projects start the broker unchanged."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from certificates import Authority

pytestmark = pytest.mark.slow  # starts processes

CONFS = sorted((Path(__file__).parent / "confs").glob("*.conf"))
PORTS = ("brokerServicePort", "brokerServicePortTls", "webServicePort", "webServicePortTls")
READY_S = 60


@contextmanager
def started(conf: Path, folder: Path) -> Iterator[tuple[str, Path]]:
    """The ready line, and the path of the broker's log."""
    command = [sys.executable, "-m", "pybroker", "standalone", "--insecure"]
    options = ["--config", str(conf), "--data-dir", str(folder / "data")]
    # The files name Apache Pulsar's ports; free ones replace them.
    named = [port for port in PORTS if f"\n{port}=" in conf.read_text()]
    free = {f"PULSAR_PREFIX_{port}": "0" for port in named}
    log = folder / "log"
    with log.open("w") as errors:
        process = subprocess.Popen(
            [*command, *options],
            env=os.environ | free,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    try:
        assert process.stdout is not None
        yield process.stdout.readline(), log
    finally:
        process.terminate()
        process.communicate(timeout=READY_S)


@pytest.mark.parametrize("conf", CONFS, ids=lambda conf: conf.stem)
def test_a_configuration_in_use_starts_the_broker(conf: Path, tmp_path: Path) -> None:
    Authority(tmp_path).issue("broker")
    (tmp_path / ".htpasswd").write_text("admin:$apr1$FG4AO6aX$KGYPuMs0ic9W7e7NMgHbk.\n")
    filled = tmp_path / "broker.conf"
    filled.write_text(conf.read_text().replace("{folder}", str(tmp_path)))
    with started(filled, tmp_path) as (ready, log):
        assert ready.startswith("pybroker ready pulsar://"), log.read_text()
        url = next(word for word in ready.split() if word.startswith("http://"))
        assert httpx.get(f"{url}/admin/v2/brokers/health").status_code in (200, 401)
