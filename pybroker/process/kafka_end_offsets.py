"""Where partitions end that other brokers of the cluster serve, for the lag of groups."""

from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import quote

from pybroker.base.errors import ServiceNotReady
from pybroker.base.names import TopicName
from pybroker.broker.brokers.ownership import BrokerAddress
from pybroker.process.membership import Membership


class RemoteEndOffsets:
    def __init__(self, membership: Membership) -> None:
        self._membership = membership

    async def __call__(self, topic: str, partitions: Mapping[int, TopicName]) -> dict[int, int]:
        """By partition; without those that are moving, or whose broker does not answer."""
        owners: dict[BrokerAddress, None] = {}
        for name in partitions.values():
            with suppress(ServiceNotReady):
                owner = await self._membership.ownership.owner_of(name)
                if owner is not None:
                    owners[owner] = None
        found: dict[int, int] = {}
        for owner in owners:
            with suppress(ServiceNotReady):
                found |= await self._of(owner, topic)
        return {each: found[each] for each in partitions if each in found}

    async def _of(self, broker: BrokerAddress, topic: str) -> dict[int, int]:
        target = f"/admin/v3/kafka/endOffsets/{quote(topic, safe='')}"
        reply = await self._membership.others.ask(broker, "GET", target)
        told = reply.json() if reply.is_done else None
        if not isinstance(told, list):
            return {}
        return {int(each["partition"]): int(each["endOffset"]) for each in told}
