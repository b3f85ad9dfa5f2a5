"""Limits open transactions: per connection, and per principal on all its connections.

Every client may begin transactions, and a transaction that is never ended stays until its timeout.
So each client has a share; superusers are never refused.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from pybroker.base.errors import TooManyRequests
from pybroker.base.names import TxnId
from pybroker.server.connections.connection import Connection
from pybroker.server.connections.requests import though_closed
from pybroker.server.services import Services
from pybroker.server.transactions import fencing
from pybroker.server.transactions.transactional_session import TransactionalSession
from pybroker.transaction.coordinator.coordinator import TransactionCoordinator

_FULL_WAIT_S: Final = 0.1  # before a refusal, to slow down retries


class AskedFor(NamedTuple):
    """The parameters of NEW_TXN."""

    timeout_ms: int
    namespace: str | None = None
    session: TransactionalSession | None = None
    abort_on_disconnect: bool = False


def is_exempt(session: Connection) -> bool:
    return session.login is not None and session.login.is_super_user


def require_room_for_participants(session: Connection, count: int) -> None:
    """Checks that the connection may add `count` participants. Raises TooManyRequests."""
    login = session.login
    if login is not None and login.is_super_user:
        return
    excess = excess_of_connection(session, count)
    if excess is None and login is not None and session.owner is not None:
        excess = excess_of_principal(session.services, session.owner, count)
    if excess is not None:
        raise TooManyRequests(excess)


def excess_of_connection(session: Connection, count: int) -> str | None:
    """The limit that `count` more participants would exceed, as a sentence; None if none."""
    most = session.services.config.max_participants_per_connection
    if not most or session.added.total + count <= most:
        return None
    if not session.added.would_be_more_than(most, count):
        return None
    session.services.counts.refused["maxParticipantsPerConnection"] += 1
    return (
        f"This connection would have added more than {most} topics and subscriptions to active "
        "transactions (maxParticipantsPerConnection): end some transactions, then retry"
    )


def excess_of_principal(services: Services, principal: str, count: int) -> str | None:
    """Like `excess_of_connection`."""
    most = services.config.max_participants_per_principal
    if not most or services.coordinators.participants_of(principal) + count <= most:
        return None
    services.counts.refused["maxParticipantsPerPrincipal"] += 1
    return (
        f"The active transactions of {principal} would have more than {most} topics and "
        "subscriptions (maxParticipantsPerPrincipal): end some transactions, or wait until "
        "they time out, then retry"
    )


def begin_within_share(
    session: Connection, coordinator: TransactionCoordinator, asked: AskedFor
) -> Awaitable[TxnId]:
    """Begins at once, or waits a short time for room, so that immediate retries cost little.

    The share is checked where the transaction is counted, with no await in between, so concurrent
    begins cannot exceed it. Raises, or fails with, TooManyRequests and the errors of
    `new_transaction`.
    """
    if is_exempt(session):
        return _begin(session, coordinator, asked, exempt=True)
    if _excess(session) is None and not coordinator.is_full:
        return _begin(session, coordinator, asked)
    return _when_there_is_room(session, coordinator, asked)


async def after_a_moment(session: Connection, add: Callable[[], Awaitable[TxnId]]) -> TxnId:
    """Calls `add` again, which a full namespace has refused. Fails with what `add` raises."""
    await asyncio.sleep(_FULL_WAIT_S)
    try:
        return await though_closed(add())
    except TooManyRequests:
        session.services.counts.refused["maxActiveTransactionsPerNamespace"] += 1
        raise


async def _when_there_is_room(
    session: Connection, coordinator: TransactionCoordinator, asked: AskedFor
) -> TxnId:
    await asyncio.sleep(_FULL_WAIT_S)
    exempt = is_exempt(session)
    excess = None if exempt else _excess(session)
    if excess is not None:
        limit, why = excess
        session.services.counts.refused[limit] += 1
        raise TooManyRequests(why)
    try:
        return await though_closed(_begin(session, coordinator, asked, exempt))
    except TooManyRequests:
        scope = "Coordinator" if coordinator.is_full else "Namespace"
        session.services.counts.refused[f"maxActiveTransactionsPer{scope}"] += 1
        raise


def _begin(
    session: Connection,
    coordinator: TransactionCoordinator,
    asked: AskedFor,
    exempt: bool = False,
) -> asyncio.Future[TxnId]:
    bound_to = None
    if asked.session is not None or session.sessions:
        bound_to = fencing.session_of_new(session, asked.session)
    beginning = coordinator.new_transaction(
        asked.timeout_ms,
        session.owner,
        exempt=exempt,
        namespace=asked.namespace,
        session=bound_to,
        client=(session.peer, session.client_version),
    )
    session.begun.begins(beginning, asked.abort_on_disconnect)
    return beginning


def _excess(session: Connection) -> tuple[str, str] | None:
    """The exhausted limit: its name, and a sentence about it. None if there is room."""
    config, coordinators = session.services.config, session.services.coordinators
    most = config.max_active_transactions_per_connection
    if most and session.begun.are(most):
        return "maxActiveTransactionsPerConnection", (
            f"This connection has {most} active transactions "
            "(maxActiveTransactionsPerConnection): end some, then retry"
        )
    owner, most = session.owner, config.max_active_transactions_per_principal
    if most and owner is not None and coordinators.live_of(owner) >= most:
        return "maxActiveTransactionsPerPrincipal", (
            f"{owner} has {most} active transactions (maxActiveTransactionsPerPrincipal): end "
            "some, or wait until they time out, then retry"
        )
    return None
