"""Reads client.conf, with defaults for the command line, as pulsar-client and pulsar-admin do."""

import os
from collections.abc import Mapping
from typing import Final

VARIABLE: Final = "PULSAR_CLIENT_CONF"


def client_conf(path: str | None) -> dict[str, str]:
    """The non-empty `key=value` settings. Without a path, those of the file that PULSAR_CLIENT_CONF
    names, if it is set. Raises ValueError.
    """
    path = path or os.environ.get(VARIABLE)
    if not path:
        return {}
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"client configuration file {path} cannot be read: {error}") from None
    stripped = (line.strip() for line in lines)
    pairs = (line.partition("=") for line in stripped if line and not line.startswith("#"))
    return {key.strip(): value.strip() for key, _, value in pairs if value.strip()}


def switch(settings: Mapping[str, str], key: str, default: bool) -> bool:
    """The value of a boolean setting. Raises ValueError."""
    text = settings.get(key, str(default)).lower()
    if text not in ("true", "false"):
        raise ValueError(f"{key}={text} in the client configuration must be true or false")
    return text == "true"
