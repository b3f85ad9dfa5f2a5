"""eos-check finds the errors of the wrong examples, and none in the right ones.

The commands are those of examples/README.md, as typed in a checkout, and of
docs/testing-tutorial.md, as typed in a folder with only the page's pipelines. Additional options
keep them short: fewer messages, and for Spark, which starts slowly, only a few crashes.
"""

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from documents import ROOT, blocks
from one_at_a_time import one_at_a_time
from typed_commands import environment_with_pybroker

from pybroker.spark.jars import official_client_jars

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

LIMIT_S = 1000.0  # for a command that hangs
PAGE = "docs/testing-tutorial.md"
EXAMPLES = ROOT / "examples"
SHORT = "--messages 4 --quick --run-limit 600"


def typed(document: str) -> dict[str, str]:
    """The commands of the document's blocks, by the pipeline that each runs."""
    found = {}
    for block in blocks(ROOT / document):
        for line in block.text.replace("\\\n", " ").splitlines():
            pipeline = re.search(r"(\w+\.(?:py|java)) \{(?:service_url|kafka_bootstrap)\}", line)
            if line.startswith("pybroker eos-check") and pipeline is not None:
                found[pipeline[1]] = line
    return found


def pipelines_of_the_page() -> dict[str, str]:
    """The pipelines of docs/testing-tutorial.md, by the name of the equal example."""
    names = {code_of(path.read_text()): path.name for path in EXAMPLES.glob("*.py")}
    programs = [each.text for each in blocks(ROOT / PAGE) if each.language == "python"]
    return {names[code]: text for text in programs if (code := code_of(text)) in names}


def code_of(program: str) -> str:
    """The program without comments and the docstring."""
    module = ast.parse(program)
    if ast.get_docstring(module) is not None:
        module.body.pop(0)
    return ast.unparse(module)


@pytest.fixture
def environment(tmp_path: Path) -> Mapping[str, str]:
    """The environment of a shell that finds pybroker and python."""
    environment = environment_with_pybroker(tmp_path / "bin")
    (tmp_path / "bin" / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (tmp_path / "bin" / "python").chmod(0o755)
    (tmp_path / "examples").symlink_to(EXAMPLES)
    return environment | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A folder with only the pipelines of docs/testing-tutorial.md."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    for name, program in pipelines_of_the_page().items():
        (folder / name).write_text(program)
    return folder


def checked(
    command: str, environment: Mapping[str, str], folder: Path, options: str
) -> tuple[int, str]:
    words = command.replace("pybroker eos-check", f"pybroker eos-check {SHORT} {options}", 1)
    ended = subprocess.run(
        ["bash", "-c", words],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    print(ended.stdout)
    return ended.returncode, ended.stdout


def test_the_documents_show_the_same_examples() -> None:
    examples = {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".java")}
    examples.remove("rows.py")  # a part of other commands
    overview, page = typed("examples/README.md"), typed(PAGE)
    assert set(overview) == examples
    assert set(page) == set(pipelines_of_the_page())
    words = overview["transactions.py"].replace("examples/", "").split()
    assert page["transactions.py"].split() == words


def test_sending_and_then_acknowledging_makes_duplicates(environment, elsewhere):
    code, said = checked(typed(PAGE)["send_then_ack.py"], environment, elsewhere, "")
    assert code == 1, said
    assert "doubled: " in said
    assert said.endswith("NOT EXACTLY ONCE\nreport: report.html\n")
    assert "✗" not in (page := (elsewhere / "report.html").read_text())
    assert "pipeline killed" in page


def test_deduplication_by_time_loses_messages(environment, tmp_path):
    command = typed("examples/README.md")["dedup_by_time.py"]
    code, said = checked(command, environment, tmp_path, "")
    assert code == 1, said
    assert "lost: " in said, said


def test_one_transaction_is_exactly_once(environment, elsewhere):
    code, said = checked(typed(PAGE)["transactions.py"], environment, elsewhere, "")
    assert code == 0, said
    assert "\nEXACTLY ONCE" in said


def test_sending_in_the_background_is_found_to_be_wrong(environment, tmp_path):
    """It loses and doubles; which shows first depends on the machine."""
    command = typed("examples/README.md")["aio_send_in_background.py"]
    code, said = checked(command, environment, tmp_path, "")
    assert code == 1, said
    assert "lost: " in said or "doubled: " in said, said


@pytest.mark.parametrize("pipeline", ["aio_transactions.py", "database_once.py"])
def test_other_right_ones_have_no_counter_example_among_the_first_crashes(
    environment, tmp_path, pipeline
):
    """All kinds of crash of one program are enough here: those of transactions.py."""
    command = typed("examples/README.md")[pipeline]
    code, said = checked(command, environment, tmp_path, "--time-limit 1")
    assert code == 2, said
    assert "no crash that was tried broke a promise" in said


@pytest.mark.parametrize(
    ("pipeline", "promise"),
    [("database_then_topic.py", "doubled: eos-"), ("topic_then_database.py", "partial: eos-")],
)
def test_two_commits_with_a_database_are_not(environment, tmp_path, pipeline, promise):
    command = typed("examples/README.md")[pipeline]
    code, said = checked(command, environment, tmp_path, "")
    assert code == 1, said
    assert promise in said and " on the rows " in said


def test_a_kafka_client_s_offsets_beside_its_transaction_make_duplicates(environment, tmp_path):
    command = typed("examples/README.md")["kafka_offsets_aside.py"]
    code, said = checked(command, environment, tmp_path, "")
    assert code == 1, said
    assert "doubled: " in said


def test_a_kafka_client_s_offsets_in_its_transaction_are_exactly_once(environment, tmp_path):
    command = typed("docs/kafka.md")["kafka_transactions.py"]
    code, said = checked(command, environment, tmp_path, "")
    assert code == 0, said
    assert "\nEXACTLY ONCE" in said


def folder_of_jars(folder: Path) -> Path:
    official_client_jars(folder)
    return folder


@pytest.fixture
def jars(tmp_path: Path) -> None:
    """The official Java client's jars, where the commands expect them."""
    with one_at_a_time("jars") as folder:
        shutil.copytree(folder_of_jars(folder / "client"), tmp_path / "jars")


@pytest.mark.java
@pytest.mark.usefixtures("jars")
def test_acknowledging_before_sending_loses_messages(environment, tmp_path):
    command = typed("examples/README.md")["AckBeforeSend.java"]
    code, said = checked(command, environment, tmp_path, "")
    assert code == 1, said
    assert "lost: " in said, said


@pytest.mark.java
@pytest.mark.usefixtures("jars")
def test_a_transaction_of_the_official_java_client_has_no_counter_example_among_the_first_crashes(
    environment, tmp_path
):
    command = typed("examples/README.md")["Transactions.java"]
    code, said = checked(command, environment, tmp_path, "--time-limit 1")
    assert code == 2, said
    assert "no crash that was tried broke a promise" in said


@pytest.mark.spark
def test_spark_with_exactly_once_has_no_counter_example_among_the_first_crashes(
    environment, tmp_path
):
    """All kinds would take minutes. The command names the missing ones, and says that it found
    nothing.
    """
    command = typed("examples/README.md")["spark_exactly_once.py"]
    code, said = checked(command, environment, tmp_path, "--time-limit 1")
    assert code == 2, said
    assert "no crash that was tried broke a promise" in said
    assert re.search(r"Choose --time-limit \d+,", said)
    assert said.endswith("\nCOULD NOT BE JUDGED\n")
