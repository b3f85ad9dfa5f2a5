"""The program pulsar-client and pybroker's commands: the same arguments, the same output."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from official_admin import admin_jars
from official_java import java_gateway

import pybroker.testing
from pybroker.commands.messages.main import parser
from pybroker.process.cli import main
from pybroker.testing import RunningBroker

pytestmark = [pytest.mark.java, pytest.mark.slow]

RECORD = '{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}'


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with pybroker.testing.broker() as running:
        yield running


@pytest.fixture(scope="module")
def gateway() -> Iterator[Any]:
    with java_gateway(admin_jars()) as found:
        yield found


class Tool:
    def __init__(self, gateway: Any, service_url: str) -> None:
        self._gateway, self._jvm = gateway, gateway.jvm
        settings = self._jvm.java.util.Properties()
        settings.setProperty("brokerServiceUrl", service_url)
        self.tool = self._jvm.org.apache.pulsar.client.cli.PulsarClientTool(settings)

    def run(self, *words: str) -> tuple[int, str]:
        out = self._jvm.java.io.ByteArrayOutputStream()
        self._jvm.java.lang.System.setOut(self._jvm.java.io.PrintStream(out, True))
        array = self._gateway.new_array(self._jvm.java.lang.String, len(words))
        for place, word in enumerate(words):
            array[place] = word
        return self.tool.run(array), str(out.toString())

    def options(self, command: str) -> set[str]:
        kind = self.tool.getClass()
        (field,) = (each for each in kind.getDeclaredFields() if each.getName() == "commander")
        field.setAccessible(True)
        found = field.get(self.tool).getSubcommands().get(command).getCommandSpec()
        return {name for option in found.options() for name in option.names()}


@pytest.fixture
def tool(gateway: Any, broker: RunningBroker) -> Tool:
    return Tool(gateway, broker.service_url)


@pytest.fixture
def ours(broker: RunningBroker, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    def run(*words: str) -> tuple[int, str]:
        return main(["client", "--url", broker.service_url, *words]), capsys.readouterr().out

    return run


@pytest.mark.parametrize("command", ["produce", "consume", "read"])
def test_every_option_of_the_program_is_ours(tool: Tool, command: str) -> None:
    (commands,) = (each for each in parser()._actions if each.dest == "command")
    assert commands.choices is not None
    known = {
        name for action in commands.choices[command]._actions for name in action.option_strings
    }  # type: ignore[call-overload]
    assert tool.options(command) - known == set()


LOOKS = [[], ["--hex", "-pm", "false"], ["-mp"]]


@pytest.mark.parametrize("look", LOOKS, ids=lambda look: "".join(look))
@pytest.mark.parametrize("way", ["theirs", "ours"])
def test_messages_of_either_look_the_same_in_both(
    tool: Tool, ours: Callable[..., Any], way: str, look: list[str]
) -> None:
    topic = f"looks-{way}-{''.join(look)}"
    produce = tool.run if way == "theirs" else ours
    words = ["-k", "key", "-p", "x=1", "-m", "a,bé", "-db"]
    assert produce("produce", topic, *words)[0] == 0
    consume = ["consume", topic, "-n", "2", "-p", "Earliest", *look]
    said = [tool.run(*consume, "-s", "theirs"), ours(*consume, "-s", "ours")]
    assert said[0] == said[1]
    assert said[0][1].count("got message") == 2
    read = ["read", topic, "-m", "earliest", "-n", "2", *look]
    assert tool.run(*read) == ours(*read)


@pytest.mark.parametrize(
    "words",
    [
        ["-vs", "string", "-m", "a"],
        ["-vs", f"avro:{RECORD}", "-m", '{"a":1}'],
        ["-vs", f"json:{RECORD}", "-m", '{"a":1}'],
        ["-kvet", "inline", "-kvk", "k", "-m", "v"],
        ["-kvet", "separated", "-kvk", "k", "-m", "v"],
        ["-kvet", "inline", "-kvk", "k", "-vs", "string", "-m", "v"],
    ],
    ids=["string", "avro", "json", "inline", "separated", "inline strings"],
)
def test_schemas_are_the_same_from_both(
    tool: Tool, ours: Callable[..., Any], broker: RunningBroker, words: list[str]
) -> None:
    """So each can produce to a topic of the other, and the received bytes are the same."""
    topic = "schema-" + "".join(each for each in "-".join(words) if each.isalnum())
    for produce in (tool.run, ours, tool.run):
        assert produce("produce", topic, "-s", "#", *words)[0] == 0
    consume = ["consume", topic, "-s", "s", "-n", "3", "-p", "Earliest", "--hex", "-pm", "false"]
    code, out = ours(*consume)
    lines = [line.partition("key:")[2] for line in out.splitlines() if "content:" in line]
    assert code == 0
    assert len(lines) == 3
    assert len(set(lines)) == 1
