"""Verdicts of `pybroker simulate` and `pybroker eos-check` for programs: JSON, and JUnit's XML."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from pybroker.base.verdict_files import Verdict, as_json, as_junit
from pybroker.eos_check.exploration import CounterExample, Explored
from pybroker.eos_check.judgement import Breach, Promise
from pybroker.eos_check.run_result import RunResult
from pybroker.eos_check.settings import Settings
from pybroker.eos_check.verdict import report
from pybroker.process.cli import main

SCENARIO = """
import asyncio
from pybroker.client.aio import Client, InitialPosition
async def copy(url, broken):
    async with Client(url) as client:
        producer = await client.create_producer("copies")
        orders = await client.subscribe("orders", "s", initial_position=InitialPosition.Earliest)
        while True:
            order = await orders.receive()
            await producer.send(b"wrong" if broken else order.data())
            await orders.acknowledge(order)
def right(sim):
    sim.input("orders", 3)
    sim.process("copier", copy, sim.service_url, False)
    sim.output("copies")
    sim.faults("slow disk", "clock")
def wrong(sim):
    right(sim)
    sim.processes.clear()
    sim.process("copier", copy, sim.service_url, True)
def mistaken(sim):
    sim.no_such_thing()
"""


def simulated(folder: Path, *arguments: str) -> tuple[int, dict[str, object], ElementTree.Element]:
    (folder / "mine.py").write_text(SCENARIO)
    files = ["--json", str(folder / "v.json"), "--junit", str(folder / "v.xml")]
    target = f"{folder / 'mine.py'}:{arguments[0]}"
    code = main(["simulate", target, *arguments[1:], "--jobs", "1", *files])
    told = json.loads((folder / "v.json").read_text())
    (case,) = ElementTree.parse(folder / "v.xml").iter("testcase")
    assert told["name"] == case.get("name") == target
    assert told["exitCode"] == code
    return code, told, case


@pytest.mark.slow
def test_a_simulation_that_broke_nothing_passes(tmp_path: Path) -> None:
    code, told, case = simulated(tmp_path, "right", "--seeds", "20")
    assert code == 0
    assert told["verdict"] == "every promise was kept"
    assert set(told["faultsThatMetWork"]) <= {"slow disk", "clock"}  # type: ignore[call-overload]
    assert [child.tag for child in case] == ["system-out"]


@pytest.mark.slow
def test_a_broken_promise_is_a_failure_that_can_be_repeated(tmp_path: Path) -> None:
    code, told, case = simulated(tmp_path, "wrong", "--seeds", "2")
    assert code == 1
    assert str(told["findings"][0]).startswith("LOST: ")  # type: ignore[index]
    assert str(told["again"]).startswith("pybroker simulate ")
    (failure,) = case
    assert failure.tag == "failure"
    assert str(failure.get("message")).startswith("LOST: ")
    assert "receives 'orders-0'" in str(failure.text)


@pytest.mark.slow
def test_what_could_not_run_is_an_error(tmp_path: Path) -> None:
    code, told, case = simulated(tmp_path, "mistaken", "--seeds", "2")
    assert code == 2
    assert "no_such_thing" in str(told["findings"])
    assert [child.tag for child in case] == ["error"]


def test_a_counter_example_is_a_failure() -> None:
    written: list[Verdict] = []
    found = CounterExample(Settings(("run",)), RunResult(()), [Breach(Promise.LOST, "one lamp")])
    explored = Explored(singles=4, singles_tried=1, counter_example=found, unjudged=["log"])
    assert report(Settings(("run", "it")), explored, None, 1.5, written.append) == 1
    told = json.loads(as_json(written[0]))
    assert told["tool"] == "pybroker eos-check"
    assert told["name"] == "run it"
    assert told["findings"] == ["lost: one lamp"]
    assert told["crashes"] == {"tried": 1, "known": 4}
    assert told["notJudged"] == ["log"]
    suite = ElementTree.fromstring(as_junit(written[0])).find("testsuite")
    assert suite is not None
    assert suite.attrib["failures"] == "1"
    assert suite.attrib["time"] == "1.500"


def test_a_check_that_cannot_judge_is_an_error(tmp_path: Path) -> None:
    junit = tmp_path / "v.xml"
    words = ["eos-check", "--input", "same", "--output", "same", "--junit", str(junit)]
    assert main([*words, "--", "true"]) == 2
    (error,) = ElementTree.parse(junit).iter("error")
    assert "must be another topic" in str(error.get("message"))


@pytest.mark.parametrize("tool", ["simulate", "eos-check"])
def test_a_file_that_cannot_be_written_is_refused_before_any_run(
    tool: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = {"simulate": ["mine:scenario"], "eos-check": ["--", "true"]}[tool]
    assert main([tool, "--json", str(tmp_path / "none/v.json"), *words]) == 2
    assert "No such file or directory" in capsys.readouterr().err


def test_characters_that_xml_cannot_contain_are_replaced() -> None:
    verdict = Verdict("tool", "a\x00b", "bad", 1, findings=["\x1b[31m<&>"], text="\ud800\ufffe")
    (case,) = ElementTree.fromstring(as_junit(verdict)).iter("testcase")
    assert case.get("name") == "a\ufffdb"
    assert case[0].get("message") == "\ufffd[31m<&>"
    assert case[0].text == "\ufffd\ufffd"
