"""How many transactions may be open: of a connection, and of a principal on all its connections.

Whoever may log in may begin transactions, and those that are never ended stay for their timeout. So
everybody has a share, and a superuser is never refused.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from pybroker.base.errors import TooManyRequests
from pybroker.base.names import TxnId
from pybroker.server.connection import Connection
from pybroker.transaction.coordinator import FULL_WAIT_S

T = TypeVar("T")


def is_exempt(session: Connection) -> bool:
    return session.login is not None and session.login.is_super_user


def count(session: Connection, txn_id: TxnId) -> None:
    """As one that this connection began, where they are limited: else nobody would forget it."""
    most = session.services.config.max_active_transactions_per_connection
    if most and not is_exempt(session):
        session.begun.began(txn_id)


def within_share(session: Connection, begin: Callable[[], Awaitable[T]]) -> Awaitable[T]:
    """Raises, or fails with, what `begin` does, and TooManyRequests after a short wait."""
    if _excess(session) is None:
        return begin()
    return _when_there_is_room(session, begin)


async def _when_there_is_room(session: Connection, begin: Callable[[], Awaitable[T]]) -> T:
    await asyncio.sleep(FULL_WAIT_S)
    excess = _excess(session)
    if excess is not None:
        raise TooManyRequests(excess)
    return await begin()


def _excess(session: Connection) -> str | None:
    """Why there may be no more of them, as a sentence."""
    if is_exempt(session):
        return None
    config, coordinators = session.services.config, session.services.coordinators
    most = config.max_active_transactions_per_connection
    if most and session.begun.are(most, coordinators):
        return (
            f"This connection has {most} active transactions "
            "(maxActiveTransactionsPerConnection): end some, then retry"
        )
    owner, most = session.owner, config.max_active_transactions_per_principal
    if most and owner is not None and coordinators.live_of(owner) >= most:
        return (
            f"{owner} has {most} active transactions (maxActiveTransactionsPerPrincipal): end "
            "some, or wait until they time out, then retry"
        )
    return None
