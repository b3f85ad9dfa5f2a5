"""Which topics a query reads: one, some, or all whose names match a pattern."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from pybroker.errors import NotAllowed, TopicNotFound
from pybroker.names import TopicName
from pybroker.spark.options import Chosen
from pybroker.spark.session import Session

_WAYS: Final = ("topic", "topics", "topicsPattern")
_PARTITION: Final = re.compile(r"-partition-\d+$")
_SCHEME: Final = "://"
_SYSTEM: Final = "__"


@dataclass(frozen=True, slots=True)
class Topics:
    names: Sequence[str] = ()
    pattern: str | None = None
    # A topic that is not there is one without messages, for now.
    wait: bool = False

    @classmethod
    def of(cls, options: Chosen) -> Self:
        """Raises NotAllowed, InvalidTopicName."""
        given = [name for name in _WAYS if options.get(name) is not None]
        if len(given) != 1:
            said = f", and not {' and '.join(given)}" if given else ""
            raise NotAllowed(
                f'format("pulsar") needs one of the options topic, topics and topicsPattern{said}'
            )
        wait = options["waitingForNonExistedTopic"]
        if given == ["topicsPattern"]:
            return cls(pattern=_checked(options["topicsPattern"]), wait=wait)
        names = options["topics"] or (options["topic"],)
        return cls(tuple(dict.fromkeys(str(TopicName.parse(name)) for name in names)), wait=wait)

    def partitions(self, session: Session) -> list[str]:
        """Of all the topics that there are now, in order."""
        found: list[str] = []
        for name in self.bases(session):
            try:
                found += session.partitions(name)
            except TopicNotFound:
                if not self.wait:
                    raise
        return found

    def bases(self, session: Session) -> Sequence[str]:
        """The topics, whether they have partitions or not."""
        return self.names if self.pattern is None else self._matching(session, self.pattern)

    def _matching(self, session: Session, pattern: str) -> list[str]:
        """A pattern speaks of tenant/namespace/topic, whatever stands before ://."""
        whole = TopicName.parse(pattern)
        wanted = re.compile(str(whole).partition(_SCHEME)[2])
        listed = session.client.get_topics_of_namespace(whole.namespace_name)
        names = {str(TopicName.parse(_PARTITION.sub("", each))) for each in listed}
        return sorted(
            name
            for name in names
            if wanted.fullmatch(name.partition(_SCHEME)[2])
            and not TopicName.parse(name).local.startswith(_SYSTEM)
        )


def _checked(pattern: str) -> str:
    try:
        re.compile(pattern)
        TopicName.parse(pattern)
    except re.error as error:
        raise NotAllowed(f"topicsPattern is no regular expression: {error}") from error
    return pattern
