"""The options of format("pulsar"): one table for spark.read, readStream, df.write and writeStream.

Options have the pulsar-spark connector's names if it has them, so that jobs can be moved unchanged;
older names of this package are aliases, and those of Spark's Kafka source that mean the same. An
unknown option is an error that suggests a similar name.
Spark passes options as text and ignores their case.
"""

import difflib
import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Flag, auto
from typing import Any, Final

from pybroker.base.errors import NotAllowed
from pybroker.spark import java_options

log = logging.getLogger("pybroker.spark")


class Mode(Flag):
    """The ways to use the format."""

    READ = auto()
    READ_STREAM = auto()
    WRITE = auto()
    WRITE_STREAM = auto()

    READS = READ | READ_STREAM
    WRITES = WRITE | WRITE_STREAM
    ALL = READS | WRITES


_MODE_NAMES: Final = {
    Mode.READ: "spark.read",
    Mode.READ_STREAM: "spark.readStream",
    Mode.WRITE: "df.write",
    Mode.WRITE_STREAM: "writeStream",
}


@dataclass(frozen=True, slots=True)
class Option:
    name: str
    modes: Mode
    # Parses the text; raises ValueError that says what is accepted.
    parse: Callable[[str], Any]
    default: Any = None
    aliases: tuple[str, ...] = ()

    @property
    def is_prefix(self) -> bool:
        """Whether it stands for all Java client options with this prefix: see
        pybroker.spark.java_options.
        """
        return self.name.endswith("*")


_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_SPAN: Final = re.compile(rf"(\d+)\s*({'|'.join(_UNITS_MS)})?")


# --- kinds ---------------------------------------------------------------------------------------


def text(given: str) -> str:
    if not given.strip():
        raise ValueError("some text")
    return given.strip()


def anything(given: str) -> str:
    return given


def boolean(given: str) -> bool:
    if given.strip().lower() not in ("true", "false"):
        raise ValueError("'true' or 'false'")
    return given.strip().lower() == "true"


def whole(given: str) -> int:
    try:
        number = int(given)
    except ValueError:
        number = 0
    if number <= 0:
        raise ValueError("a whole number above 0")
    return number


def span_ms(given: str) -> int:
    """A duration as Spark writes it, such as 15m; a number alone is in ms."""
    found = _SPAN.fullmatch(given.strip().lower())
    if found is None or not int(found[1]):
        raise ValueError("a duration above 0, such as 15m, 30s or 500ms")
    return int(found[1]) * _UNITS_MS[found[2] or "ms"]


def names(given: str) -> tuple[str, ...]:
    found = tuple(part.strip() for part in given.split(",") if part.strip())
    if not found:
        raise ValueError("names separated by commas")
    return found


def one_of(*choices: str) -> Callable[[str], str]:
    def parse(given: str) -> str:
        chosen = given.strip().lower()
        if chosen not in choices:
            raise ValueError(" or ".join(map(repr, choices)))
        return chosen

    return parse


def by_topic(given: str) -> dict[str, Any]:
    """A JSON object whose keys are topics."""
    try:
        parsed = json.loads(given)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict) or not parsed:
        raise ValueError("a JSON object whose keys are topics")
    return parsed


def place(given: str) -> str | dict[str, Any]:
    """earliest, latest, or a JSON object of message ids by topic."""
    chosen = given.strip().lower()
    if chosen in ("earliest", "latest"):
        return chosen
    try:
        return by_topic(given)
    except ValueError as error:
        raise ValueError(f"'earliest', 'latest' or {error}") from None


def moment(given: str) -> int | dict[str, Any]:
    """A time in ms since 1970, or a JSON object of such times by topic."""
    if given.strip().isdecimal():
        return int(given)
    try:
        found = {topic: int(when) for topic, when in _by_partition(by_topic(given)).items()}
    except (TypeError, ValueError, OverflowError):
        found = {}
    if not found or min(found.values()) < 0:
        raise ValueError("milliseconds since 1970, or a JSON object of topics and such times")
    return found


def _by_partition(given: Mapping[str, Any]) -> dict[str, Any]:
    """Kafka's form has an object of partitions by number for each topic."""
    found: dict[str, Any] = {}
    for topic, each in given.items():
        if isinstance(each, dict):
            found |= {f"{topic}-partition-{int(number)}": when for number, when in each.items()}
        else:
            found[topic] = each
    return found


