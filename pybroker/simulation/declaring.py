"""The declarations of a scenario: processes, inputs, outputs, checks, and possible faults.

    async def copier(service_url):
        async with Client(service_url) as client:
            ...

    def scenario(sim):
        sim.input("orders", 12)
        sim.process("copier", copier, sim.service_url)
        sim.output("invoices")

The function is called once for each seed. It only declares: nothing runs before it returns.
"""

import inspect
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.configuration.config_file import parse_setting
from pybroker.base.errors import InvalidTopicName
from pybroker.base.names import TopicName
from pybroker.simulation.broker import KAFKA_PORT, PORT

KINDS: Final[Mapping[str, str]] = {
    "crash": "one of your processes ends at an await, and is started again",
    "pause": "one of your processes is stopped for a while, as by its machine, and goes on",
    "broker crash": "the broker ends, now or at a disk operation, perhaps with its machine",
    "broker stop": "the broker is stopped gracefully, and started again",
    "reset": "a connection of your processes is reset",
    "silence": "nothing arrives any more on a connection of your processes",
    "stall": "nothing arrives on any connection for a while",
    "disk full": "the broker's disk is full for a while",
    "disk fails": "a sync of the broker's disk fails",
    "slow disk": "the broker's disk is slow for a while",
    "clock": "the clock of one of your processes, or of the broker, is set",
}

Check = Callable[[Mapping[str, "list[Record]"]], "Awaitable[object] | object"]
AnyCheck = TypeVar("AnyCheck", bound=Check)
Expect = Callable[[bytes], "bytes | str | Iterable[bytes | str]"]


class ScenarioError(Exception):
    """The scenario cannot be simulated; the message says what to change."""


@dataclass(frozen=True, slots=True)
class Record:
    """A message of a topic at the end of the simulation."""

    topic: str  # the declared name
    data: bytes
    key: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)
    position: tuple[int, int, int] = (0, 0, 0)  # ledger, entry, index in a batch (or -1)
    partition: str = ""  # the full name of the topic, or of its partition


class Logs(dict[str, list[Record]]):
    """The messages of each declared topic."""

    def __missing__(self, topic: str) -> list[Record]:
        declared = ", ".join(self) or "none"
        raise ScenarioError(
            f"a check asks for the topic {topic!r}, which is not declared: call "
            f"sim.topic({topic!r}). Declared: {declared}"
        )


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    name: str
    function: Callable[..., Awaitable[object]]
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class InputSpec:
    topic: str
    messages: tuple[tuple[str, bytes], ...]  # key (may be empty), data
    duplicates: bool = False  # after a failure, a message may be in the topic twice


@dataclass(frozen=True, slots=True)
class OutputSpec:
    topic: str
    expect: Expect | None
    ordered: bool


