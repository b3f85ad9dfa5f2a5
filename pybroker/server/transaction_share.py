"""How many transactions may be open: of a connection, and of a principal on all its connections.

Whoever may log in may begin transactions, and those that are never ended stay for their timeout. So
everybody has a share, and a superuser is never refused.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from pybroker.base.errors import TooManyRequests
from pybroker.base.names import TxnId
from pybroker.server import fencing
from pybroker.server.connection import Connection
from pybroker.server.transactional_session import TransactionalSession
from pybroker.transaction.coordinator.coordinator import TransactionCoordinator

_FULL_WAIT_S: Final = 0.1  # before a refusal, so that nobody asks again at once


def is_exempt(session: Connection) -> bool:
    return session.login is not None and session.login.is_super_user


def begin_within_share(
    session: Connection,
    coordinator: TransactionCoordinator,
    timeout_ms: int,
    namespace: str | None = None,
    joined: TransactionalSession | None = None,
) -> Awaitable[TxnId]:
    """Begins at once, or waits a short time for room: one that asks again at once costs little.

    The share is looked at where the transaction is counted, with nothing awaited in between: begins
    that come together do not pass it. Raises, or fails with, what `new_transaction` does.
    """
    if _excess(session) is None and (is_exempt(session) or not coordinator.is_full):
        return _begin(session, coordinator, timeout_ms, namespace, joined)
    return _when_there_is_room(session, coordinator, timeout_ms, namespace, joined)


def when_there_is_room(add: Callable[[], Awaitable[TxnId]]) -> Awaitable[TxnId]:
    """At once, or after a short time where a namespace is full. Raises, or fails with, what `add`
    does.
    """
    try:
        return add()
    except TooManyRequests:
        return _after_a_moment(add)


async def _after_a_moment(add: Callable[[], Awaitable[TxnId]]) -> TxnId:
    await asyncio.sleep(_FULL_WAIT_S)
    return await add()


async def _when_there_is_room(
    session: Connection,
    coordinator: TransactionCoordinator,
    timeout_ms: int,
    namespace: str | None,
    joined: TransactionalSession | None,
) -> TxnId:
    await asyncio.sleep(_FULL_WAIT_S)
    excess = _excess(session)
    if excess is not None:
        raise TooManyRequests(excess)
    return await _begin(session, coordinator, timeout_ms, namespace, joined)


def _begin(
    session: Connection,
    coordinator: TransactionCoordinator,
    timeout_ms: int,
    namespace: str | None,
    joined: TransactionalSession | None,
) -> asyncio.Future[TxnId]:
    is_counted = not is_exempt(session)
    beginning = coordinator.new_transaction(
        timeout_ms,
        session.owner,
        exempt=not is_counted,
        namespace=namespace,
        session=fencing.session_of_new(session, joined),
    )
    if is_counted and session.services.config.max_active_transactions_per_connection:
        session.begun.begins(beginning)  # without a limit nothing would forget them
    return beginning


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
