"""Prints a standalone.conf with every key of the broker: environment variables can set these keys.

An empty value stands for the default. Keys that may really be empty have their default as value.
"""

from dataclasses import fields

from pybroker.base.configuration.apache_keys import APACHE_KEYS
from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.configuration.config_file import camel_case

# Clients connect from outside the container.
CHOSEN = {"bind_address": "0.0.0.0"}
WRITTEN_OUT = {"broker_service_port", "web_service_port"}

SPELT = {key.lower(): key for key in APACHE_KEYS}


def spelt(name: str) -> str:
    """The key as broker.conf spells it, because variables must match the keys of this file."""
    key = camel_case(name)
    return SPELT.get(key.lower(), key)


if __name__ == "__main__":
    print("# Keys of broker.conf; an empty value is the default.")
    for field in fields(BrokerConfig):
        value = CHOSEN.get(field.name, field.default if field.name in WRITTEN_OUT else "")
        print(f"{spelt(field.name)}={value}")
