"""Asks all other live brokers about an ordinary topic that is made scalable; see parts.py."""

import asyncio
from typing import Final
from urllib.parse import quote

from pybroker.base.errors import NotAllowed, ServiceNotReady
from pybroker.base.names import TopicName
from pybroker.broker.brokers.other_brokers import Reply
from pybroker.broker.brokers.ownership import BrokerAddress
from pybroker.broker.brokers.parts_elsewhere import Attached
from pybroker.cluster.admin_client import AdminClient
from pybroker.cluster.bundle_ownership import ANSWER_S, as_not_ready
from pybroker.cluster.live_brokers import LiveBrokers

_NOT_FOUND: Final = 404  # of a broker that does not know the request


class OthersOfParts:
    """Implements OtherBrokersOfParts."""

    def __init__(self, brokers: LiveBrokers, admin: AdminClient) -> None:
        self._brokers = brokers
        self._admin = admin

    async def attached(self, name: TopicName) -> list[Attached]:
        others = await self._others()
        for broker_id in others:
            if self._brokers.is_foreign(broker_id):
                raise NotAllowed(
                    f"{name}: {broker_id} is a broker of Apache Pulsar, which does not give topics "
                    "away that are made scalable: stop it first"
                )
        return [_attached(reply) for reply in await self._ask_all(others, "GET", name)]

    async def leave(self, name: TopicName) -> None:
        others = await self._others()
        ours = {each: at for each, at in others.items() if not self._brokers.is_foreign(each)}
        await self._ask_all(ours, "PUT", name)

    async def _others(self) -> dict[str, BrokerAddress]:
        with as_not_ready("which brokers are in the cluster"):
            async with asyncio.timeout(ANSWER_S):
                places = await self._brokers.current()
        found = {}
        for broker_id, place in places.items():
            if broker_id != self._brokers.own_id:
                if place is None:
                    raise ServiceNotReady(f"the entry of {broker_id} in ZooKeeper cannot be read")
                found[broker_id] = place.address
        return found

    async def _ask_all(
        self, brokers: dict[str, BrokerAddress], method: str, name: TopicName
    ) -> list[Reply]:
        """Raises ServiceNotReady unless all have answered."""
        local = quote(name.local, safe="")
        target = f"/admin/v3/migrations/{name.namespace_name}/{local}"
        asking = (self._admin.ask(each, method, target) for each in brokers.values())
        replies = await asyncio.gather(*asking, return_exceptions=True)
        found = []
        for broker_id, reply in zip(brokers, replies, strict=True):
            if isinstance(reply, BaseException):
                raise reply
            if reply.status == _NOT_FOUND:
                raise ServiceNotReady(f"{broker_id} has an older version: update it first")
            if not reply.is_done:
                raise ServiceNotReady(f"{broker_id} answered {reply.status}; try again")
            found.append(reply)
        return found


def _attached(reply: Reply) -> Attached:
    try:
        return Attached.of_json(reply.json())
    except (TypeError, KeyError, ValueError, AttributeError) as why:
        raise ServiceNotReady(f"another broker's answer cannot be read: {why!r}") from None
