"""Checks that a topic's log is still the one that a query has read.

A broker that was restored from an older backup has lost the end of its logs, and writes other
messages at the same positions. Positions alone do not show this: a stream would wait until the log
has grown past the position it knows, and miss everything published before. So an offset records the
publish time of the message at its end, and that message is looked up again before the next batch is
planned on a new connection. Messages that retention has trimmed are no loss: then nothing before
them is left either.
"""

from pybroker.spark.offsets import EARLIEST, Position
from pybroker.spark.session import Session


class Continuity:
    """The checks of one run of a query."""

    def __init__(self) -> None:
        # By topic, the state in which it was found in order: the connections, and, for an end
        # before the known position, also where the log ended.
        self._seen: dict[str, tuple[object, ...]] = {}

    def broken(
        self,
        session: Session,
        topic: str,
        reached: Position,
        published_ms: int | None,
        end: Position,
    ) -> str | None:
        """What is wrong with the log, or None.

        `reached`: the position up to which the query has planned to read; `published_ms`: the
        publish time there, if known and if it is a message; `end`: the last deliverable message.
        """
        if end == reached:
            return None  # Nothing to read; the check follows with the next message.
        state = _state(session, reached, end)
        if self._seen.get(topic) == state:
            return None
        what = _broken(session, topic, reached, published_ms, end)
        if what is None:
            self._seen[topic] = state
        return what

    def is_to_be_looked_at(
        self, session: Session, topic: str, reached: Position, end: Position
    ) -> bool:
        """Whether there are messages after `reached`, and the message at `reached` is unchecked."""
        return end > reached and self._seen.get(topic) != _state(session, reached, end)

    def is_in_order(self, session: Session, topic: str) -> None:
        """Notes that the message that the query reached was checked elsewhere and is the same."""
        self._seen[topic] = (session.incarnation,)


def _state(session: Session, reached: Position, end: Position) -> tuple[object, ...]:
    return (session.incarnation, *((reached, end) if end < reached else ()))


def _broken(
    session: Session, topic: str, reached: Position, published_ms: int | None, end: Position
) -> str | None:
    if end < reached:  # In order if `reached` follows markers, or all messages were trimmed.
        log_end = session.log_end(topic)
        return f"it ends at {log_end}, before {reached}" if log_end < reached else None
    if published_ms is None:
        return None
    found = session.message_from(topic, reached)
    if found is not None and found[0] == reached:
        return None if found[1] == published_ms else f"the message at {reached} is a different one"
    first = session.first_position_after(topic, EARLIEST)
    if first is not None and first < reached:
        return f"the message at {reached} is gone, but earlier ones exist"
    return None
