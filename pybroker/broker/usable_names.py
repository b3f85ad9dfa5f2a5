"""Names that no topic may have, besides those that cannot be parsed."""

from pybroker.base.errors import NotAllowed
from pybroker.base.names import TopicName


def check_last_partition(name: TopicName, partitions: int) -> None:
    """Raises InvalidTopicName if a partition's name would be too long."""
    TopicName.parse(str(name.partition_at(partitions - 1)))


def refuse_internal(name: TopicName) -> None:
    """Raises NotAllowed."""
    if name.internal:
        raise NotAllowed(f"{name} is a transaction log, not a topic; use another name")
