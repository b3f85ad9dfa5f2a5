"""client.conf, as pulsar-client and pulsar-admin read it: what is not said on the command line."""

import os
from collections.abc import Mapping
from typing import Final

VARIABLE: Final = "PULSAR_CLIENT_CONF"


def client_conf(path: str | None) -> dict[str, str]:
    """Its `key=value` lines that have a value. Without a path, the one that PULSAR_CLIENT_CONF
    names; else nothing. Raises ValueError.
    """
    path = path or os.environ.get(VARIABLE)
    if not path:
        return {}
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"the client's configuration {path} cannot be read: {error}") from None
    stripped = (line.strip() for line in lines)
    pairs = (line.partition("=") for line in stripped if line and not line.startswith("#"))
    return {key.strip(): value.strip() for key, _, value in pairs if value.strip()}


def switch(settings: Mapping[str, str], key: str, default: bool) -> bool:
    """Raises ValueError."""
    text = settings.get(key, str(default)).lower()
    if text not in ("true", "false"):
        raise ValueError(f"{key}={text} in the client's configuration must be true or false")
    return text == "true"