class Simulation:
    """The argument `sim` of a scenario."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.service_url = f"pulsar://127.0.0.1:{PORT}"
        self.kafka_bootstrap = f"127.0.0.1:{KAFKA_PORT}"  # with sim.broker(kafka_service_port=0)
        self.rng = random.Random(f"{seed}/scenario")  # for the scenario's own random choices
        self.processes: list[ProcessSpec] = []
        self.inputs: list[InputSpec] = []
        self.outputs: list[OutputSpec] = []
        self.topics: list[str] = []
        self.checks: list[Check] = []
        self.kinds: tuple[str, ...] = tuple(KINDS)
        self.settings: dict[str, Any] = {}

    def process(
        self, name: str, function: Callable[..., Awaitable[object]], *args: Any, **kwargs: Any
    ) -> None:
        """Declares a process: `await function(*args, **kwargs)` on its own event loop.

        It is restarted after a crash, and one second after an exception. An AssertionError ends it
        and breaks a promise. Several processes may have the same function, but not the same name.
        """
        _require_name(name, "process")
        if not callable(function):
            getattr(function, "close", lambda: None)()  # a coroutine that will not be awaited
            raise ScenarioError(
                f"process {name!r} is not a function: write sim.process({name!r}, function, …) "
                "with its arguments after it, and do not call it"
            )
        if any(known.name == name for known in self.processes):
            raise ScenarioError(f"two processes are called {name!r}: give each its own name")
        self.processes.append(ProcessSpec(name, function, args, kwargs))

    def input(
        self,
        topic: str,
        messages: int | Iterable[bytes | str | tuple[str, bytes | str]] = 12,
        keys: int = 3,
        duplicates: bool = False,
    ) -> None:
        """Declares messages that are published while your processes run, once the topic has a
        subscription or a reader. Each message is published exactly once. With `duplicates`, the
        publisher sends a message again after a failure though it may be stored, as most producers
        do; one that is stored twice may be processed once or twice.

        A number creates that many messages, `orders-0`, `orders-1`, …, with `keys` different keys.
        Otherwise give the data of each message, or its key and data.
        """
        _require_name(topic, "topic")
        if isinstance(messages, int):
            if messages < 1:
                raise ScenarioError(f"the input {topic!r} has {messages} messages: give at least 1")
            plain = topic.rpartition("/")[2]
            messages = [
                (f"key-{n % keys}" if keys else "", f"{plain}-{n}") for n in range(messages)
            ]
        pairs = [each if isinstance(each, tuple) else ("", each) for each in messages]
        coded = tuple((key, encoded(data)) for key, data in pairs)
        self.inputs.append(InputSpec(topic, coded, duplicates))

    def output(self, topic: str, expect: Expect | None = None, ordered: bool = True) -> None:
        """Declares a topic that is judged at the end.

        `expect(data)` returns the messages that one input produces here: the data of one message,
        or a list of data, which may be empty. Without it, each input produces one message that
        contains its data. `ordered`: messages with the same key keep the order of the inputs.
        """
        self.outputs.append(OutputSpec(topic, expect, ordered))

    def topic(self, name: str) -> None:
        """Declares a topic that only your checks judge, such as a topic of sums."""
        self.topics.append(name)

    def check(self, function: AnyCheck) -> AnyCheck:
        """Declares a function, async or not, that asserts something at the end. It gets the
        messages of each declared input, output and topic, as lists of `Record`. May be used as a
        decorator.
        """
        if not callable(function):
            raise ScenarioError(f"sim.check takes a function, not {function!r}")
        self.checks.append(function)
        return function

    def faults(self, *kinds: str) -> None:
        """Allows only these kinds of faults, of `KINDS`; without arguments, no faults at all."""
        for kind in kinds:
            if kind not in KINDS:
                raise ScenarioError(f"there is no fault {kind!r}; there are: {', '.join(KINDS)}")
        self.kinds = kinds

    def broker(self, **settings: Any) -> None:
        """Sets fields of BrokerConfig, as `pybroker.testing.broker` does."""
        unknown = [name for name in settings if name not in BrokerConfig.__dataclass_fields__]
        if unknown:
            raise ScenarioError(f"BrokerConfig has no field {unknown[0]!r}")
        for name, value in settings.items():
            _require_value(name, value)
        self.settings.update(settings)


def declared(scenario: Callable[[Simulation], object], seed: int) -> Simulation:
    """The scenario's declarations for this seed. Raises ScenarioError."""
    sim = Simulation(seed)
    try:
        inspect.signature(scenario).bind(sim)
    except TypeError as error:
        text = f"{error}: a scenario takes one argument, write `def scenario(sim)`"
        raise ScenarioError(text) from None
    except ValueError:
        pass  # a function without a known signature
    made = scenario(sim)
    if hasattr(made, "__await__"):
        getattr(made, "close", lambda: None)()
        raise ScenarioError("a scenario only declares: write `def scenario(sim)`, without async")
    if not sim.processes:
        raise ScenarioError("the scenario has no process: call sim.process(name, function, …)")
    _require_topics(sim)
    _require_different_inputs(sim)
    return sim


def _require_name(name: object, what: str) -> None:
    if not isinstance(name, str):
        raise ScenarioError(f"the name of a {what} is a text, not {name!r}")


def _require_value(name: str, value: object) -> None:
    """Checks a value as broker.conf does. Raises ScenarioError."""
    if not isinstance(value, bool | int | float | str):
        return
    text = str(value).lower() if isinstance(value, bool) else str(value)
    try:
        parse_setting(f"{name}={text}")
    except ValueError as error:
        raise ScenarioError(f"sim.broker: {error}") from None


def _require_topics(sim: Simulation) -> None:
    """Checks that each topic has one name and stores messages. Raises ScenarioError."""
    inputs = [given.topic for given in sim.inputs]
    outputs = [rule.topic for rule in sim.outputs]
    spelt: dict[TopicName, str] = {}
    for topic in (*inputs, *outputs, *sim.topics):
        _require_name(topic, "topic")  # for outputs and sim.topic
        try:
            name = TopicName.parse(topic)
        except InvalidTopicName as error:
            raise ScenarioError(str(error)) from None
        if not name.persistent:
            raise ScenarioError(f"{topic} stores nothing that could be judged: use persistent://")
        if spelt.setdefault(name, topic) != topic:
            raise ScenarioError(f"{spelt[name]!r} and {topic!r} are one topic: use one spelling")
    if both := set(inputs) & set(outputs):
        raise ScenarioError(
            f"{both.pop()!r} is an input and an output, so each input would be its own output: "
            "judge such a topic with sim.check"
        )
    if outputs and not inputs:
        raise ScenarioError(
            f"it is unknown what belongs in {outputs[0]!r}: declare the input with sim.input, or "
            "judge it with sim.topic and sim.check"
        )
    if len(set(outputs)) < len(outputs):
        raise ScenarioError("a topic is declared as an output twice: declare it once")


def _require_different_inputs(sim: Simulation) -> None:
    if all(output.expect is not None for output in sim.outputs):
        return
    seen: set[bytes] = set()
    for given in sim.inputs:
        for _, data in given.messages:
            if data in seen or not data:
                raise ScenarioError(
                    f"the input {data!r} appears twice, or is empty: its outputs could not be told "
                    "apart. Make the inputs different, or give output() an `expect`"
                )
            seen.add(data)


def encoded(data: bytes | str) -> bytes:
    if isinstance(data, str):
        return data.encode()
    if not isinstance(data, bytes | bytearray | memoryview):
        raise ScenarioError(f"a message is bytes or a text, not {data!r:.80}")
    return bytes(data)


def full_name(topic: str) -> str:
    return str(TopicName.parse(topic))
