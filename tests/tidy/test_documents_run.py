"""Each code block of README and docs runs as typed, in order, within a time limit.

A block that starts a broker starts it, and the following blocks use it. Only its ports differ from
the typed ones, because the usual ones may be taken. Installation commands are checked, not run.
"""

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from documents import (
    DOCUMENTS,
    EXAMPLES,
    NOT_RUN,
    OUTPUT,
    PRINTED,
    ROOT,
    RUNS_IN,
    Block,
    all_blocks,
    blocks,
    not_printed,
)
from left_out import BLOCKS
from typed_commands import environment_with_pybroker

LIMIT_S = 60.0
_READY = re.compile(r"pybroker ready (pulsar://localhost:\d+) (http://localhost:\d+)\n")
_USUAL = "pulsar://localhost:6650", "http://localhost:8080", "ws://localhost:8080"
_EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


_HAVE_DATA = ("docs/upgrading.md",)  # these pages assume `data` and its copy `backup`


class Reader:
    """Types a document's commands, in its own folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._broker: subprocess.Popen[str] | None = None
        self._urls = _USUAL
        self._printed = ""  # by the last block
        self._environment = environment_with_pybroker(folder / "bin")

    def run(self, block: Block) -> None:
        if block.declared == PRINTED:
            line = not_printed(block.text, self._printed)
            assert line is None, f"{block}: {line!r} is not printed:\n{self._printed}"
            return
        self._printed = ""
        if block.language == "python":
            self._run(block, [sys.executable, "-c", self._here(block.text)])
            return
        assert block.language == "", f"{block}: nobody knows how to run {block.language}"
        for line in block.text.replace("\\\n", " ").splitlines():
            if line.startswith("pip install "):
                _check_extra(line)
            elif line.startswith("pybroker standalone"):
                self._start(line)
            elif line:
                self._run(block, ["bash", "-o", "pipefail", "-c", self._here(line)])

    def _here(self, text: str) -> str:
        for usual, mine in zip(_USUAL, self._urls, strict=True):
            text = text.replace(usual, mine)
        return text

    def _run(self, block: Block, command: list[str]) -> None:
        try:
            ended = subprocess.run(
                command,
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"{block} waits for ever: {command[-1]}\n{error.output}") from None
        assert ended.returncode == 0, f"{block}: {command[-1]}\n{ended.stdout}"
        self._printed += ended.stdout

    def _start(self, line: str) -> None:
        self.stop()
        words = shlex.split(line)
        self._broker = subprocess.Popen(
            [*words, "--port", "0", "--http-port", "0"],
            cwd=self._folder,
            env=self._environment,
            executable=str(self._folder / "bin/pybroker"),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._broker.stdout is not None
        ready = _READY.fullmatch(self._broker.stdout.readline())
        assert ready is not None, f"{line} does not start a broker"
        self._urls = ready[1], ready[2], ready[2].replace("http://", "ws://")
        settings = self._folder / "client.conf"
        settings.write_text(f"brokerServiceUrl={ready[1]}\nwebServiceUrl={ready[2]}\n")
        self._environment["PULSAR_CLIENT_CONF"] = str(settings)

    def have_data(self, first: str, *copies: str) -> None:
        """Creates a data directory, as left by a stopped broker, and copies of it."""
        self._start(f"pybroker standalone --data-dir {first}")
        self.stop()
        for copy in copies:
            shutil.copytree(self._folder / first, self._folder / copy)

    def stop(self) -> None:
        if self._broker is not None:
            self._broker.terminate()
            assert self._broker.wait(30) == 0
            assert self._broker.stdout is not None
            self._broker.stdout.close()
            self._broker = None


def _check_extra(line: str) -> None:
    found = re.fullmatch(r"pip install (?:\.|'\.\[(\w+)\]')", line)
    assert found is not None, line
    assert found[1] is None or found[1] in _EXTRAS, line


@pytest.mark.slow
@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_what_is_typed_as_it_stands_runs_and_ends(document: Path, tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    try:
        if str(document.relative_to(ROOT)) in _HAVE_DATA:
            reader.have_data("data", "backup")
        for block in blocks(document):
            if block.declared in ("", PRINTED):
                reader.run(block)
    finally:
        reader.stop()


@pytest.mark.parametrize("block", [b for b in all_blocks() if b.declared], ids=str)
def test_a_block_that_is_left_out_says_why_and_that_is_so(block: Block) -> None:
    if (elsewhere := RUNS_IN.fullmatch(block.declared)) is not None:
        test, path = (ROOT / elsewhere[1]).read_text(), Path(block.document)
        assert (path.name if path.parts[0] in ("README.md", "docs") else str(path)) in test
        assert re.search(r"^(async )?def test_", test, re.MULTILINE)
    elif (reason := NOT_RUN.fullmatch(block.declared)) is not None:
        assert reason[1] in BLOCKS, f"reasons are {', '.join(BLOCKS)}"
        assert re.search(BLOCKS[reason[1]].pattern, block.text, re.MULTILINE)
    else:
        assert block.declared in (OUTPUT, PRINTED)
        assert not re.search(r"^(pybroker|pip|curl|seq|import|from) ", block.text, re.MULTILINE)


def test_the_examples_blocks_run_in_tests_of_their_own() -> None:
    assert all(block.declared for document in EXAMPLES for block in blocks(document))


def test_each_reason_for_leaving_blocks_out_is_one_of_some_block() -> None:
    found = (NOT_RUN.fullmatch(block.declared) for block in all_blocks())
    assert {reason[1] for reason in found if reason is not None} == set(BLOCKS)


def test_every_fence_of_a_document_is_found() -> None:
    for document in (*DOCUMENTS, *EXAMPLES):
        fences = re.findall(r"^ *```", document.read_text(), re.MULTILINE)
        assert len(fences) == 2 * len(blocks(document)), document.name


def test_examples_are_fenced() -> None:
    """An indented one would neither be found nor run."""
    for document in (*DOCUMENTS, *EXAMPLES):
        outside = re.sub(r"^ *```.*?^ *```$", "", document.read_text(), flags=re.M | re.S)
        assert not re.findall(r"\n\n    \S.*", outside), document.name


def test_most_of_the_readme_runs() -> None:
    left_out = [b for b in blocks(ROOT / "README.md") if b.declared]
    assert {b.declared for b in left_out} == {
        PRINTED,
        "runs in tests/tidy/test_make_targets.py",
        "runs in tests/demo/test_quick_demo.py",
    }


def test_what_a_page_shows_as_printed_was_printed() -> None:
    printed = "a client's line\nreceived order 7 at 12:03\ndone\n"
    assert not_printed("received order 7 at …\ndone\n", printed) is None
    assert not_printed("done\nreceived order 7 at …\n", printed) == "received order 7 at …"
    assert not_printed("ID    TIME\n(3)   …\n", "ID        TIME\n(13)x\n(3)       4 s\n") is None
    assert not_printed("received order 8 at …\n", printed) == "received order 8 at …"


def test_a_block_that_waits_for_ever_is_found(tmp_path: Path) -> None:
    global LIMIT_S
    reader, before = Reader(tmp_path), LIMIT_S
    LIMIT_S = 0.2
    try:
        with pytest.raises(AssertionError, match="waits for ever: sleep 60"):
            reader.run(Block("README.md", 1, "", "sleep 60\n", ""))
        with pytest.raises(AssertionError, match=r"README\.md:1: false"):
            reader.run(Block("README.md", 1, "", "false\n", ""))
    finally:
        LIMIT_S = before
