"""`pybroker produce` and related commands as processes, and the brokers they connect to."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from message_words import command, contents, stored

from pybroker.client import Client, InitialPosition, MessageId
from pybroker.commands.messages.main import parser
from pybroker.process.cli import main
from pybroker.testing import RunningBroker

pytestmark = pytest.mark.slow  # starts processes

Run = Callable[..., tuple[int, str, str]]


# -- the process


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_who_is_told_to_stop_acknowledges_what_was_shown(
    broker: RunningBroker, client: Client, topic: str, number: signal.Signals, code: int
) -> None:
    client.subscribe(topic, "s", initial_position=InitialPosition.Earliest).close()
    for body in (b"a", b"b"):
        client.create_producer(topic).send(body)
    with command(broker, "consume", topic, "-s", "s", "-n", "0") as consuming:
        assert consuming.stdout is not None
        shown = [consuming.stdout.readline() for _ in range(4)]
        assert [b"content:a" in shown[1], b"content:b" in shown[3]] == [True, True]
        consuming.send_signal(number)
        _, err = consuming.communicate(timeout=60)
    word = b"pybroker: interrupted\n" if number is signal.SIGINT else b""
    assert (consuming.returncode, err) == (code, b"2 messages successfully consumed\n" + word)
    assert broker.backlog(topic, "s") <= 1  # the last message may just have been shown


@pytest.mark.parametrize("words", [[], ["--regex"]])
def test_who_consumes_with_a_new_subscription_hears_that_it_begins_at_the_end(
    broker: RunningBroker, client: Client, topic: str, words: list[str]
) -> None:
    producer = client.create_producer(topic)
    producer.send(b"earlier")
    with command(broker, "consume", topic, "-s", "new", *words) as consuming:
        assert consuming.stderr is not None
        hint = consuming.stderr.readline()
        assert b"if subscription new is new, it begins at the end of" in hint
        assert b"-p Earliest" in hint
        producer.send(b"later")
        out, err = consuming.communicate(timeout=60)
    assert b"content:later" in out
    assert err == b"1 messages successfully consumed\n"


def test_a_reader_of_our_output_that_leaves_ends_the_command_quietly(
    broker: RunningBroker, client: Client, topic: str
) -> None:
    producer = client.create_producer(topic, batching_enabled=True, block_if_queue_full=True)
    for _ in range(2000):
        producer.send_async(bytes(100))
    producer.flush()
    with command(broker, "read", topic, "-m", "earliest", "-n", "0") as reading:
        assert reading.stdout is not None
        assert reading.stderr is not None
        reading.stdout.readline()
        reading.stdout.close()
        assert reading.wait(60) == 141
        assert b"Error" not in reading.stderr.read()


@pytest.mark.parametrize(
    ("words", "code"),
    [("brokers get-runtime-config", 141), ("--completion bash", 141), ("topics --help", 0)],
)
def test_a_reader_of_an_admins_answer_that_has_left_is_no_error(
    broker: RunningBroker, words: str, code: int
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    asking = [sys.executable, "-m", "pybroker", "admin", "--admin-url", broker.admin_url]
    ended = subprocess.run([*asking, *words.split()], stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (code, b"")


def test_a_url_whose_port_is_none_is_named(capsys: pytest.CaptureFixture[str], topic: str) -> None:
    for url in ("pulsar://localhost:abc", "pulsar://a:6650,b:0", "pulsar://[::1]:70000"):
        assert main(["produce", topic, "-m", "a", "--url", url]) == 1
        assert "is not a port (1 to 65535)" in capsys.readouterr().err


def test_a_terminal_of_fewer_characters_shows_what_it_can(
    broker: RunningBroker, client: Client, topic: str
) -> None:
    client.subscribe(topic, "s", initial_position=InitialPosition.Earliest).close()
    client.create_producer(topic).send("a\N{SNOWMAN}".encode())
    ascii_only = os.environ | {"PYTHONIOENCODING": "ascii"}
    with command(broker, "consume", topic, "-s", "s", env=ascii_only) as consuming:
        out, err = consuming.communicate(timeout=60)
    assert (consuming.returncode, err) == (0, b"1 messages successfully consumed\n")
    assert b"content:a\\u2603\n" in out


def test_help_needs_no_broker_and_no_client() -> None:
    script = "import sys, pybroker.process.cli; print('pybroker.client' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert ended.stdout == b"False\n"


def test_general_options_may_stand_before_the_command() -> None:
    words = ["--url", "pulsar://a:1", "produce", "t", "-m", "x"]
    before, behind = parser().parse_args(words), parser().parse_args([*words[2:], *words[:2]])
    assert before == behind


def test_the_words_of_pulsar_client_are_taken(
    broker: RunningBroker, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    service = ["client", "--url", broker.service_url]
    assert main([*service, "produce", topic, "-m", "a"]) == 0
    assert main([*service, "consume", topic, "-s", "s", "-p", "Earliest"]) == 0
    assert contents(capsys.readouterr().out) == ["a"]


def test_as_with_pulsar_client_each_message_is_an_entry(
    broker: RunningBroker, client: Client, topic: str
) -> None:
    words = ["--url", broker.service_url, "produce", topic, "-m", "a,b,c"]
    assert main(["client", *words]) == 0
    reader = client.create_reader(topic, MessageId.earliest)
    ids = [reader.read_next().message_id() for _ in "abc"]
    assert [(each.entry_id(), each.batch_index()) for each in ids] == [(0, -1), (1, -1), (2, -1)]
    assert main(["produce", topic, "-m", "d,e", *words[:2]]) == 0
    assert [reader.read_next().message_id().entry_id() for _ in "de"] == [3, 3]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--url", "ws://localhost:8080"], "is not a service URL"),
        (["--proxy-url", "pulsar://p:1"], "--proxy-url is not supported"),
        (["--client-conf", "/nowhere"], "/nowhere cannot be read"),
        (["--auth-plugin", "Kerberos"], "unknown --auth-plugin"),
    ],
)
def test_a_service_that_cannot_be_reached_so_is_told(run: Run, words: list[str], said: str) -> None:
    code, _, err = run("produce", "t", "-m", "a", *words)
    assert (code, said in err) == (1, True), err


def test_client_conf_says_what_the_command_line_does_not(
    broker: RunningBroker,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    client: Client,
) -> None:
    conf = tmp_path / "client.conf"
    conf.write_text(f"# ours\nwebServiceUrl=\nauthPlugin=\nbrokerServiceUrl={broker.service_url}\n")
    assert main(["produce", topic, "-m", "a", "--client-conf", str(conf)]) == 0
    monkeypatch.setenv("PULSAR_CLIENT_CONF", str(conf))
    assert main(["produce", topic, "-m", "b"]) == 0
    assert stored(client, topic) == [b"a", b"b"]
