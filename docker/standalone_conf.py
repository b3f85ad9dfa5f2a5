"""Prints a standalone.conf: every key of the broker's, so that a variable of its name can set it.

An empty value is the default; what is something else when empty has its default written out.
"""

from dataclasses import fields

from pybroker.base.apache_keys import APACHE_KEYS
from pybroker.base.config import BrokerConfig
from pybroker.base.config_file import camel_case

# A container is reached from outside.
CHOSEN = {"bind_address": "0.0.0.0"}
WRITTEN_OUT = {"broker_service_port", "web_service_port"}

SPELT = {key.lower(): key for key in APACHE_KEYS}


def spelt(name: str) -> str:
    """As broker.conf has it, capitals too: a variable of that name is looked for in this file."""
    key = camel_case(name)
    return SPELT.get(key.lower(), key)


if __name__ == "__main__":
    print("# Keys of broker.conf; an empty value is the default.")
    for field in fields(BrokerConfig):
        value = CHOSEN.get(field.name, field.default if field.name in WRITTEN_OUT else "")
        print(f"{spelt(field.name)}={value}")
