"""Names that a new topic cannot have, besides those that cannot be parsed."""

from pybroker.base.errors import NotAllowed
from pybroker.base.names import TopicName
from pybroker.broker.tenants import Conflict, Tenants


def check_last_partition(name: TopicName, partitions: int) -> None:
    """Raises InvalidTopicName if a partition's name would be too long."""
    TopicName.parse(str(name.partition_at(partitions - 1)))


def refuse_internal(name: TopicName) -> None:
    """Raises NotAllowed."""
    if name.internal:
        raise NotAllowed(f"{name} is a transaction log, not a topic; use another name")


def check_free(tenants: Tenants, name: TopicName, exists: bool) -> None:
    """`exists`: whether the topic exists without partitions. Raises Conflict, NotFound."""
    tenants.check_takes_topics(name.namespace_name)
    if tenants.doomed_partitions(name):
        raise Conflict(f"{name} is being deleted", "try again when that is finished")
    if exists or tenants.partitions(name):
        raise Conflict("This topic already exists", f"choose a name other than {name}")
