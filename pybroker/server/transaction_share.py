"""How many transactions may be open: of a connection, and of a principal on all its connections.

Whoever may log in may begin transactions, and those that are never ended stay for their timeout. So
everybody has a share, and a superuser is never refused.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Final, TypeVar

from pybroker.errors import TooManyRequests
from pybroker.names import TxnId
from pybroker.transaction.coordinator import FULL_WAIT_S
from pybroker.transaction.coordinators import Coordinators

if TYPE_CHECKING:
    from pybroker.server.session import Session

T = TypeVar("T")
_LOOK_AGAIN_S: Final = 1.0


class BegunTransactions:
    """Those that a connection began, and did not end itself. Others may have ended since."""

    __slots__ = ("_ids", "_next_look_s", "_since_look")

    def __init__(self) -> None:
        self._ids: set[TxnId] = set()
        self._since_look = 0  # how many began
        self._next_look_s = 0.0

    def __len__(self) -> int:
        return len(self._ids)

    def began(self, txn_id: TxnId) -> None:
        self._ids.add(txn_id)
        self._since_look += 1

    def ended(self, txn_ids: Iterable[TxnId]) -> None:
        self._ids.difference_update(txn_ids)

    def are(self, most: int, coordinators: Coordinators) -> bool:
        """Whether so many are open.

        Which of them have ended is looked up when many have begun since it was last, or once a
        second: those who ask again and again cost no more than those who begin.
        """
        if len(self._ids) < most:
            return False
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._next_look_s or self._since_look >= most / 2:
            self._next_look_s, self._since_look = now_s + _LOOK_AGAIN_S, 0
            self._ids = {txn_id for txn_id in self._ids if coordinators.begun(txn_id) is not None}
        return len(self._ids) >= most


def is_exempt(session: "Session") -> bool:
    return session.login is not None and session.login.is_super_user


def count(session: "Session", txn_id: TxnId) -> None:
    """As one that this connection began, where they are limited: else nobody would forget it."""
    most = session.services.config.max_active_transactions_per_connection
    if most and not is_exempt(session):
        session.begun.began(txn_id)


def within_share(session: "Session", begin: Callable[[], Awaitable[T]]) -> Awaitable[T]:
    """Raises, or fails with, what `begin` does, and TooManyRequests after a short wait."""
    if _excess(session) is None:
        return begin()
    return _when_there_is_room(session, begin)


async def _when_there_is_room(session: "Session", begin: Callable[[], Awaitable[T]]) -> T:
    await asyncio.sleep(FULL_WAIT_S)
    excess = _excess(session)
    if excess is not None:
        raise TooManyRequests(excess)
    return await begin()


def _excess(session: "Session") -> str | None:
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
