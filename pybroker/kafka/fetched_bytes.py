"""Limits the responses to Fetch in memory, of all connections."""

from functools import partial
from typing import Final

from pybroker.kafka.session import Session

_LEAST_ROOM: Final = 64 * 1024  # for a response, when there is no room


class FetchedBytes:
    """A response counts until its connection's next Fetch, which begins when it was sent, or until
    the connection ends.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._taken: dict[int, int] = {}  # by the session's number
        self.taken_bytes = 0

    def take(self, session: Session, wanted_bytes: int) -> int:
        """How many bytes the response may have: few when there is no room."""
        if session.number not in self._taken:
            session.at_end.append(partial(self.ended, session))
        self.ended(session)
        granted = min(wanted_bytes, max(_LEAST_ROOM, self._most_bytes - self.taken_bytes))
        self._taken[session.number] = granted
        self.taken_bytes += granted
        return granted

    def used(self, session: Session, size_bytes: int) -> None:
        self.ended(session)
        self._taken[session.number] = size_bytes
        self.taken_bytes += size_bytes

    def ended(self, session: Session) -> None:
        self.taken_bytes -= self._taken.pop(session.number, 0)
