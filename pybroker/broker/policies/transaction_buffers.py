"""Whether a topic's transactions show in the order of its log or in that of their commits.

What has begun on a topic ends there as it began, whatever is set meanwhile.
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