# --- the table -----------------------------------------------------------------------------------


def _times(which: str) -> tuple[str, ...]:
    """Kafka's names for the beginning or the end."""
    return f"{which}Timestamp", f"{which}OffsetsByTimestamp"


OPTIONS: Final = (
    # The cluster.
    Option("service.url", Mode.ALL, text, aliases=("service_url",)),
    Option("admin.url", Mode.ALL, text, aliases=("admin_url",)),
    Option("pulsar.client.authPluginClassName", Mode.ALL, text),
    Option("pulsar.client.authParams", Mode.ALL, anything),
    Option("pulsar.client.tlsTrustCertsFilePath", Mode.ALL, text),
    Option("pulsar.client.tlsAllowInsecureConnection", Mode.ALL, boolean, False),
    Option("pulsar.client.tlsHostnameVerificationEnable", Mode.ALL, boolean, True),
    Option("pulsar.client.operationTimeoutMs", Mode.ALL, whole, 30_000),
    Option("pulsar.client.connectionTimeoutMs", Mode.ALL, whole, 10_000),
    Option("pulsar.client.listenerName", Mode.ALL, text),
    Option("pulsar.client.tlsCertificateFilePath", Mode.ALL, text),
    Option("pulsar.client.tlsKeyFilePath", Mode.ALL, text),
    # What is read or written.
    Option("topic", Mode.ALL, text),
    Option("topics", Mode.READS, names, aliases=("subscribe",)),
    Option("topicsPattern", Mode.READS, text, aliases=("subscribePattern",)),
    # Where reading begins and ends. The defaults differ by mode: see pybroker.spark.reading.
    Option("startingOffsets", Mode.READS, place, aliases=("starting_position",)),
    Option("startingTime", Mode.READS, moment, aliases=_times("starting")),
    Option("endingOffsets", Mode.READ, place),
    Option("endingTime", Mode.READ, moment, aliases=_times("ending")),
    Option("failOnDataLoss", Mode.READS, boolean, True),
    # Streams.
    Option("subscription", Mode.READ_STREAM, text),
    Option("predefinedSubscription", Mode.READS, text),
    Option("subscriptionPrefix", Mode.READS, text),
    Option("maxBytesPerTrigger", Mode.READ_STREAM, whole),
    Option("maxRowsPerTrigger", Mode.READ_STREAM, whole, aliases=("maxOffsetsPerTrigger",)),
    Option("minRowsPerTrigger", Mode.READ_STREAM, whole, aliases=("minOffsetsPerTrigger",)),
    Option("maxTriggerDelay", Mode.READ_STREAM, span_ms, 15 * 60 * 1000),
    Option("maxRecordsPerPartition", Mode.READS, whole),
    Option("maxEntriesPerTrigger", Mode.READ_STREAM, whole, aliases=("max_entries_per_trigger",)),
    # Reading by tasks.
    Option("minPartitions", Mode.READS, whole, 1),
    Option("publishTimeDisorderMs", Mode.READ, whole),
    Option("pollTimeoutMs", Mode.READS, whole, 120_000),
    Option("waitingForNonExistedTopic", Mode.READS, boolean, False),
    Option("allowDifferentTopicSchemas", Mode.READS, boolean, False),
    Option("rawValue", Mode.READS, boolean, False),
    # Writing.
    Option("controlTopic", Mode.WRITES, text, aliases=("control_topic",)),
    Option("transactionTimeoutMs", Mode.WRITES, whole, 600_000, ("transaction_timeout_ms",)),
    Option("maxDriverBytesPerTask", Mode.WRITES, whole, 64 * 1024),
    Option(
        "pulsar.producer.compressionType",
        Mode.WRITES,
        one_of("none", "lz4", "zlib", "zstd", "snappy"),
        "none",
    ),
    Option("pulsar.producer.chunkingEnabled", Mode.WRITES, boolean, True),
    Option("batchingType", Mode.WRITES, one_of("default", "keybased"), "default"),
    Option("schema.type", Mode.WRITES, one_of("avro", "json"), "avro"),
    # Spark's own options, which it passes to the sink too.
    Option("checkpointLocation", Mode.WRITE_STREAM, text),
    Option("queryName", Mode.WRITE_STREAM, text),
    # Options for the official Java client, which is not used here.
    Option("pulsar.client.*", Mode.ALL, anything),
    Option("pulsar.admin.*", Mode.ALL, anything),
    Option("pulsar.reader.*", Mode.READS, anything),
    Option("pulsar.producer.*", Mode.WRITES, anything),
)

