"""The configuration of a broker: defaults, a file, the environment, the command line's options.

Each source overrides the earlier ones. `--print-config` shows every value with its source.
"""

import argparse
import os
from dataclasses import fields, replace
from typing import Any, Final

from pybroker.base.configuration.config import BrokerConfig

_OPTIONS: Final = {
    "bind_address": "--bind",
    "broker_service_port": "--port",
    "web_service_port": "--http-port",
    "kafka_service_port": "--kafka-port",
    "log_level": "--log-level",
    "log_format": "--log-format",
    "journal_sync_data": "--durability",
    "test_mode": "--test-mode",
}
_DEFAULT: Final = "default"
_HIDDEN: Final = "(hidden)"


class UsageError(ValueError):
    """The settings are contradictory or unsafe; the message is for the user."""


def configuration(
    options: argparse.Namespace, origins: dict[str, str] | None = None
) -> BrokerConfig:
    """`origins` receives the source of each field that was set. Raises ValueError, including its
    subclasses ConfigError and UsageError.
    """
    config = BrokerConfig()
    if options.config is not None:
        from pybroker.base.configuration.config_file import load_config

        config = load_config(options.config, origins=origins)
    if any(name.startswith("PULSAR_PREFIX_") for name in os.environ):
        from pybroker.base.configuration.config_file import environment_config

        config = environment_config(os.environ, config, origins)
    chosen: dict[str, Any] = {
        "bind_address": options.bind,
        "broker_service_port": options.port,
        "web_service_port": options.http_port,
        "kafka_service_port": options.kafka_port,
        "log_level": options.log_level,
        "log_format": options.log_format,
        "journal_sync_data": options.durability and options.durability == "fsync",
        "test_mode": options.test_mode or None,
    }
    given = {name: value for name, value in chosen.items() if value is not None}
    if origins is not None:
        origins.update({name: f"option {_OPTIONS[name]}" for name in given})
    config = replace(config, **given)
    if config.test_mode:
        _check_test_mode(config)
    if not options.insecure and not config.local_only and not config.authentication_enabled:
        raise UsageError(
            f"listening on {config.bind_address} without authentication lets in anyone who can "
            "reach it; set authenticationEnabled=true, pass --insecure if that "
            "is what you want, or use --bind 127.0.0.1"
        )
    return config


def _check_test_mode(config: BrokerConfig) -> None:
    """Raises UsageError if the broker is secured, or other machines reach it."""
    unset = "leave out --test-mode (testMode), or"
    if config.authentication_enabled:
        raise UsageError(
            "in test mode everyone who reaches the broker can crash it and advance its clock, so "
            f"it has no authentication: {unset} set authenticationEnabled=false"
        )
    if not config.local_only:
        raise UsageError(
            f"in test mode everyone who reaches {config.bind_address} can crash the broker and "
            f"advance its clock: {unset} --bind 127.0.0.1"
        )


def described(config: BrokerConfig, origins: dict[str, str]) -> str:
    """A line for each key: its value and its source. Secrets are not shown."""
    from pybroker.base.configuration.config_file import camel_case  # only this needs it

    rows = [
        (f"{camel_case(field.name)}={_shown(getattr(config, field.name), field.repr)}",
         origins.get(field.name, _DEFAULT))
        for field in fields(BrokerConfig)
    ]  # fmt: skip
    width = min(60, max(len(setting) for setting, _ in rows))
    return "\n".join(f"{setting:<{width}}  # {origin}" for setting, origin in rows)


def _shown(value: object, may_be_seen: bool) -> str:
    """Hides a secret value. The path of a file with a secret is not secret."""
    if not may_be_seen and value and not str(value).startswith("file:"):
        return _HIDDEN
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(value)
    return "" if value is None else str(value)
