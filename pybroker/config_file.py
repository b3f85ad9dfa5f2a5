"""Reads a broker.conf: `camelCaseKey=value` lines, `#` comments, into a `BrokerConfig`.

Keys are compared without case and underscores, so `defaultRetentionSizeInMB` finds
`default_retention_size_in_mb`. Anything that is not understood stops the start: a limit that was
misspelt and silently ignored is found out too late.
"""

import difflib
import math
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Final

from pybroker.config import BrokerConfig

Value = str | int | float | bool | tuple[str, ...] | None

_FIELDS: Final = {field.name.replace("_", ""): field for field in fields(BrokerConfig)}
_BOOLEANS: Final = {"true": True, "false": False}
_STRATEGIES: Final = (
    "UNDEFINED",
    "ALWAYS_INCOMPATIBLE",
    "ALWAYS_COMPATIBLE",
    "BACKWARD",
    "FORWARD",
    "FULL",
    "BACKWARD_TRANSITIVE",
    "FORWARD_TRANSITIVE",
    "FULL_TRANSITIVE",
)
_CHOICES: Final = {
    "schema_compatibility_strategy": _STRATEGIES,
    "system_topic_schema_compatibility_strategy": _STRATEGIES,
    "allow_auto_topic_creation_type": ("non-partitioned", "partitioned"),
    "broker_delete_inactive_topics_mode": (
        "delete_when_no_subscriptions",
        "delete_when_subscriptions_caught_up",
    ),
    "backlog_quota_default_retention_policy": (
        "producer_request_hold",
        "producer_exception",
        "consumer_backlog_eviction",
    ),
}
_MAY_BE_EMPTY: Final = {"broker_delete_inactive_topics_max_inactive_duration_seconds": 0}
_MINIMUM: Final = {  # of every other number: 0
    "default_retention_time_in_minutes": -1,  # -1: for ever
    "default_retention_size_in_mb": -1,
    "backlog_quota_default_limit_bytes": -1,
    "backlog_quota_default_limit_gb": -1,
    "backlog_quota_default_limit_second": -1,
    "backlog_quota_check_interval_in_seconds": 1,
    "message_expiry_check_interval_in_minutes": 1,
    "subscription_expiry_check_interval_in_minutes": 1,
    "subscribe_rate_period_per_consumer_in_second": 1,
    "broker_deduplication_snapshot_interval_seconds": 1,
    "broker_delete_inactive_topics_frequency_seconds": 1,
    "default_num_partitions": 1,
    "delayed_delivery_tick_time_millis": 1,
    "broker_service_compaction_monitor_interval_in_seconds": 1,
    "keep_alive_interval_seconds": 1,
    "managed_ledger_max_entries_per_ledger": 1,
    "managed_ledger_max_size_per_ledger_mbytes": 1,
    "authentication_refresh_check_seconds": 1,
    "max_message_size": 1,
    "transaction_coordinators": 1,
}
_PORTS: Final = (
    "broker_service_port",
    "broker_service_port_tls",
    "web_service_port",
    "web_service_port_tls",
)
_MAXIMUM: Final = dict.fromkeys(_PORTS, 65_535)


class ConfigError(ValueError):
    """The message names file, line, key and the way out."""


def load_config(path: Path, base: BrokerConfig | None = None) -> BrokerConfig:
    """`base` with what the file says on top. Raises ConfigError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"config file {path} cannot be read: {error}") from error
    return parse_config(text, str(path), base)


def parse_config(text: str, source: str, base: BrokerConfig | None = None) -> BrokerConfig:
    """`source` is what error messages call the file. Raises ConfigError."""
    values: dict[str, Value] = {}
    for line_number, line in _settings(text):
        try:
            name, value = _parse_setting(line)
        except ValueError as error:
            raise ConfigError(f"{source}, line {line_number}: {error}") from None
        if name in values:
            raise ConfigError(f"{source}, line {line_number}: {camel_case(name)} is set twice")
        values[name] = value
    return replace(base or BrokerConfig(), **values)  # type: ignore[arg-type]  # typed by _convert


def camel_case(name: str) -> str:
    """The broker.conf spelling of a field's name."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _settings(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            yield number, stripped


def _parse_setting(line: str) -> tuple[str, Value]:
    key, equals, text = (part.strip() for part in line.partition("="))
    if not equals:
        raise ValueError(f"{line[:80]!r} is not of the form key=value")
    field = _FIELDS.get(key.replace("_", "").lower())
    if field is None:
        raise ValueError(f"unknown key {key[:80]!r}{_closest(key)}")
    return field.name, _convert(field.name, type(field.default), text, key)


def _closest(key: str) -> str:
    found = difflib.get_close_matches(key.replace("_", "").lower(), _FIELDS, n=1)
    return f"; did you mean {camel_case(_FIELDS[found[0]].name)}?" if found else "; remove it"


def _convert(name: str, kind: type, text: str, key: str) -> Value:
    if kind is bool:
        if text.lower() not in _BOOLEANS:
            raise ValueError(f"{key}={text[:80]} must be true or false")
        return _BOOLEANS[text.lower()]
    if kind is str:
        return _chosen(name, text, key)
    if kind is tuple:
        return tuple(dict.fromkeys(filter(None, (item.strip() for item in text.split(",")))))
    if name in _PORTS:
        return _number(name, int, text, key) if text else None
    if not text and name in _MAY_BE_EMPTY:
        return _MAY_BE_EMPTY[name]
    return _number(name, kind, text, key)


def _chosen(name: str, text: str, key: str) -> str:
    choices = _CHOICES.get(name)
    if choices and text not in choices:
        raise ValueError(f"{key}={text[:80]} must be one of: {', '.join(choices)}")
    return text


def _number(name: str, kind: type, text: str, key: str) -> int | float:
    number: int | float
    try:
        number = int(text) if kind is int else _finite(text)
    except ValueError:
        wanted = "a whole number" if kind is int else "a number"
        raise ValueError(f"{key}={text[:80]} must be {wanted}") from None
    least, most = _MINIMUM.get(name, 0), _MAXIMUM.get(name, float("inf"))
    if not least <= number <= most:
        limit = f"at least {least}" if number < least else f"at most {most}"
        raise ValueError(f"{key}={text[:80]} must be {limit}")
    return number


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError
    return number
