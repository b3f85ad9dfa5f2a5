"""Changes of Kafka's clients to topics of a cluster: through the admin API, which knows how a
change concerns several brokers, and whose deletions are finished if a broker dies.
"""

from typing import Final
from urllib.parse import quote

from pybroker.base.names import TopicName
from pybroker.broker.brokers.other_brokers import Reply
from pybroker.broker.topics import Topics
from pybroker.kafka.errors import ErrorCode, KafkaError
from pybroker.process.membership import Membership

_CODES: Final = {
    404: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    409: ErrorCode.INVALID_PARTITIONS,
    503: ErrorCode.NOT_CONTROLLER,  # clients try again
}


class SharedChanges:
    """Implements TopicChanges."""

    def __init__(self, topics: Topics, membership: Membership) -> None:
        self._topics = topics
        self._membership = membership

    async def delete(self, name: TopicName) -> None:
        await self._topics.ownership.refreshed()
        self._topics.check_not_migrated(name)
        if self._topics.tenants.partitions(name):
            target = f"{_path(name)}/partitions?force=true"
            _check(await self._membership.ask_admin("DELETE", target))
        elif (owner := await self._topics.ownership.owner_of(name)) is None:
            await self._topics.delete(name, force=True)
        else:
            target = f"{_path(name)}?force=true"
            _check(await self._membership.others.ask(owner, "DELETE", target))

    async def grow(self, name: TopicName, partitions: int) -> None:
        self._topics.check_not_migrated(name)
        target = f"{_path(name)}/partitions"
        _check(await self._membership.ask_admin("POST", target, b"%d" % partitions))


def _path(name: TopicName) -> str:
    return f"/admin/v2/{name.domain}/{name.namespace_name}/{quote(name.local, safe='')}"


def _check(reply: Reply) -> None:
    """Raises KafkaError with the code that stands for the reply's status."""
    if not reply.is_done:
        found = reply.json()
        reason = found.get("reason", "") if isinstance(found, dict) else ""
        code = _CODES.get(reply.status, ErrorCode.UNKNOWN_SERVER_ERROR)
        raise KafkaError(code, str(reason) or f"the admin API answered {reply.status}")
