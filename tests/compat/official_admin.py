"""The program pulsar-admin, driven from Python: one JVM for all its commands.

Commands go through its own parser and its own client; the output is captured. The list of commands
comes from its parser, so none is missed.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from official_java import jars_of, java_gateway

_POM: Final = Path(__file__).with_name("java") / "pom.xml"
_BY_TOKEN: Final = "org.apache.pulsar.client.impl.auth.AuthenticationToken"


@dataclass(frozen=True, slots=True)
class Said:
    """The exit code and output of the program."""

    code: int
    out: str
    err: str


class PulsarAdmin:
    def __init__(self, gateway: Any, admin_url: str, service_url: str, token: str) -> None:
        self._jvm, self._gateway = gateway.jvm, gateway
        settings = self._jvm.java.util.Properties()
        settings.setProperty("webServiceUrl", admin_url)
        settings.setProperty("brokerServiceUrl", service_url)
        settings.setProperty("authPlugin", _BY_TOKEN)
        settings.setProperty("authParams", f"token:{token}")
        tool = self._jvm.org.apache.pulsar.admin.cli.PulsarAdminTool(settings)
        parser = tool.getClass().getDeclaredField("commander")
        parser.setAccessible(True)
        self._parser = parser.get(tool)

    def run(self, words: Sequence[str]) -> Said:
        out, err = (self._jvm.java.io.ByteArrayOutputStream() for _ in range(2))
        # New streams each time: some commands close theirs.
        self._jvm.java.lang.System.setOut(self._jvm.java.io.PrintStream(out, True))
        self._jvm.java.lang.System.setErr(self._jvm.java.io.PrintStream(err, True))
        self._parser.setOut(self._jvm.java.io.PrintWriter(out, True))
        self._parser.setErr(self._jvm.java.io.PrintWriter(err, True))
        array = self._gateway.new_array(self._jvm.java.lang.String, len(words))
        for place, word in enumerate(words):
            array[place] = word
        code = self._parser.execute(array)
        return Said(code, str(out.toString()), str(err.toString()))

    def commands(self) -> Iterator[tuple[str, str, str]]:
        """Group, command, and arguments in the format of `words_of`."""
        for group in self._parser.getSubcommands().entrySet():
            for command in group.getValue().getSubcommands().entrySet():
                yield group.getKey(), command.getKey(), _spelt(command.getValue().getCommandSpec())


def _spelt(command: Any) -> str:
    places = [_part(place.paramLabel(), place) for place in command.positionalParameters()]
    options = [
        _part("|".join(option.names()) + _type(option), option)
        for option in command.options()
        if not option.usageHelp() and not option.versionHelp()
    ]
    return " ".join([*places, *options])


def _part(text: str, argument: Any) -> str:
    text = text.replace("<<", "<").replace(">>", ">")
    return text if argument.required() else f"[{text}]"


def _type(option: Any) -> str:
    return "" if option.arity().max() == 0 else f" {option.type().getSimpleName()}"


def admin_jars() -> list[Path]:
    """The jars of the programs pulsar-admin and pulsar-client."""
    return jars_of(_POM, "admin")


@contextmanager
def pulsar_admin(admin_url: str, service_url: str, token: str) -> Iterator[PulsarAdmin]:
    with java_gateway(admin_jars()) as gateway:
        yield PulsarAdmin(gateway, admin_url, service_url, token)
