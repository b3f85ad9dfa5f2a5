"""`pybroker produce`, `consume`, `read`, `peek`: pulsar-client's commands, with transactions.

Options have the names of pulsar-client; the help marks additional options as extensions. The
commands work with any broker that speaks Pulsar's protocol.
"""

from typing import Final

COMMANDS: Final = {
    "produce": "send messages to a topic",
    "consume": "show and acknowledge messages of a subscription",
    "read": "show messages of a topic from a given position",
    "peek": "show messages without consuming them (pybroker extension)",
}
