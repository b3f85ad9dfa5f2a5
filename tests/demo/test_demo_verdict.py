"""A demo that fails says which claim failed and shows the end of the log that has the reason."""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import pybroker.demo.__main__ as whole_demo
import pybroker.testing
from pybroker.client import Timeout
from pybroker.demo import lives, quick, scenes
from pybroker.demo.driver import Settings
from pybroker.demo.lives import Life, Stage, live
from pybroker.demo.processes import Driver, DriverFailed
from pybroker.demo.report import Verdict, last_lines

# Python itself says in its log that there is no such module.
FAILING_DRIVER = partial(Driver, module="pybroker.demo.of_another_day")
REASON = "No module named pybroker.demo.of_another_day"


def stage_of(directory: Path, service_url: str = "pulsar://localhost:1") -> Stage:
    broker: Any = SimpleNamespace(service_url=service_url, kills=0)
    return Stage(directory, broker, Verdict())


def test_a_failed_claim_shows_the_last_lines_of_its_process_and_where_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [f"line {number}\n" for number in range(100)]
    (tmp_path / "bad.log").write_text("".join(lines))
    (tmp_path / "good.log").write_text("nothing to see\n")
    verdict = Verdict(tmp_path / "good.log")
    verdict.claim(True, "one holds")
    verdict.claim(False, "two fails", tmp_path / "bad.log")
    verdict.claim(False, "three fails", tmp_path / "bad.log")
    verdict.print()
    printed = capsys.readouterr().out
    assert "  ok    one holds\n  FAIL  two fails\n  FAIL  three fails\n" in printed
    shown = "".join(f"  | {line}" for line in lines[-20:])
    assert f"\nThe end of {tmp_path}/bad.log:\n{shown}" in printed
    assert printed.count("line 99") == 1
    assert "line 79" not in printed
    assert "nothing to see" not in printed
    assert "NOT EXACTLY ONCE: 2 claims failed" in printed


def test_claims_that_hold_show_no_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "good.log").write_text("nothing to see\n")
    verdict = Verdict(tmp_path / "good.log")
    verdict.claim(True, "one holds")
    verdict.print()
    assert "good.log" not in capsys.readouterr().out


def test_the_end_of_a_log_is_short_whatever_was_written(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    assert last_lines(log) == []
    log.write_bytes(b"x" * 1_000_000 + b"\n\n\xff\n\nthe end")
    assert last_lines(log) == ["x" * 300, "\ufffd", "the end"]


def test_the_end_of_a_log_has_the_causes_and_not_the_frames_of_a_jvm(tmp_path: Path) -> None:
    frame = "\tat org.apache.spark.sql.$Proxy69.call(Unknown Source)\n\t... 12 more\n"
    traced = f"Exception: outer\n{frame * 40}Caused by: what happened\n{frame * 40}"
    (tmp_path / "job.log").write_text(f"{traced}  at the end\n")
    causes = ["Exception: outer", "Caused by: what happened", "  at the end"]
    assert last_lines(tmp_path / "job.log") == causes


def test_a_process_that_wrote_nothing_is_named_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    verdict = Verdict()
    verdict.claim(False, "it fails", tmp_path / "none.log")
    verdict.print()
    assert f"Nothing is in {tmp_path}/none.log" in capsys.readouterr().out


def test_a_driver_that_fails_again_and_again_is_named_with_its_last_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lives, "Driver", FAILING_DRIVER)
    settings = Settings("payments", "pulsar://localhost:1", str(tmp_path), str(tmp_path / "c"), 3)
    with pytest.raises(DriverFailed, match="payments: driver 1 failed 3 times") as failed:
        live(stage_of(tmp_path), settings, (Life(""),))
    assert failed.value.log == tmp_path / "payments-driver-1-2.log"
    assert REASON in last_lines(failed.value.log)[-1]


def test_a_driver_that_does_not_end_is_named_with_its_log(tmp_path: Path) -> None:
    driver = Driver({"seconds": 600}, tmp_path / "slow.log", module="http.server")
    try:
        with pytest.raises(DriverFailed, match="did not end within 0 s") as failed:
            driver.wait(0.0)
    finally:
        driver.kill()
    assert failed.value.log == tmp_path / "slow.log"


def test_the_claims_of_a_pipeline_are_about_its_last_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = stage_of(tmp_path)
    monkeypatch.setattr(lives, "Driver", partial(Driver, module="this"))  # prints and ends
    settings = Settings("flights", "pulsar://localhost:1", str(tmp_path), str(tmp_path / "c"), 3)
    live(stage, settings, (Life(""), Life("")))
    assert stage.verdict.holds
    assert [claim.log for claim in stage.verdict.claims] == [tmp_path / "flights-driver-2-0.log"]


def test_a_java_job_that_fails_shows_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(scenes, "official_client_jars", lambda _: [])
    monkeypatch.setattr(scenes, "_tail_numbers", lambda: ["N0000"] * 3322)  # no demo data needed
    monkeypatch.setattr(scenes, "Driver", lambda settings, log, module: FAILING_DRIVER({}, log))
    with pybroker.testing.broker() as broker:
        stage = stage_of(tmp_path, broker.service_url)
        scenes.play_java_client(stage, tmp_path / "jars")
    stage.verdict.print()
    printed = capsys.readouterr().out
    assert "FAIL  official Java client: 0 messages for 3,322 planes" in printed
    assert "its job ended with exit code 1" in printed
    assert f"The end of {tmp_path}/java-job.log:\n  | " in printed
    assert REASON in printed


@pytest.mark.parametrize("error", ["driver", "client"])
def test_a_demo_that_cannot_go_on_ends_with_the_log_of_what_failed(
    error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "driver.log"
    log.write_text("out of memory\n")

    def fails(stage: Stage, transfers: int) -> None:
        raise DriverFailed("a driver failed", log) if error == "driver" else Timeout("no answer")

    monkeypatch.setattr(whole_demo, "play_ledger", fails)
    monkeypatch.setattr(sys, "argv", ["demo", "--directory", str(tmp_path)])
    assert whole_demo.main() == 1
    printed = capsys.readouterr().out
    if error == "driver":
        assert f"The end of {log}:\n  | out of memory\n" in printed
    else:
        assert "FAIL  the demo could not go on: no answer" in printed
        assert f"The end of {tmp_path}/broker.log:\n  | " in printed
    assert f"the logs of all processes are in {tmp_path}" in printed


def test_the_quick_demo_shows_the_log_of_a_service_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: Callable[..., Any] = quick.subprocess.Popen

    def popen(command: list[str], **options: Any) -> Any:
        return started([word.replace("payment_service", "nothing") for word in command], **options)

    monkeypatch.setattr(quick, "subprocess", SimpleNamespace(Popen=popen, PIPE=-1, DEVNULL=-3))
    words = ["--orders", "300", "--directory", str(tmp_path), "--exit"]
    assert quick.run(quick.demo_parser().parse_args(words)) == 2
    printed = capsys.readouterr().err
    assert "pybroker demo: the payment service exited unexpectedly" in printed
    assert f"The end of {tmp_path}/service.log:\n  | " in printed
    assert "No module named pybroker.demo.nothing" in printed
