"""The user's settings, and the messages that a run publishes."""

import re
from dataclasses import dataclass
from typing import Final

_ID: Final = "eos-{:06d}"
ID_PATTERN: Final = re.compile(rb"eos-\d{6}")
_CLEAN_LIMIT_S: Final = 120.0
KAFKA_BOOTSTRAP: Final = "{kafka_bootstrap}"
WAVES: Final = 2  # the input is published in this many parts, so that some input follows a crash


@dataclass(frozen=True, slots=True)
class Input:
    """One input message. Its value contains `id` if the payload does."""

    id: str
    key: str
    value: bytes


@dataclass(frozen=True, slots=True)
class Places:
    """Of one run, for its pipeline. `kafka_bootstrap` is empty without Kafka's clients."""

    service_url: str
    admin_url: str
    kafka_bootstrap: str
    directory: str


@dataclass(frozen=True, slots=True)
class Settings:
    command: tuple[str, ...]
    input: str = "eos-input"
    outputs: tuple[str, ...] = ("eos-output",)
    messages: int = 24  # with fewer, a series of crashes starts a slow pipeline more times
    keys: int = 3
    payload: str = '{"id": "{id}", "key": "{key}", "amount": {n}}'
    identity: re.Pattern[bytes] | None = None  # the part of an output's value that is compared
    ordered: bool = False  # the order of each key's outputs is a promise too
    rows: tuple[str, ...] = ()  # a command that prints rows to compare, as it does messages
    judge: tuple[str, ...] = ()  # a command that judges instead of the comparison
    settle_s: float = 3.0
    run_limit_s: float | None = None  # of each run; None: derived from the runs without faults
    directory: str | None = None  # parent of the runs' directories; None: the default
    config: str = ""  # broker.conf of the broker
    kafka: bool = False  # the pipeline has a Kafka client
    records_classes: bool = False  # JVMs write an archive of their classes, which takes seconds

    @property
    def clean_limit_s(self) -> float:
        """The limit of the runs without faults."""
        return _CLEAN_LIMIT_S if self.run_limit_s is None else self.run_limit_s

    def inputs(self) -> list[Input]:
        made = []
        for n in range(1, self.messages + 1):
            number, key = _ID.format(n), f"key-{(n - 1) % self.keys + 1}"
            value = self.payload.replace("{id}", number).replace("{key}", key)
            made.append(Input(number, key, value.replace("{n}", str(n)).encode()))
        return made

    def words(self, command: tuple[str, ...], places: "Places") -> list[str]:
        """The words of a command, with placeholders replaced."""
        named = {
            "{service_url}": places.service_url,
            "{admin_url}": places.admin_url,
            KAFKA_BOOTSTRAP: places.kafka_bootstrap,
            "{input}": self.input,
            "{directory}": places.directory,
            "{output}": self.outputs[0],
        }
        named |= {f"{{output{n}}}": each for n, each in enumerate(self.outputs, start=1)}
        words = []
        for word in command:
            for name, value in named.items():
                word = word.replace(name, value)
            words.append(word)
        return words

    def environment(self, places: "Places") -> dict[str, str]:
        kafka = {"KAFKA_BOOTSTRAP_SERVERS": places.kafka_bootstrap} if self.kafka else {}
        return kafka | {
            "PULSAR_SERVICE_URL": places.service_url,
            "PULSAR_ADMIN_URL": places.admin_url,
            "EOS_INPUT": self.input,
            "EOS_OUTPUT": self.outputs[0],
            "EOS_OUTPUTS": " ".join(self.outputs),
            "EOS_DIRECTORY": places.directory,
        }
