"""When participants were added to a transaction, what decided its end, and when each participant
ended it. For the admin API; the protocol does not need it. Not durable.
"""

from collections.abc import Iterable
from enum import Enum
from typing import Final, TypeVar

MOST_FOLLOWED: Final = 50  # participants of one transaction
K = TypeVar("K")


class DecidedBy(Enum):
    CLIENT = "client"
    TIMEOUT = "timeout"
    ADMINISTRATOR = "administrator"
    DISCONNECT = "disconnect"  # the connection that began it was closed
    FENCING = "fencing"  # by a newer session of its transactional id
    UNKNOWN = "unknown"  # decided before a restart


# A prepared transaction is not ended by these.
NOT_OF_PREPARED: Final = frozenset((DecidedBy.TIMEOUT, DecidedBy.DISCONNECT, DecidedBy.FENCING))


class DecidedEnd:
    """`followed`: participants (topic, subscription or None), each with the time in ms at which it
    ended the transaction and the result of that.
    """

    __slots__ = ("at_ms", "by", "followed")

    def __init__(self) -> None:
        self.at_ms: int | None = None  # None: before a restart
        self.by = DecidedBy.UNKNOWN
        self.followed: list[tuple[tuple[str, str | None], int, object]] = []

    def note(self, participant: tuple[str, str | None], at_ms: int, result: object) -> None:
        if len(self.followed) < MOST_FOLLOWED:
            self.followed.append((participant, at_ms, result))


def decided(end: DecidedEnd | None, at_ms: int) -> DecidedEnd:
    """Note the decision. The client made it, unless the caller notes otherwise later."""
    end = end or DecidedEnd()
    end.at_ms, end.by = at_ms, DecidedBy.CLIENT
    return end


def note_added(participants: dict[K, int | None], added: Iterable[K], now_ms: int) -> None:
    """Existing participants keep their time."""
    for each in added:
        if participants[each] is None:
            participants[each] = now_ms
