"""DescribeLogDirs: how many bytes each partition takes. There is one directory, the storage.

- 2: flexible; 3: an error for the whole response; 4: the size of the directory (KIP-827), which is
  not told; 5: whether it is cordoned (KIP-1066), which it never is.

Partitions that are not loaded take their place when they are used again: they are not loaded only
to be measured.
"""

from collections.abc import Iterator
from typing import Any

from pybroker.broker.persistent.topic import Topic
from pybroker.kafka.permissions import require_admin
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Request, Session


async def handle(services: KafkaServices, session: Session, request: Request) -> dict[str, Any]:
    require_admin(services, session, "DescribeLogDirs")
    wanted = request["topics"]
    asked = None if wanted is None else {each["topic"]: each["partitions"] for each in wanted}
    found: dict[str, list[dict[str, int]]] = {}
    for topic, name, index in _loaded(services):
        if asked is None or index in asked.get(name, ()):
            size = topic.ledger.total_size_bytes
            found.setdefault(name, []).append({"partition_index": index, "partition_size": size})
    topics = [{"name": name, "partitions": found[name]} for name in sorted(found)]
    return {"results": [{"log_dir": "storage", "topics": topics}]}


def _loaded(services: KafkaServices) -> Iterator[tuple[Topic, str, int]]:
    """Each with its name and the number of the partition."""
    for topic in services.topics.loaded():
        name = services.names.shown(topic.name.partitioned_name)
        if name is not None:
            yield topic, name, max(0, topic.name.partition)
