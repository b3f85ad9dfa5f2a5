"""What groups of Kafka's have committed of a deleted topic, wherever in the cluster they are.

A log of groups may move to another broker meanwhile: the deletion goes on once each log was served
by a broker that has forgotten the topic. Otherwise a topic of the same name would be read from
where the deleted one was.
"""

import asyncio
import logging
from collections.abc import Collection
from typing import Final
from urllib.parse import quote

from pybroker.base.errors import ServiceNotReady
from pybroker.broker.brokers.other_brokers import Reply
from pybroker.broker.brokers.ownership import BrokerAddress
from pybroker.process.kafka_offsets import LazyOffsets
from pybroker.process.membership import Membership

_WAIT_S: Final = 60.0
_PAUSE_S: Final = 0.5
_NOT_FOUND: Final = 404  # of a broker that does not know the request

log = logging.getLogger(__name__)


class Forgetting:
    """Implements ForgetOnOthers."""

    def __init__(self, membership: Membership, offsets: LazyOffsets) -> None:
        self._membership = membership
        self._offsets = offsets

    async def __call__(self, topic: str, partition: int | None) -> None:
        """Raises ServiceNotReady, StorageFull."""
        left, why = {each.partition for each in self._offsets.begun()}, "no broker has answered"
        try:
            async with asyncio.timeout(_WAIT_S):
                while left:
                    try:
                        left -= await self._round(left, topic, partition)
                    except ServiceNotReady as error:  # a log is moving to another broker
                        why = str(error)
                    if left:
                        await asyncio.sleep(_PAUSE_S)
        except TimeoutError:
            raise ServiceNotReady(
                f"Groups of Kafka's clients still have offsets of {topic}, a deleted topic: {why}",
                "try again",
            ) from None

    async def _round(self, logs: Collection[int], topic: str, partition: int | None) -> set[int]:
        """The numbers of logs where the topic is forgotten."""
        done = set(await self._offsets.forget_here(topic, partition))
        remote = await self._owners([each for each in logs if each not in done])
        for broker, theirs in remote.items():
            done |= await self._forget_at(broker, theirs, topic, partition)
        return done

    async def _owners(self, logs: Collection[int]) -> dict[BrokerAddress, set[int]]:
        """Of logs that other brokers serve. What nobody serves, this broker takes."""
        found: dict[BrokerAddress, set[int]] = {}
        for name in self._offsets.begun():
            if name.partition in logs:
                owner = await self._membership.ownership.owner_of(name)
                if owner is not None:
                    found.setdefault(owner, set()).add(name.partition)
        return found

    async def _forget_at(
        self, broker: BrokerAddress, logs: set[int], topic: str, partition: int | None
    ) -> set[int]:
        """The numbers of the logs where the topic is forgotten, or that nobody can ask for it."""
        others = self._membership.others
        if not (broker.http_url or broker.http_url_tls) or others.is_foreign(
            self._membership.id_of(broker) or ""
        ):
            log.warning("%s keeps offsets of %s, which is deleted", broker.broker_url, topic)
            return logs
        query = "" if partition is None else f"?partition={partition}"
        target = f"/admin/v3/kafka/offsets/{quote(topic, safe='')}{query}"
        reply = await others.ask(broker, "DELETE", target)
        if reply.status == _NOT_FOUND:
            log.warning("%s keeps offsets of %s: its version is older", broker.broker_url, topic)
            return logs
        return _numbers(reply)


def _numbers(reply: Reply) -> set[int]:
    """The logs in an answer. Raises ServiceNotReady for a refusal."""
    found = reply.json()
    if not reply.is_done or not isinstance(found, list):
        raise ServiceNotReady(f"a broker answered {reply.status}")
    return {each for each in found if isinstance(each, int)}
