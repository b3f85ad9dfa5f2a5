"""`pybroker check`: sound directories pass, damage is named, after a repair the broker starts."""

import asyncio
import json
import logging
import random
import shutil
from pathlib import Path

import pytest
from damaging import damaged

import pybroker.testing
from managed_ledger.errors import DirectoryInUse
from pybroker.base.configuration.config import BrokerConfig
from pybroker.checking.directory import Report, check
from pybroker.checking.main import EXIT_DAMAGED, EXIT_NOT_CHECKED, main
from pybroker.client import Client, InitialPosition

Files = dict[str, bytes]


def use(url: str) -> None:
    """Sends messages, and uses transactions that commit, abort, are prepared and stay open."""
    with Client(url, enable_transaction=True) as client:
        orders = client.subscribe("orders", "s", initial_position=InitialPosition.Earliest)
        producers = [client.create_producer(name) for name in ("orders", "copies")]
        for number in range(50):
            producers[0].send(f"order-{number}".encode() * 20)
        for end in ("commit", "abort", "prepare", "leave"):
            txn = client.new_transaction(timeout_ms=3_600_000)
            for producer in producers:
                producer.send(b"in a transaction", txn=txn)
            orders.acknowledge(orders.receive(), txn=txn)
            if end != "leave":
                getattr(txn, end)()
        orders.acknowledge(orders.receive())


def files_of(path: Path) -> Files:
    return {
        str(each.relative_to(path)): each.read_bytes()
        for each in sorted(path.rglob("*"))
        if each.is_file() and each.name not in ("lock", "room")
    }


def lay(path: Path, files: Files) -> Path:
    shutil.rmtree(path, ignore_errors=True)
    for name, data in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    return path


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Files:
    path = tmp_path_factory.mktemp("stopped")
    with pybroker.testing.broker(data_dir=path) as broker:
        use(broker.service_url)
    return files_of(path)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """A directory with everything in the journal."""
    path = tmp_path_factory.mktemp("killed")
    with pybroker.testing.broker(data_dir=path) as broker:
        use(broker.service_url)
        return files_of(path)


def checked(path: Path) -> Report:
    return asyncio.run(check(path, BrokerConfig()))


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL + 1)


