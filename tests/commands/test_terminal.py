"""Foreign text must not control the terminal, and is unchanged when written to a file."""

import contextlib
import io
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pybroker.client import Client
from pybroker.commands.admin import main as admin
from pybroker.commands.messages.receiving import Screen
from pybroker.commands.messages.shown import Look, Shown
from pybroker.commands.terminal import for_reader, write_similar_signs
from pybroker.process.cli import main
from pybroker.testing import RunningBroker

EVIL = "a\x1b]0;title\x07\x9b2J\rb\u202ec\x7f\0"
SHOWN = r"a\x1b]0;title\x07\x9b2J\rb\u202ec\x7f\x00"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_commands_of_a_terminal_are_shown_escaped() -> None:
    assert for_reader(Terminal(), EVIL) == SHOWN
    for text in ("", "grüße\n\t😀", '{"a": 1}'):
        assert for_reader(Terminal(), text) == text


def test_a_file_gets_what_was_sent() -> None:
    assert for_reader(io.StringIO(), EVIL) == EVIL


@pytest.mark.parametrize(("stream", "text"), [(Terminal, SHOWN), (io.StringIO, EVIL)])
def test_a_message_is_shown_so_with_all_that_it_has(
    monkeypatch: pytest.MonkeyPatch, stream: type[io.StringIO], text: str
) -> None:
    monkeypatch.setattr(sys, "stdout", stream())
    message = Shown(EVIL.encode(), EVIL, {EVIL: EVIL}, producer_name=EVIL, ordering_key=b"\x1b")
    Screen(Look(metadata=True)).show(message)
    said = sys.stdout.getvalue()  # type: ignore[attr-defined]
    assert said.count(text) == 5
    assert ("\x1b" in said) == (stream is io.StringIO)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_an_output_without_our_signs_gets_similar_ones(encoding: str) -> None:
    written = io.BytesIO()
    stream = io.TextIOWrapper(written, encoding=encoding)
    write_similar_signs(stream, io.StringIO())
    print("a … b → c \N{SNOWMAN}", file=stream, flush=True)
    assert written.getvalue() == rb"a ... b -> c \u2603" + b"\n"


@pytest.mark.parametrize(
    "words", [["standalone", "--help"], ["doctor"], ["produce", "--help"], ["admin", "--help"]]
)
def test_a_command_says_everything_on_a_latin_1_terminal(
    words: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="latin-1"))
    monkeypatch.chdir(tmp_path)
    with contextlib.suppress(SystemExit):
        main(words)
    sys.stdout.flush()
    assert len(written.getvalue().splitlines()) > 5


def test_what_peek_and_admin_show_on_a_terminal_commands_nothing(
    broker: RunningBroker,
    client: Client,
    topic: str,
    run: Callable[..., tuple[int, str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client.create_producer(topic).send(EVIL.encode())
    monkeypatch.setattr(sys, "stdout", Terminal())
    run("peek", topic)
    words = ["--admin-url", broker.admin_url, "--format", "table", "topics", "examine-messages"]
    assert admin.main([*words, topic, "-i", "earliest", "-m", "1"]) == 0
    said = sys.stdout.getvalue()  # type: ignore[attr-defined]
    assert said.count(SHOWN) == 2
    assert "\x1b" not in said
