"""Requests that a broker passes on for a principal: whose they are."""

from pybroker.base.errors import NotAllowed
from pybroker.server.connection import Connection


def principal_of(session: Connection, claimed: str | None) -> str | None:
    """None: anyone's. Without authorization every client may send the commands of brokers, so only
    superusers speak for others.

    Raises NotAllowed: clients do not repeat what another broker refuses with it.
    """
    own = session.principal
    if own is None or own == claimed:
        return claimed
    raise NotAllowed(
        f"Role {own!r} may act in its own transactions only. If this is the brokers' own role "
        "(brokerClientAuthenticationPlugin), add it to superUserRoles on all brokers"
    )
