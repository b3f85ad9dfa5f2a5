"""Whether a topic's log is still the one in which a query stands.

A broker that was restored from an older backup has lost the end of its logs, and writes other
messages to the same places. Positions alone cannot tell: a stream would wait until the log has
grown past the place that it knows, and miss all that was published before. So an offset says of the
message at its end when it was published, and that message is looked up again before the next batch
is planned on a new connection. What retention has trimmed is no loss: then nothing is left before
it either.
"""

from pybroker.spark.offsets import EARLIEST, Position
from pybroker.spark.session import Session


class Continuity:
    """Of one run of a query."""

    def __init__(self) -> None:
        # What was found to be in order: on which connections, and for an end that lies before the
        # known place also where the log ended.
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

        `reached`: up to where the query has planned to read; `published_ms`: of the message there,
        if it was one and its time is known; `end`: the last message that can be delivered now.
        """
        if end == reached:
            return None  # Nothing is to be read; with the next message it is looked at.
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
        """Whether the message at `reached`, behind which there are others, was not looked at."""
        return end > reached and self._seen.get(topic) != _state(session, reached, end)

    def is_in_order(self, session: Session, topic: str) -> None:
        """Somebody has looked at the message that the query reached, and it is the same."""
        self._seen[topic] = (session.incarnation,)


def _state(session: Session, reached: Position, end: Position) -> tuple[object, ...]:
    return (session.incarnation, *((reached, end) if end < reached else ()))


def _broken(
    session: Session, topic: str, reached: Position, published_ms: int | None, end: Position
) -> str | None:
    if end < reached:  # So it is behind markers, and where all messages were trimmed.
        log_end = session.log_end(topic)
        return f"it ends at {log_end}, before {reached}" if log_end < reached else None
    if published_ms is None:
        return None
    found = session.message_from(topic, reached)
    if found is not None and found[0] == reached:
        return None if found[1] == published_ms else f"at {reached} stands another message"
    first = session.first_position_after(topic, EARLIEST)
    if first is not None and first < reached:
        return f"the message at {reached} is gone, and earlier ones are there"
    return None
