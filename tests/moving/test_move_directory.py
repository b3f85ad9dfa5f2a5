"""A data directory as source and as target of a move; and `pybroker move` on mistakes."""

import asyncio
import io
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stored import Stored, fill, stored_in

from managed_ledger.errors import DirectoryInUse
from managed_ledger.storage.embedded.journal import EmbeddedBackend
from managed_ledger.storage.embedded.os_disk import OsDisk
from managed_ledger.storage.importing import STATE_KEY, UnfinishedMove
from managed_ledger.storage.memory import MemoryBackend
from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.runtime import SystemClock
from pybroker.cluster.settings import storage_config
from pybroker.moving.directory import directory_source, directory_target
from pybroker.moving.main import _config, _parser, main
from pybroker.moving.move import Move
from pybroker.moving.plan import plan
from pybroker.moving.progress import Progress
from pybroker.moving.record import MoveFailed, State, Sum
from pybroker.process.app import Broker


def files_of(path: Path) -> dict[str, bytes]:
    return {
        str(each.relative_to(path)): each.read_bytes()
        for each in sorted(path.rglob("*"))
        if each.is_file()
    }


async def on(path: Path, work: Callable[[Any], Any]) -> Any:
    backend = EmbeddedBackend(OsDisk(path), SystemClock(), "relaxed")
    await backend.open()
    try:
        return await work(backend)
    finally:
        await backend.close()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One half is in ledger files, the other in the journal, as after kill -9."""
    used, path = tmp_path_factory.mktemp("used"), tmp_path_factory.mktemp("source") / "data"
    asyncio.run(on(used, lambda backend: fill(backend, SystemClock(), "before")))

    async def go_on(backend: EmbeddedBackend) -> None:
        await fill(backend, SystemClock(), "after")
        shutil.copytree(used, path)

    asyncio.run(on(used, go_on))
    return path


async def move(source: Path, target: Path) -> Sum:
    async with (
        directory_source(source) as read,
        directory_target(target, SystemClock()) as written,
    ):
        planned = await plan(read, SystemClock().now_ms())
        return await Move("source", read, planned, written, Progress()).run()


def test_a_directory_is_copied_and_not_changed(source: Path, tmp_path: Path) -> None:
    files = files_of(source)
    asyncio.run(move(source, tmp_path / "copy"))
    assert files_of(source) == files
    recovered = shutil.copytree(source, tmp_path / "recovered")
    before: Stored = asyncio.run(on(recovered, stored_in))
    after: Stored = asyncio.run(on(tmp_path / "copy", stored_in))
    assert after.ledgers == before.ledgers
    assert after.items == before.items


def test_no_broker_starts_beside_a_move(source: Path, tmp_path: Path) -> None:
    async def start_beside() -> None:
        async with directory_source(source):
            with pytest.raises(DirectoryInUse):
                await on(source, stored_in)
        async with directory_target(tmp_path / "target", SystemClock()):
            with pytest.raises(DirectoryInUse):
                await on(tmp_path / "target", stored_in)

    asyncio.run(start_beside())


def test_no_broker_starts_on_an_unfinished_copy() -> None:
    async def start() -> None:
        backend = MemoryBackend()
        await backend.metadata.put(STATE_KEY, State("elsewhere").encode())
        broker = Broker(BrokerConfig(), backend, SystemClock(), random.Random())
        with pytest.raises(UnfinishedMove, match="repeat that command"):
            await broker.start(None)

    asyncio.run(start())


def test_damage_is_named_and_ends_the_move(source: Path, tmp_path: Path) -> None:
    path = shutil.copytree(source, tmp_path / "damaged")
    ledger = max((path / "ledgers").iterdir(), key=lambda each: each.stat().st_size)
    data = bytearray(ledger.read_bytes())
    data[-1] ^= 1
    ledger.write_bytes(data)
    with pytest.raises(MoveFailed, match=f"is damaged: entries .* of ledger {ledger.name} "):
        asyncio.run(move(path, tmp_path / "copy"))


def test_a_directory_with_other_files_is_no_target(source: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(MoveFailed, match=r"thesis\.txt"):
        asyncio.run(move(source, tmp_path))


@pytest.mark.parametrize(
    "words", ["--to x", "--from x --to y", "--from zk:h:1 --to zk:h:2", "--discard --to x"]
)
def test_places_that_make_no_sense_are_refused(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(words.split())
    assert "pybroker move: error" in capsys.readouterr().err


def test_a_missing_directory_is_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--from", str(tmp_path / "no"), "--to", "zk:127.0.0.1:1"]) == 1
    assert "no is not a directory" in capsys.readouterr().err


def test_the_cluster_is_that_of_the_configuration_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    conf, places = tmp_path / "broker.conf", ["--from", str(tmp_path / "no"), "--to"]
    conf.write_text("metadataStoreUrl=zk:one:2181,two:2181\n")
    assert main([*places, "zk:two:2181,one:2181", "--config", str(conf)]) == 1
    assert "no is not a directory" in capsys.readouterr().err
    assert main([*places, "zk:three:2181", "--config", str(conf)]) == 1
    assert "broker.conf is of another cluster: metadataStoreUrl" in capsys.readouterr().err
    assert main([*places, "zk:three"]) == 1
    assert "the cluster zk:three: 'three' is not host:port" in capsys.readouterr().err


def test_what_the_configuration_file_says_about_the_storage_is_used(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(
        "clusterName=east\nmanagedLedgerPassword=secret\nbookkeeperTLSClientAuthentication=true\n"
        "managedLedgerDefaultEnsembleSize=3\n"
    )
    words = ["--from", "x", "--to", "zk:one:2181", "--config", str(conf)]
    config = _config(_parser().parse_args(words))
    stored = storage_config(config)
    assert stored.bookie_tls is not None
    assert (stored.ledger_password, stored.quorums.ensemble) == (b"secret", 3)
    assert config.cluster_name == "east"
    assert _config(_parser().parse_args([*words, "--cluster-name", "west"])).cluster_name == "west"


def test_progress_counts_what_is_left_to_do() -> None:
    out = io.StringIO()
    progress = Progress(out)
    progress.begin(3, 5_000_000)
    progress.ledger_done(1_000_000)  # by an earlier attempt
    progress.bytes_done(4_000_000)
    assert str(progress) == "1 of 3 ledgers, 2 of 4 MB"
    assert out.getvalue() == ""  # no line is due yet
