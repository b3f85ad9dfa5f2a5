"""Names that a new topic cannot have, besides those that cannot be parsed."""

from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.errors import NoSuchPartition, NotAllowed, TopicNotFound
from pybroker.base.names import SEGMENT, TopicName
from pybroker.broker.namespaces.tenants import Conflict, Tenants


def check_last_partition(name: TopicName, partitions: int) -> None:
    """Raises InvalidTopicName if a partition's name would be too long."""
    TopicName.parse(str(name.partition_at(partitions - 1)))


def refuse_internal(name: TopicName) -> None:
    """Raises NotAllowed for the name of a transaction log."""
    if name.internal:
        raise NotAllowed(f"{name} is a transaction log, not a topic; use another name")


def check_creatable(config: BrokerConfig, tenants: Tenants, name: TopicName) -> None:
    """Whether clients may create the topic by using it. Raises NotAllowed, NotFound,
    TopicNotFound.
    """
    if name.domain == SEGMENT:
        raise TopicNotFound(f"{name} is no segment of its topic now: look up the topic again")
    domain = config.enable_persistent_topics, config.enable_non_persistent_topics
    if not domain[0 if name.persistent else 1]:
        raise NotAllowed(f"Broker is unable to load {name.domain} topic")
    tenants.check_takes_topics(name.namespace_name)
    partitions = tenants.partitions(name.partitioned_name)
    if name.partition >= partitions:  # -1 is no partition
        raise NoSuchPartition(
            f"Partition metadata not found for the partitioned topic: {name} would be a "
            f"partition of {name.partitioned_name}, which has {partitions}: create it with "
            "more partitions first, or use another name"
        )
    if name.partition < 0 and tenants.partitions(name):
        raise NotAllowed(
            f"Found partitioned metadata for non-partitioned topic: {name}; use its partitions"
        )


def check_free(tenants: Tenants, name: TopicName, exists: bool) -> None:
    """`exists`: whether the topic exists without partitions. Raises Conflict, NotFound."""
    tenants.check_takes_topics(name.namespace_name)
    if tenants.doomed_partitions(name):
        raise Conflict(f"{name} is being deleted", "try again when that is finished")
    if exists or tenants.partitions(name):
        raise Conflict("This topic already exists", f"choose a name other than {name}")
