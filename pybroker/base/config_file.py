"""Reads a broker.conf: `camelCaseKey=value` lines, `#` comments, into a `BrokerConfig`.

Keys are compared without case and underscores, so `defaultRetentionSizeInMB` finds
`default_retention_size_in_mb`. Keys of Apache Pulsar that mean nothing here are named in one line,
so that any file of its starts this broker; an empty value is the default. Anything else that is not
understood stops the start: a limit that was misspelt and silently ignored is found out too late.
"""

import difflib
import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Final

from pybroker.base.apache_keys import APACHE_KEYS, PREFIXES
from pybroker.base.config import BrokerConfig
from pybroker.logs.levels import Levels
from pybroker.logs.lines import FORMATS

log = logging.getLogger("pybroker")


class LeftOut:
    """As if it were not there."""


LEFT_OUT: Final = LeftOut()
Value = str | int | float | bool | tuple[str, ...] | LeftOut | None

_FIELDS: Final = {field.name.replace("_", ""): field for field in fields(BrokerConfig)}
_FIELD_NAMES: Final = frozenset(field.name for field in fields(BrokerConfig))
_DEFAULTS: Final = {field.name: field.default for field in fields(BrokerConfig)}
PREFIX: Final = "PULSAR_PREFIX_"
_NOTHING_CLOSE: Final = "; remove it"
_SHORT_KEY_CHARS: Final = 24
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
    "log_format": FORMATS,
    "transaction_buffer": ("logOrder", "commitOrder"),
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
_NAMES: Final = {  # of which several may stand there
    "subscription_types_enabled": ("Exclusive", "Shared", "Failover", "Key_Shared"),
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
    "transactional_id_expiration_ms": 1000,
}
_PORTS: Final = (
    "broker_service_port",
    "broker_service_port_tls",
    "web_service_port",
    "web_service_port_tls",
)
_MAXIMUM: Final = dict.fromkeys(_PORTS, 65_535) | {
    "max_message_size": 2**31 - 1,  # clients are told it in 32 bits
}

# Of these, 0 is Apache Pulsar's "no limit": the most that this broker allows by itself.
_NO_LIMIT_AT_0: Final = (
    "max_active_transactions_per_coordinator",
    "max_num_partitions_per_partitioned_topic",
)
_ODDLY_SPELT: Final = {
    "defaultRetentionSizeInMb": "defaultRetentionSizeInMB",
    "backlogQuotaDefaultLimitGb": "backlogQuotaDefaultLimitGB",
}


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
    settings = ((f"{source}, line {number}", line) for number, line in _settings(text))
    return _applied(settings, source, base)


def environment_config(
    environment: Mapping[str, str], base: BrokerConfig | None = None
) -> BrokerConfig:
    """`base` with what variables of the name PULSAR_PREFIX_key say on top. Raises ConfigError."""
    settings = (
        (f"environment variable {name}", f"{name.removeprefix(PREFIX)}={value}")
        for name, value in sorted(environment.items())
        if name.startswith(PREFIX)
    )
    return _applied(settings, f"environment variables {PREFIX}…", base)


def _applied(
    settings: Iterable[tuple[str, str]], source: str, base: BrokerConfig | None
) -> BrokerConfig:
    """Of settings with where they stand. What has no effect is said in one line."""
    values: dict[str, Value] = {}
    unused: dict[str, None] = {}
    for where, line in settings:
        try:
            name, value = parse_setting(line)
        except ValueError as error:
            raise ConfigError(f"{where}: {error}") from None
        if name in _FIELD_NAMES:
            if values.get(name, value) != value:
                raise ConfigError(f"{where}: {camel_case(name)} is set twice")
            values[name] = value
        else:
            unused[name] = None
    if unused:
        log.warning("%s: these keys have no effect here: %s", source, ", ".join(unused))
    given = {name: value for name, value in values.items() if value is not LEFT_OUT}
    return replace(base or BrokerConfig(), **given)  # type: ignore[arg-type]  # typed by _convert


def camel_case(name: str) -> str:
    """The broker.conf spelling of a field's name."""
    first, *rest = name.split("_")
    spelt = first + "".join(word.capitalize() for word in rest)
    return _ODDLY_SPELT.get(spelt, spelt)


def _settings(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            yield number, stripped


def parse_setting(line: str) -> tuple[str, Value]:
    """The field and its value; or a key that means nothing here. Raises ValueError."""
    key, equals, text = (part.strip() for part in line.partition("="))
    if not equals:
        # It is not repeated: a value without its key may be a secret.
        raise ValueError("the line is not of the form key=value")
    field = _FIELDS.get(key.replace("_", "").lower())
    if field is not None:
        return field.name, _convert(field.name, type(field.default), text, key)
    if key in APACHE_KEYS or key.startswith(PREFIXES):
        return key, LEFT_OUT
    raise ValueError(_unknown(key))


def _unknown(key: str) -> str:
    """A long one that resembles no key is not repeated: a secret in base64 ends with `=`."""
    closest = _closest(key)
    if closest == _NOTHING_CLOSE and len(key) > _SHORT_KEY_CHARS:
        return "unknown key, which is not shown, for it may be a secret; remove the line"
    return f"unknown key {key[:80]!r}{closest}"


def _closest(key: str) -> str:
    found = difflib.get_close_matches(key.replace("_", "").lower(), _FIELDS, n=1)
    if found:
        return f"; did you mean {camel_case(_FIELDS[found[0]].name)}?"
    other = difflib.get_close_matches(key, APACHE_KEYS, n=1)
    return f"; did you mean {other[0]}?" if other else _NOTHING_CLOSE


def _convert(name: str, kind: type, text: str, key: str) -> Value:
    empty = not text and name not in _MAY_BE_EMPTY and name not in _PORTS
    if empty and (kind in (bool, int, float) or (kind is str and _DEFAULTS[name])):
        return LEFT_OUT
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
    choices, names = _CHOICES.get(name), _NAMES.get(name)
    if choices and text not in choices:
        raise ValueError(f"{key}={text[:80]} must be one of: {', '.join(choices)}")
    if names and not {item.strip() for item in text.split(",")}.issubset((*names, "")):
        raise ValueError(f"{key}={text[:80]} must be of: {', '.join(names)}; by commas")
    if name == "log_level":
        try:
            Levels.parse(text)
        except ValueError as error:
            raise ValueError(f"{key}={text[:80]}: {error}") from None
    return text


def _number(name: str, kind: type, text: str, key: str) -> int | float | LeftOut:
    number: int | float
    try:
        number = int(text) if kind is int else _finite(text)
    except ValueError:
        wanted = "a whole number" if kind is int else "a number"
        raise ValueError(f"{key}={text[:80]} must be {wanted}") from None
    if number == 0 and name in _NO_LIMIT_AT_0:
        return LEFT_OUT
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
