"""Which topics a query reads: one, some, or all whose names match a pattern."""

import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Self

from pybroker.base.errors import NotAllowed, TopicNotFound
from pybroker.base.names import SCALABLE, SEGMENT, TopicName, any_topic
from pybroker.spark import control_topics
from pybroker.spark.options import Chosen
from pybroker.spark.session import Session, each_of

_WAYS: Final = ("topic", "topics", "topicsPattern")
_PARTITION: Final = re.compile(r"-partition-\d+$")
_SCHEME: Final = "://"
_OF_SEGMENTS: Final = f"{SEGMENT}://"
_SYSTEM: Final = "__"


@dataclass(frozen=True, slots=True)
class Topics:
    names: Sequence[str] = ()
    pattern: str | None = None
    # Treat a missing topic as empty for now.
    wait: bool = False

    @classmethod
    def of(cls, options: Chosen) -> Self:
        """Raises NotAllowed unless exactly one option names topics, InvalidTopicName for a bad
        name.
        """
        given = [name for name in _WAYS if options.get(name) is not None]
        if len(given) != 1:
            said = f", not {' and '.join(given)}" if given else ""
            raise NotAllowed(
                f'format("pulsar") needs one of the options topic, topics and topicsPattern{said}'
            )
        wait = options["waitingForNonExistedTopic"]
        if given == ["topicsPattern"]:
            return cls(pattern=_checked(options["topicsPattern"]), wait=wait)
        names = options["topics"] or (options["topic"],)
        return cls(tuple(dict.fromkeys(str(any_topic(name)) for name in names)), wait=wait)

    def partitions(self, session: Session, known: Collection[str] = ()) -> list[str]:
        """The partitions of all current topics, in order. A topic with a partition in `known` is
        not created again if it is gone, but left out.

        Partitions of topics that match a pattern come from the namespace's list. A broker that
        creates partitions on first use lists only used ones, so it is asked for their number.
        """
        if self.pattern is None:
            return self._partitions_of(session, self.names, known)
        listed = self._listed(session, self.pattern)
        if session.asks_about_many:
            return list(listed)
        partitioned = dict.fromkeys(_base(name) for name in listed if _base(name) != name)
        plain = [name for name in listed if _base(name) == name]
        return [*plain, *self._partitions_of(session, list(partitioned), known)]

    def _partitions_of(
        self, session: Session, names: Sequence[str], known: Collection[str]
    ) -> list[str]:
        known_names = {_base(each) for each in known}

        def partitions(name: str) -> Sequence[str]:
            is_known = _base(name) in known_names
            try:
                return session.partitions(name, create=not is_known)
            except TopicNotFound:
                if not self.wait and not is_known:
                    raise
                return ()

        found = [each for some in each_of(names, partitions) for each in some]
        # A topic may be listed together with one of its partitions.
        return list(dict.fromkeys(found))

    def existing_partitions(self, session: Session) -> list[str]:
        """Like `partitions`, without creating topics. Raises TopicNotFound for a named topic that
        is missing, unless missing topics are treated as empty."""
        found = self.partitions(session, self.names)
        self.require_all([name for name in self.names if not _is_among(name, found)])
        return found

    def require_all(self, missing: Sequence[str]) -> None:
        """Raises TopicNotFound for `missing` topics, unless they are treated as empty."""
        if missing and self.pattern is None and not self.wait:
            raise TopicNotFound(
                f"{', '.join(missing)} does not exist: check the name. Or it was deleted, because "
                "brokers delete topics that are unused for a minute: subscribe to a topic before "
                "it is written to, or set brokerDeleteInactiveTopicsEnabled=false. With "
                "waitingForNonExistedTopic=true a missing topic is treated as empty"
            )

    def bases(self, session: Session) -> Sequence[str]:
        """The topics, partitioned or not; a segment of each scalable one, which has its schemas."""
        if self.pattern is None:
            return [_first_segment(session, name) or name for name in self.names]
        return sorted({_base(name) for name in self._listed(session, self.pattern)})

    def require(self, option: str, given: object) -> None:
        """Checks positions or times by topic. Raises NotAllowed for a topic that is not read: the
        value was meant for a topic that would otherwise begin elsewhere."""
        for key in given if isinstance(given, Mapping) else ():
            name = str(any_topic(key))
            if not self._reads(name) and not self._reads(_base(name)):
                raise NotAllowed(
                    f"{option} mentions {key}, which is not among the topics read: "
                    f"{self.pattern or ', '.join(self.names)}"
                )

    def _reads(self, name: str) -> bool:
        if self.pattern is not None:
            return _of_pattern(self.pattern).fullmatch(name.partition(_SCHEME)[2]) is not None
        return any(name in (each, _base(each)) for each in self.names)

    def _listed(self, session: Session, pattern: str) -> Sequence[str]:
        namespace = TopicName.parse(pattern).namespace_name
        return _matching(pattern, tuple(session.client.get_topics_of_namespace(namespace)))


@lru_cache(maxsize=4)  # a poll reuses the list of the previous poll
def _matching(pattern: str, listed: Sequence[str]) -> Sequence[str]:
    """Sorted by topic, and the partitions of each topic by number; without this package's own."""
    wanted, asks_for_former = _of_pattern(pattern), control_topics.asks_for_former(pattern)
    names = [TopicName.parse(name) for name in listed]
    return [
        str(name)
        for name in sorted(names, key=lambda name: (str(name.partitioned_name), name.partition))
        if wanted.fullmatch(str(name.partitioned_name).partition(_SCHEME)[2])
        and not name.local.startswith(_SYSTEM)
        and (asks_for_former or not control_topics.is_former(name.partitioned_name.local))
    ]


def _first_segment(session: Session, name: str) -> str | None:
    """None for an ordinary topic, and for a missing one."""
    if any_topic(name).domain != SCALABLE:
        return None
    with suppress(TopicNotFound):
        return session.partitions(name, create=False)[0]
    return None


def _base(name: str) -> str:
    """The topic of a partition or a segment."""
    if name.startswith(_OF_SEGMENTS):
        return str(TopicName.parse(name).partitioned_name)
    return _PARTITION.sub("", name)


def _is_among(name: str, partitions: Collection[str]) -> bool:
    return any(name in (each, _base(each)) for each in partitions)


def _of_pattern(pattern: str) -> re.Pattern[str]:
    """A pattern applies to tenant/namespace/topic, without what precedes ://."""
    return re.compile(str(TopicName.parse(pattern)).partition(_SCHEME)[2])


def _checked(pattern: str) -> str:
    try:
        re.compile(pattern)
        TopicName.parse(pattern)
    except re.error as error:
        raise NotAllowed(f"topicsPattern is not a regular expression: {error}") from error
    return pattern
