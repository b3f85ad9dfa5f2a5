"""Where a share group is on a partition, and how other brokers of a cluster are asked for it."""

from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

from pybroker.base.names import TopicName

UNKNOWN: Final = -1  # an offset or a lag


class Progress(NamedTuple):
    """The lag is in records, UNKNOWN behind records that were acknowledged out of order."""

    start_offset: int = UNKNOWN
    lag: int = UNKNOWN


# By partition. The exceptions are REFUSALS.
Answers = dict[int, Progress | Exception]


class ShareOffsetsElsewhere(Protocol):
    """Asks the brokers that serve the `partitions`. Each of these has an answer."""

    async def progress(
        self, group_id: str, topic: str, partitions: Mapping[int, TopicName]
    ) -> Answers: ...

    async def move(
        self,
        group_id: str,
        topic: str,
        partitions: Mapping[int, TopicName],
        offsets: Mapping[int, int],
    ) -> Answers:
        """Without an answer of its broker, a partition may have been moved or not."""
        ...

    async def delete(
        self, group_id: str, topic: str, partitions: Mapping[int, TopicName]
    ) -> Answers:
        """As `move`."""
        ...


def refused(answers: Answers) -> dict[int, Exception]:
    return {part: each for part, each in answers.items() if isinstance(each, Exception)}
