"""Who may prepare transactions: a dynamic setting of the broker, `prepareTransactionRoles`.

No permission of a namespace: a transaction spans namespaces, and what is prepared occupies its
coordinator, which serves all of them. Nor could Apache Pulsar's admin client read a permission that
it does not know.
"""

from pybroker.base.configuration.config import BrokerConfig


def may_prepare(config: BrokerConfig, owner: str | None, principal: str | None) -> bool:
    """`principal`: None for superusers, and without authentication."""
    roles = config.prepare_transaction_roles
    return principal is None or "*" in roles or owner in roles


def why_not_prepare(owner: str | None) -> str:
    return (
        f"Role {owner!r} may not prepare transactions: add it to the broker's "
        "prepareTransactionRoles"
    )
