"""Whether a topic's transactions become visible in log order or in commit order.

A transaction ends on a topic in the mode in which it began there, even if the policy changes.
"""

from typing import Final

from pybroker.broker.policies.kinds import choice
from pybroker.broker.policies.policy import Level, Policy

LOG_ORDER: Final = "logOrder"
COMMIT_ORDER: Final = "commitOrder"
TRANSACTION_BUFFER: Final = Policy[str](
    "transactionBuffer",
    choice(LOG_ORDER, COMMIT_ORDER),
    "transaction_buffer",
    Level("transactionBuffer", "transaction_buffer"),
    Level("transactionBuffer", "transactionBuffer"),
)
