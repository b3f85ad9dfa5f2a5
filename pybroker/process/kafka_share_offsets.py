"""Where share groups are on partitions that other brokers of the cluster serve."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from pybroker.base.errors import PulsarError, ServiceNotReady
from pybroker.base.names import TopicName
from pybroker.broker.brokers.ownership import BrokerAddress
from pybroker.kafka.errors import KafkaError, code_of
from pybroker.kafka.shares.progress import UNKNOWN, Answers, Progress
from pybroker.process.membership import Membership

_WAIT_S: Final = 10.0  # for a broker: clients wait thrice as long for all topics


class RemoteShareOffsets:
    """Implements ShareOffsetsElsewhere."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership

    async def progress(
        self, group_id: str, topic: str, partitions: Mapping[int, TopicName]
    ) -> Answers:
        return await self._ask("GET", group_id, topic, partitions)

    async def move(
        self,
        group_id: str,
        topic: str,
        partitions: Mapping[int, TopicName],
        offsets: Mapping[int, int],
    ) -> Answers:
        return await self._ask("POST", group_id, topic, partitions, offsets)

    async def delete(
        self, group_id: str, topic: str, partitions: Mapping[int, TopicName]
    ) -> Answers:
        return await self._ask("DELETE", group_id, topic, partitions)

    async def _ask(
        self,
        method: str,
        group_id: str,
        topic: str,
        partitions: Mapping[int, TopicName],
        offsets: Mapping[int, int] | None = None,
    ) -> Answers:
        """All brokers at once."""
        found: Answers = {}
        owners: dict[BrokerAddress, list[int]] = {}
        for each, name in partitions.items():
            found[each] = ServiceNotReady(f"{name} is moving between brokers", "try again")
            try:
                owner = await self._membership.ownership.owner_of(name)
            except ServiceNotReady as error:
                found[each] = error
            else:
                if owner is not None:
                    owners.setdefault(owner, []).append(each)
        target = f"/admin/v3/kafka/shareOffsets/{quote(group_id, safe='')}/{quote(topic, safe='')}"
        asked = []
        for owner, theirs in owners.items():
            body = b"" if offsets is None else _moves({each: offsets[each] for each in theirs})
            asked.append(self._of(owner, method, target, body, theirs))
        for answers in await asyncio.gather(*asked):
            found |= answers
        return found

    async def _of(
        self, broker: BrokerAddress, method: str, target: str, body: bytes, theirs: list[int]
    ) -> Answers:
        failed: PulsarError
        try:
            async with asyncio.timeout(_WAIT_S):
                reply = await self._membership.others.ask(broker, method, target, body)
        except TimeoutError:
            failed = ServiceNotReady(f"its broker did not answer within {_WAIT_S:g} s")
            return dict.fromkeys(theirs, failed)
        except PulsarError as error:
            failed = error
            return dict.fromkeys(theirs, failed)
        told = reply.json()
        if not reply.is_done or not isinstance(told, list):
            failed = ServiceNotReady(f"its broker answered {reply.status}")
            return dict.fromkeys(theirs, failed)
        return {part: _answer(each) for each in told if (part := each.get("partition")) in theirs}


def _moves(offsets: Mapping[int, int]) -> bytes:
    listed = [{"partition": part, "offset": offset} for part, offset in offsets.items()]
    return json.dumps({"offsets": listed}).encode()


def _answer(told: Mapping[str, Any]) -> Progress | Exception:
    if (code := told.get("errorCode")) is None:
        return Progress(told.get("startOffset", UNKNOWN), told.get("lag", UNKNOWN))
    message = told.get("message") or f"its broker answered with the error {code}"
    return KafkaError(code_of(code), message)