@pytest.mark.parametrize("left", ["stopped", "killed"])
def test_a_whole_directory_passes_and_is_not_changed(
    left: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    files: Files = request.getfixturevalue(left)
    report = checked(lay(tmp_path / "d", files))
    assert report.findings == []
    assert (report.topics, report.transactions) == (2, 4)
    assert files_of(tmp_path / "d") == files


@pytest.mark.slow
@pytest.mark.parametrize("left", ["stopped", "killed"])
def test_damage_is_named(left: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    files: Files = request.getfixturevalue(left)
    for seed in range(60):
        what, after = damaged(files, random.Random(seed))
        assert checked(lay(tmp_path / "d", after)).findings, (seed, what)
        assert files_of(tmp_path / "d") == after


def test_what_is_lost_is_said_with_the_topic_s_name(stopped: Files, tmp_path: Path) -> None:
    path = lay(tmp_path / "d", stopped)
    largest = max(stopped, key=lambda name: len(stopped[name]) * name.startswith("ledgers/"))
    data = bytearray(stopped[largest])
    data[len(data) // 2] ^= 1
    (path / largest).write_bytes(data)
    (finding,) = checked(path).damage
    assert finding.where == largest
    assert finding.lost.endswith("of public/default/persistent/orders")


def test_a_directory_in_use_is_not_checked(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    with pybroker.testing.broker(data_dir=tmp_path):
        with pytest.raises(DirectoryInUse, match="stop the broker first"):
            checked(tmp_path)
        assert main([str(tmp_path)]) == EXIT_NOT_CHECKED
    assert "stop the broker first" in capsys.readouterr().err


def test_a_file_is_no_directory(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main([str(tmp_path / "nothing")]) == EXIT_NOT_CHECKED
    assert "is not a directory" in capsys.readouterr().err


def test_the_command_says_what_it_looked_at(
    stopped: Files, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    path = lay(tmp_path / "d", stopped)
    assert main([str(path)]) == 0
    assert capsys.readouterr().out.endswith(
        "2 topics, 4 transactions\nintact: nothing is damaged\n"
    )
    (path / "metadata/snapshot").write_bytes(b"nothing")
    assert main([str(path), "--json"]) == EXIT_DAMAGED
    body = json.loads(capsys.readouterr().out)
    assert body["damaged"]
    assert body["findings"][0]["where"] == "metadata/snapshot"


def test_a_journal_that_may_have_been_cut_off_is_not_called_whole(
    stopped: Files, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """A crash leaves the same, so it is not damage either."""
    path = lay(tmp_path / "d", stopped)
    journal = max((path / "journal").iterdir())
    journal.write_bytes(journal.read_bytes().rstrip(b"\0") + b"the beginning of a write")
    assert main([str(path)]) == 0
    said = capsys.readouterr().out
    assert "of a write that did not complete" in said
    assert "no certain damage" in said


def test_a_journal_that_is_damaged_in_the_middle_is_moved_aside(
    killed: Files, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    path = lay(tmp_path / "d", killed)
    (journal,) = (name for name in killed if name.startswith("journal/"))
    data = bytearray(killed[journal])
    data[len(data) // 2] ^= 1
    (path / journal).write_bytes(data)
    assert main([str(path)]) == EXIT_DAMAGED
    assert "complete commits follow it" in capsys.readouterr().out
    assert main([str(path), "--repair"]) == 0
    assert "moved to moved-aside/" in capsys.readouterr().out
    (moved,) = (path / "moved-aside").rglob("0*")
    assert moved.read_bytes() == data
    with (
        pybroker.testing.broker(data_dir=path) as broker,
        Client(broker.service_url) as client,
    ):
        reader = client.subscribe("orders", "new", initial_position=InitialPosition.Earliest)
        assert reader.receive(timeout_millis=10_000).data().startswith(b"order-0")


def test_a_missing_journal_is_begun_anew_by_a_repair(stopped: Files, tmp_path: Path) -> None:
    files = {name: data for name, data in stopped.items() if not name.startswith("journal/")}
    path = lay(tmp_path / "d", files)
    assert "is missing" in checked(path).damage[0].what
    assert main([str(path), "--repair"]) == 0
    assert checked(path).findings == []


def test_a_repair_deletes_nothing(stopped: Files, tmp_path: Path) -> None:
    path = lay(tmp_path / "d", stopped | {"ledgers/77": b"whatever"})
    assert main([str(path), "--repair"]) == 0
    (moved,) = (path / "moved-aside").rglob("77")
    assert moved.read_bytes() == b"whatever"
    assert files_of(path / "ledgers").keys() == {
        name.removeprefix("ledgers/") for name in stopped if name.startswith("ledgers/")
    }


def test_nothing_helps_a_damaged_snapshot_but_a_backup(
    stopped: Files, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    path = lay(tmp_path / "d", stopped | {"metadata/snapshot": b"nothing"})
    assert main([str(path), "--repair"]) == EXIT_NOT_CHECKED
    assert "from a backup" in capsys.readouterr().err
    assert not (path / "moved-aside").exists()


def test_nothing_helps_without_the_snapshot_that_the_journals_go_on_with(
    stopped: Files, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """A repair would have left a broker without topics."""
    files = {name: data for name, data in stopped.items() if name != "metadata/snapshot"}
    path = lay(tmp_path / "d", files)
    assert main([str(path), "--repair"]) == EXIT_NOT_CHECKED
    assert "from a backup" in capsys.readouterr().err
    assert files_of(path) == files


def test_another_folder_is_not_called_whole(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "letters").mkdir()
    assert main([str(tmp_path)]) == EXIT_NOT_CHECKED
    assert "is not a broker's data directory" in capsys.readouterr().err
    assert not (tmp_path / "lock").exists()
