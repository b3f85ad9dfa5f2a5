"""Where reading begins and ends: from options to positions in each partition.

Accepts earliest and latest; message ids by topic, as [bytes of Java's MessageId], "ledger:entry" or
"ledger:entry:index"; and times, before which (or from which on) nothing is read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

from pybroker.base.errors import NotAllowed
from pybroker.base.names import TopicName, any_topic
from pybroker.client import InitialPosition, MessageId
from pybroker.spark.offsets import EARLIEST, Position
from pybroker.spark.options import Chosen
from pybroker.spark.reading.survey import survey_of
from pybroker.spark.reading.topics import Topics
from pybroker.spark.session import Session, each_of, position_of


class Place(NamedTuple):
    """A message: its entry, and its index in the batch if that matters (-1 if it does not)."""

    position: Position
    message: int = -1

    @classmethod
    def of(cls, given: object, option: str) -> Self:
        """Raises NotAllowed unless `given` is a list of bytes or "ledger:entry"."""
        try:
            if isinstance(given, str):
                ledger, entry, *index = map(int, given.split(":"))
                return cls(Position(ledger, entry), index[0] if index else -1)
            if isinstance(given, list) and given:
                data = bytes(int(byte) & 0xFF for byte in given)
                found = MessageId.deserialize(data)
                return cls(position_of(found), found.batch_index())
        except Exception as error:  # Protobuf's errors are not ValueErrors.
            raise NotAllowed(f"{option} contains {given!r}, which is not a message id") from error
        raise NotAllowed(
            f"{option} is {given!r}: a message id must be a list of bytes, as Java's toByteArray() "
            'returns it, or "ledger:entry"'
        )


def of_topic(given: Mapping[str, Any], topic: str) -> Any:
    """The value for a partition or a segment in a JSON object by topic: under its own name or its
    topic's. A topic without partitions may be named as its only one."""
    name = TopicName.parse(topic)
    whole = name.partitioned_name
    wanted = {str(name), f"{name}-partition-0" if whole == name else str(whole)}
    for key, value in given.items():
        if str(any_topic(key)) in wanted:
            return value
    return None


@dataclass(frozen=True, slots=True)
class Start:
    """Where a query begins without a checkpoint and without an existing subscription."""

    where: str | Mapping[str, Any] = "earliest"
    time_ms: int | Mapping[str, Any] | None = None

    @classmethod
    def of(cls, options: Chosen, default: str) -> Self:
        """Raises NotAllowed if both options are set, or name other topics than are read."""
        offsets, time_ms = options["startingOffsets"], options["startingTime"]
        if offsets is not None and time_ms is not None:
            raise NotAllowed(
                "startingOffsets and startingTime both set the beginning: use one of them"
            )
        for name in ("startingOffsets", "startingTime"):
            Topics.of(options).require(name, options[name])
        return cls(offsets or default, time_ms)

    def place(self, session: Session, topic: str) -> Place:
        """The last message before the first one to read."""
        time_ms = self.time_ms
        if time_ms is not None:
            when = of_topic(time_ms, topic) if isinstance(time_ms, Mapping) else time_ms
            return Place(EARLIEST if when is None else session.before_time(topic, int(when)))
        if isinstance(self.where, str):
            return Place(EARLIEST if self.where == "earliest" else session.last_position(topic))
        given = of_topic(self.where, topic)
        if given is None:
            return Place(EARLIEST)
        first = Place.of(given, "startingOffsets")
        if first.position == position_of(MessageId.latest):
            return Place(session.last_position(topic))
        if first.position < Position(0, 0):
            return Place(EARLIEST)
        before = first.position._replace(entry_id=first.position.entry_id - 1)
        return Place(before, first.message)

    def cursors(
        self, session: Session, topics: Sequence[str], subscription: str
    ) -> dict[str, Position]:
        """The subscription's position on each topic. A subscription that is before a start time or
        id, or that is created now, is moved there: nothing before it is wanted.

        An id within a batch means the whole batch: a source's cursor moves by whole entries.
        """
        survey = survey_of(session)
        if self.time_ms is None and isinstance(self.where, str):
            return survey.cursors(topics, subscription, _INITIAL[self.where])
        cursors = survey.cursors(topics, subscription, InitialPosition.Earliest)
        places = each_of(topics, lambda topic: self.place(session, topic).position)
        wanted = dict(zip(topics, places, strict=True))
        survey.acknowledge_up_to(wanted, subscription)
        return {topic: max(cursor, wanted[topic]) for topic, cursor in cursors.items()}


_INITIAL: Final = {"earliest": InitialPosition.Earliest, "latest": InitialPosition.Latest}
FROM_EARLIEST: Final = Start()