_BY_NAME: Final = {
    name.lower(): option
    for option in OPTIONS
    if not option.is_prefix
    for name in (option.name, *option.aliases)
}
# What to do instead of options that others have and that mean something else, or nothing, here.
_INSTEAD: Final = {
    "path": 'format("pulsar") has no path: set the option topic',
    "assign": "set topics, to names such as orders-partition-0",
    "includeheaders": "remove it; the column __messageProperties is always there",
    "groupidprefix": "set subscriptionPrefix",
    "fetchoffset.numretries": "remove it; a query waits two minutes for a broker",
    "fetchoffset.retryintervalms": "remove it; a query waits two minutes for a broker",
    "kafkaconsumer.polltimeoutms": "remove it; a query waits two minutes for a broker",
    "kafka.bootstrap.servers": "set service.url, such as pulsar://localhost:6650",
    "kafka.group.id": "set subscription",
}
_PREFIXES: Final = tuple(option for option in OPTIONS if option.is_prefix)

Chosen = Mapping[str, Any]


def chosen(given: Mapping[str, str], mode: Mode) -> Chosen:
    """Every option of `mode` by its name in the table, with its default where none was given.

    `mode` may combine several: then options of any of them are accepted. Raises NotAllowed.
    """
    values = {option.name: option.default for option in OPTIONS if option.modes & mode}
    said: dict[str, str] = {}
    for name, value in given.items():
        option = _option(name, mode)
        if option.is_prefix:
            java_options.check(name, value, [each.name for each in OPTIONS])
            log.info("The option %s tunes the Java client and has no effect here", name)
            continue
        if option.name in said:
            raise NotAllowed(
                f"The options {said[option.name]} and {name} are both names of {option.name}: "
                "use one of them"
            )
        said[option.name] = name
        values[option.name] = _parsed(option, name, value)
    return values


def required(options: Chosen, name: str) -> Any:
    """Raises NotAllowed if the option is not set."""
    value = options.get(name)
    if value is None:
        raise NotAllowed(f'format("pulsar") needs the option {name}')
    return value


def _option(name: str, mode: Mode) -> Option:
    option = _BY_NAME.get(name.lower()) or _by_prefix(name)
    if option is None:
        raise NotAllowed(f'format("pulsar") has no option {name}{_meant(name, mode)}')
    if not option.modes & mode:
        ways = [text for way, text in _MODE_NAMES.items() if way & option.modes]
        raise NotAllowed(f"The option {name} is for {' and '.join(ways)}, not for {_named(mode)}")
    return option


def _by_prefix(name: str) -> Option | None:
    return next(
        (each for each in _PREFIXES if name.lower().startswith(each.name.rstrip("*"))), None
    )


def _named(mode: Mode) -> str:
    return " or ".join(text for way, text in _MODE_NAMES.items() if way & mode)


def _meant(name: str, mode: Mode) -> str:
    if instead := _INSTEAD.get(name.lower()):
        return f": {instead}"
    if name.lower().startswith("kafka."):
        return ": it is for Kafka; clients here have options pulsar.client.*"
    known = {each: option.name for each, option in _BY_NAME.items() if option.modes & mode}
    nearest = difflib.get_close_matches(name.lower(), known, n=1)
    if nearest:
        return f": did you mean {known[nearest[0]]}?"
    return f"; it has {', '.join(_known(mode))}"


def _known(mode: Mode) -> Sequence[str]:
    return [option.name for option in OPTIONS if option.modes & mode]


def _parsed(option: Option, name: str, value: str) -> Any:
    try:
        return option.parse(value)
    except ValueError as error:
        raise NotAllowed(f"The option {name} is {value!r}; it must be {error}") from None
