"""Binds a namespace to some coordinators: only their transactions can take part there.

A refusal names these coordinators. A transaction that already takes part continues to its end, even
if the policy changes meanwhile.
"""

from typing import Final

from pybroker.base.errors import NotAllowed
from pybroker.broker.policies.kinds import INT, whole_numbers
from pybroker.broker.policies.policy import Level, Policy

_MOST: Final = 1000

TRANSACTION_COORDINATORS: Final = Policy[list[int]](
    "transactionCoordinators",
    whole_numbers(0, INT, _MOST),
    lambda config: [],  # any coordinator
    Level("transactionCoordinators", "transaction_coordinators", unset=[]),
)


class BoundElsewhere(NotAllowed):
    """`allowed`: ids of the coordinators whose transactions may take part."""

    def __init__(self, namespace: str, coordinator_id: int, allowed: list[int]) -> None:
        self.allowed = allowed
        ids = ", ".join(map(str, allowed))
        super().__init__(
            f"Transactions of coordinator {coordinator_id} cannot take part in {namespace}; its "
            f"policy transactionCoordinators allows only {ids}: begin one there, as "
            f"new_transaction(namespace={namespace!r}) of pybroker.client does"
        )


def check_coordinator(allowed: list[int], namespace: str, coordinator_id: int) -> None:
    """`allowed` is the policy's value. Raises BoundElsewhere."""
    if allowed and coordinator_id not in allowed:
        raise BoundElsewhere(namespace, coordinator_id, allowed)
