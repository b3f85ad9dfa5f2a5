"""Reads a broker.conf (`camelCaseKey=value` lines, `#` comments) into a `BrokerConfig`.

Keys are compared without case and underscores, so `defaultRetentionSizeInMB` finds
`default_retention_size_in_mb`. Apache Pulsar's keys without an effect here are logged in one line,
so that any of its files starts this broker. An empty value means the default. All other mistakes
stop the start: a misspelt limit that is silently ignored would be found too late.
"""

import difflib
import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Final

from pybroker.base.configuration.apache_keys import APACHE_KEYS, PREFIXES
from pybroker.base.configuration.config import PORTS, STRATEGIES, BrokerConfig
from pybroker.logs.levels import Levels
from pybroker.logs.lines import FORMATS

log = logging.getLogger("pybroker")


class LeftOut:
    """A value that leaves the key at its default, as if it were absent."""


LEFT_OUT: Final = LeftOut()
Value = str | int | float | bool | tuple[str, ...] | LeftOut | None

_FIELDS: Final = {field.name.replace("_", ""): field for field in fields(BrokerConfig)}
_FIELD_NAMES: Final = frozenset(field.name for field in fields(BrokerConfig))
_DEFAULTS: Final = {field.name: field.default for field in fields(BrokerConfig)}
PREFIX: Final = "PULSAR_PREFIX_"
_NOTHING_CLOSE: Final = "; remove it"
_SHORT_KEY_CHARS: Final = 24
_BOOLEANS: Final = {"true": True, "false": False}
_CHOICES: Final = {
    "schema_compatibility_strategy": STRATEGIES,
    "system_topic_schema_compatibility_strategy": STRATEGIES,
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
_NAMES: Final = {  # keys whose value is a list of these names
    "subscription_types_enabled": ("Exclusive", "Shared", "Failover", "Key_Shared"),
}
_IF_EMPTY: Final = {"prepare_transaction_roles": ("*",)}  # lists whose default is not empty
_MAY_BE_EMPTY: Final = {"broker_delete_inactive_topics_max_inactive_duration_seconds": 0}
_MINIMUM: Final = {  # for all other numbers: 0
    "default_retention_time_in_minutes": -1,  # -1: forever
    "default_retention_size_in_mb": -1,
    "topic_compaction_delete_retention_seconds": -1,  # the same
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
    "web_socket_max_text_frame_size": 1,
    "web_socket_ping_duration_seconds": -1,
    "web_socket_session_idle_timeout_millis": 1,
    "metadata_store_session_timeout_millis": 400,
    "default_number_of_namespace_bundles": 1,
    "load_balancer_namespace_bundle_max_topics": 1,
    "load_balancer_namespace_bundle_max_sessions": 1,
    "load_balancer_namespace_maximum_bundles": 1,
    "load_balancer_shedding_interval_minutes": 1,
    "transaction_coordinators": 1,
    "transactional_id_expiration_ms": 1000,
}
_MAXIMUM: Final = dict.fromkeys(PORTS, 65_535) | {
    "max_message_size": 2**31 - 1,  # sent to clients as 32 bits
    "default_number_of_namespace_bundles": 65_536,
    "load_balancer_namespace_maximum_bundles": 65_536,
}

# For these, Apache Pulsar's 0 ("no limit") becomes this broker's own maximum.
_NO_LIMIT_AT_0: Final = (
    "max_active_transactions_per_coordinator",
    "max_num_partitions_per_partitioned_topic",
)
_ODDLY_SPELT: Final = {
    "defaultRetentionSizeInMb": "defaultRetentionSizeInMB",
    "backlogQuotaDefaultLimitGb": "backlogQuotaDefaultLimitGB",
    "webSocketPulsarClientMemoryLimitInMb": "webSocketPulsarClientMemoryLimitInMB",
    "bookkeeperTlsClientAuthentication": "bookkeeperTLSClientAuthentication",
    "bookkeeperTlsProviderFactoryClass": "bookkeeperTLSProviderFactoryClass",
    "bookkeeperTlsKeyFileType": "bookkeeperTLSKeyFileType",
    "bookkeeperTlsTrustCertTypes": "bookkeeperTLSTrustCertTypes",
    "bookkeeperTlsTrustCertsFilePath": "bookkeeperTLSTrustCertsFilePath",
    "bookkeeperTlsCertificateFilePath": "bookkeeperTLSCertificateFilePath",
    "bookkeeperTlsKeyFilePath": "bookkeeperTLSKeyFilePath",
    "bookkeeperTlsKeyStorePasswordPath": "bookkeeperTLSKeyStorePasswordPath",
    "bookkeeperTlsTrustStorePasswordPath": "bookkeeperTLSTrustStorePasswordPath",
    "bookkeeperHostnameVerificationEnabled": "bookkeeper_hostnameVerificationEnabled",
}


class ConfigError(ValueError):
    """The message names the file, line and key, and says what to do."""


def load_config(
    path: Path, base: BrokerConfig | None = None, origins: dict[str, str] | None = None
) -> BrokerConfig:
    """`base` overridden by the file, which is TOML if its name ends in .toml. Raises ConfigError.

    `origins` receives the line of each field that the file sets.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"config file {path} cannot be read: {error}") from error
    if path.suffix == ".toml":
        return _parse_toml(text, str(path), base, origins)
    return parse_config(text, str(path), base, origins)


def _parse_toml(
    text: str, source: str, base: BrokerConfig | None, origins: dict[str, str] | None
) -> BrokerConfig:
    from pybroker.base.configuration.toml_config import (
        toml_settings,  # seldom used, and slow to import
    )

    try:
        settings = list(toml_settings(text, source))
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return _applied(settings, source, base, origins)


def parse_config(
    text: str,
    source: str,
    base: BrokerConfig | None = None,
    origins: dict[str, str] | None = None,
) -> BrokerConfig:
    """`source` is the file's name in error messages. Raises ConfigError."""
    settings = ((f"{source}, line {number}", line) for number, line in _settings(text))
    return _applied(settings, source, base, origins)


def environment_config(
    environment: Mapping[str, str],
    base: BrokerConfig | None = None,
    origins: dict[str, str] | None = None,
) -> BrokerConfig:
    """`base` overridden by PULSAR_PREFIX_key variables. Raises ConfigError."""
    settings = (
        (f"environment variable {name}", f"{name.removeprefix(PREFIX)}={value}")
        for name, value in sorted(environment.items())
        if name.startswith(PREFIX)
    )
    return _applied(settings, f"environment variables {PREFIX}…", base, origins)


def _applied(
    settings: Iterable[tuple[str, str]],
    source: str,
    base: BrokerConfig | None,
    origins: dict[str, str] | None,
) -> BrokerConfig:
    """Applies settings with their origins. Keys without an effect are logged in one line."""
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
            if origins is not None and value is not LEFT_OUT:
                origins[name] = where
        else:
            unused[name] = None
    if unused:
        log.warning("%s: these keys have no effect in pybroker: %s", source, ", ".join(unused))
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
    """The field and its value, or a known key without an effect and LEFT_OUT. Raises ValueError."""
    key, equals, text = (part.strip() for part in line.partition("="))
    if not equals:
        # Do not repeat the line: a value without its key may be a secret.
        raise ValueError("the line is not key=value")
    field = _FIELDS.get(key.replace("_", "").lower())
    if field is not None:
        return field.name, _convert(field.name, type(field.default), text, key)
    if key in APACHE_KEYS or key.startswith(PREFIXES):
        return key, LEFT_OUT
    raise ValueError(_unknown(key))


def _unknown(key: str) -> str:
    """Does not repeat a long unknown key: it may be a base64 secret, which ends in `=`."""
    closest = _closest(key)
    if closest == _NOTHING_CLOSE and len(key) > _SHORT_KEY_CHARS:
        return "unknown key (not shown, it may be a secret); remove the line"
    return f"unknown key {key[:80]!r}{closest}"


def _closest(key: str) -> str:
    found = difflib.get_close_matches(key.replace("_", "").lower(), _FIELDS, n=1)
    if found:
        return f"; did you mean {camel_case(_FIELDS[found[0]].name)}?"
    other = difflib.get_close_matches(key, APACHE_KEYS, n=1)
    return f"; did you mean {other[0]}?" if other else _NOTHING_CLOSE


def _convert(name: str, kind: type, text: str, key: str) -> Value:
    empty = not text and name not in _MAY_BE_EMPTY and name not in PORTS
    if empty and (kind in (bool, int, float) or (kind is str and _DEFAULTS[name])):
        return LEFT_OUT
    if kind is bool:
        if text.lower() not in _BOOLEANS:
            raise ValueError(f"{key}={text[:80]} must be true or false")
        return _BOOLEANS[text.lower()]
    if kind is str:
        return _chosen(name, text, key)
    if kind is tuple:
        named = dict.fromkeys(filter(None, (item.strip() for item in text.split(","))))
        return tuple(named) or _IF_EMPTY.get(name, ())
    if name in PORTS:
        return _number(name, int, text, key) if text else None
    if not text and name in _MAY_BE_EMPTY:
        return _MAY_BE_EMPTY[name]
    return _number(name, kind, text, key)


def _chosen(name: str, text: str, key: str) -> str:
    choices, names = _CHOICES.get(name), _NAMES.get(name)
    if choices and text not in choices:
        raise ValueError(f"{key}={text[:80]} must be one of: {', '.join(choices)}")
    if names and not {item.strip() for item in text.split(",")}.issubset((*names, "")):
        raise ValueError(f"{key}={text[:80]} must be a comma-separated list of: {', '.join(names)}")
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
