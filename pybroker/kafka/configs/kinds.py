"""Types and sources of configs, and the checks of their values. Source: Kafka's ConfigDef."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from pybroker.kafka.errors import ErrorCode, KafkaError

_MAX_VALUE_CHARS: Final = 1000


class Resource(IntEnum):
    UNKNOWN = 0
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class Kind(IntEnum):
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7


class Source(IntEnum):
    TOPIC = 1  # set for the topic
    BROKER = 4  # in the broker's configuration
    DEFAULT = 5
    GROUP = 8  # set for the group


class Change(IntEnum):
    """What IncrementalAlterConfigs does with a value."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class Shown:
    """A config with its value, as DescribeConfigs returns it."""

    name: str
    value: str
    kind: Kind
    source: Source
    documentation: str = ""
    read_only: bool = False


Check = Callable[[str], bool]


def whole(least: int, most: int = 2**63 - 1) -> Check:
    def check(text: str) -> bool:
        digits = text.removeprefix("-")
        return digits.isascii() and digits.isdecimal() and least <= int(text) <= most

    return check


def fraction(text: str) -> bool:
    try:
        return 0 <= float(text) <= 1
    except ValueError:
        return False


def one_of(*choices: str) -> Check:
    return lambda text: text in choices


def some_of(*choices: str) -> Check:
    return lambda text: set(items(text)) <= set(choices)


def anything(text: str) -> bool:
    return True


TRUTH: Final = one_of("true", "false")


def items(text: str) -> list[str]:
    """The items of a list; they are separated by commas."""
    return [item.strip() for item in text.split(",") if item.strip()]


def bad_config(name: str, value: str, wanted: str) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_CONFIG, f"Invalid value {value[:200]!r} for {name}: {wanted}"
    )


def check_size(name: str, value: str) -> None:
    """Raises KafkaError (INVALID_CONFIG) if the value is too long."""
    if len(value) > _MAX_VALUE_CHARS:
        raise bad_config(name, value, f"it may have at most {_MAX_VALUE_CHARS} characters")
