"""The principal for whom another broker passes a request on."""

from pybroker.base.errors import NotAllowed
from pybroker.server.connections.connection import Connection


def principal_of(session: Connection, claimed: str | None) -> str | None:
    """None: any principal. Without authorization every client may send the commands of brokers, so
    only superusers may act for others.

    Raises NotAllowed: clients do not repeat a request that fails with it.
    """
    own = session.principal
    if own is None or own == claimed:
        return claimed
    raise NotAllowed(
        f"Role {own!r} may act in its own transactions only. If this is the brokers' own role "
        "(brokerClientAuthenticationPlugin), add it to superUserRoles on all brokers"
    )
