"""A namespace's transactions may be bound to some coordinators: those of others take no part there.

Who would add a topic or a subscription is told which ones may. What takes part already does so to
the end, whatever is set meanwhile.
"""

from typing import Final

from pybroker.base.errors import NotAllowed
from pybroker.broker.policies.kinds import INT, whole_numbers
from pybroker.broker.policies.policy import Level, Policy

_MOST: Final = 1000

TRANSACTION_COORDINATORS: Final = Policy[list[int]](
    "transactionCoordinators",
    whole_numbers(0, INT, _MOST),
    lambda config: [],  # any of them
    Level("transactionCoordinators", "transaction_coordinators", unset=[]),
)


class BoundElsewhere(NotAllowed):
    """`allowed`: by ids, the coordinators whose transactions may take part."""

    def __init__(self, namespace: str, coordinator_id: int, allowed: list[int]) -> None:
        self.allowed = allowed
        ids = ", ".join(map(str, allowed))
        super().__init__(
            f"Transactions of coordinator {coordinator_id} take no part in {namespace}, but those "
            f"of {ids} (its policy transactionCoordinators): begin one there, as "
            f"new_transaction(namespace={namespace!r}) of pybroker.client does"
        )


def check_coordinator(allowed: list[int], namespace: str, coordinator_id: int) -> None:
    """`allowed` is what the policy says. Raises BoundElsewhere."""
    if allowed and coordinator_id not in allowed:
        raise BoundElsewhere(namespace, coordinator_id, allowed)
