"""Share sessions: which partitions a member fetches, between requests. They end with a connection.

Epoch 0 begins a session, -1 ends it, and every request between raises it by one. Source: KIP-932.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from pybroker.kafka.errors import ErrorCode, KafkaError
from pybroker.kafka.session import Session
from pybroker.kafka.shares.share_consumer import ShareConsumer

_SESSIONS: Final = "share sessions"  # the name in Session.kept
_MOST_SESSIONS: Final = 20  # of a connection; a consumer has one
_MOST_PARTITIONS: Final = 10_000  # of them together
BEGINS, ENDS = 0, -1
_LAST_EPOCH: Final = 2**31 - 1


class Member(NamedTuple):
    group_id: str
    member_id: str


class SharePlace(NamedTuple):
    """The topic's name is looked up at each use: the broker may come to know it later."""

    topic_id: bytes
    partition: int


class ShareSession:
    def __init__(self, member: Member, ids: Iterator[int], places: Callable[[], int]) -> None:
        """`places`: how many partitions the sessions of the connection have."""
        self.member = member
        self.epoch = 1  # that the next request must have
        self.partitions: dict[SharePlace, ShareConsumer | None] = {}  # None: not joined yet
        self.failing: frozenset[SharePlace] = frozenset()  # in the last fetch
        self._turn = 0
        self._ids = ids
        self._places = places

    def next_id(self) -> int:
        """Of a consumer, unique on the connection."""
        return next(self._ids)

    def add(self, place: SharePlace) -> None:
        """Raises KafkaError, INVALID_REQUEST, if there are too many."""
        if place in self.partitions:
            return
        if self._places() >= _MOST_PARTITIONS:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"The share sessions of a connection may have {_MOST_PARTITIONS} partitions",
            )
        self.partitions[place] = None

    def remove(self, place: SharePlace) -> None:
        if (consumer := self.partitions.pop(place, None)) is not None:
            consumer.close()

    def in_turn(self) -> list[SharePlace]:
        """All partitions; each request begins with another one."""
        places = list(self.partitions)
        if places:
            self._turn = (self._turn + 1) % len(places)
        return places[self._turn :] + places[: self._turn]

    def close(self) -> None:
        for place in list(self.partitions):
            self.remove(place)


class ShareSessions:
    """Those of one connection."""

    def __init__(self) -> None:
        self._sessions: dict[Member, ShareSession] = {}
        self._ids = itertools.count()

    @classmethod
    def of(cls, session: Session) -> "ShareSessions":
        found = session.kept.get(_SESSIONS)
        if found is None:
            found = session.kept[_SESSIONS] = cls()
            session.at_end.append(found.close)
        assert isinstance(found, ShareSessions)
        return found

    def begun(self, member: Member) -> ShareSession:
        """In place of one that the member had. Raises KafkaError, SHARE_SESSION_LIMIT_REACHED."""
        self.end(member)
        if len(self._sessions) >= _MOST_SESSIONS:
            raise KafkaError(
                ErrorCode.SHARE_SESSION_LIMIT_REACHED,
                f"A connection may have {_MOST_SESSIONS} share sessions",
            )
        made = self._sessions[member] = ShareSession(member, self._ids, self._places)
        return made

    def _places(self) -> int:
        return sum(len(each.partitions) for each in self._sessions.values())

    def continued(self, member: Member, epoch: int) -> ShareSession:
        """With `epoch`, which may be ENDS. Raises KafkaError: SHARE_SESSION_NOT_FOUND,
        INVALID_SHARE_SESSION_EPOCH.
        """
        found = self._sessions.get(member)
        if found is None:
            raise KafkaError(
                ErrorCode.SHARE_SESSION_NOT_FOUND, "There is no such session: begin one"
            )
        if epoch == ENDS:
            return found
        if epoch != found.epoch:
            raise KafkaError(
                ErrorCode.INVALID_SHARE_SESSION_EPOCH,
                f"The session's epoch is {found.epoch}, not {epoch}: begin another one",
            )
        found.epoch = 1 if epoch == _LAST_EPOCH else epoch + 1
        return found

    def end(self, member: Member) -> None:
        if (found := self._sessions.pop(member, None)) is not None:
            found.close()

    def close(self) -> None:
        for member in list(self._sessions):
            self.end(member)


def member_of(group_id: str | None, member_id: str | None, most_chars: int) -> Member:
    """Raises KafkaError: INVALID_GROUP_ID, INVALID_REQUEST."""
    if not group_id or len(group_id) > most_chars:
        raise KafkaError(
            ErrorCode.INVALID_GROUP_ID, f"A group needs an id of at most {most_chars} characters"
        )
    if not member_id or len(member_id) > most_chars:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"A member needs an id of at most {most_chars} characters"
        )
    return Member(group_id, member_id)
