"""What a member says of its records, in ShareFetch and ShareAcknowledge: applied, and durable."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from pybroker.kafka.errors import REFUSALS, ErrorCode, KafkaError
from pybroker.kafka.pacing import paced
from pybroker.kafka.shares.acquired import AckBatch
from pybroker.kafka.shares.share_consumer import ShareConsumer
from pybroker.kafka.shares.share_sessions import SharePlace, ShareSession

Said = Mapping[SharePlace, Sequence[AckBatch]]
Failures = dict[SharePlace, Exception]


async def asked_of(topics: Sequence[Mapping[str, Any]]) -> Said:
    """The partitions of a request, with their acknowledgements."""
    found: dict[SharePlace, list[AckBatch]] = {}
    async for topic in paced(topics):
        async for each in paced(topic["partitions"]):
            found.setdefault(SharePlace(topic["topic_id"], each["partition_index"]), []).extend(
                AckBatch(said["first_offset"], said["last_offset"], said["acknowledge_types"])
                for said in each["acknowledgement_batches"]
            )
    return found


async def acknowledge(share: ShareSession, said: Said, may_renew: bool) -> Failures:
    """Durable when this returns, but for the partitions in the result."""
    failures: Failures = {}
    changed: dict[SharePlace, ShareConsumer] = {}
    async for place, batches in paced([each for each in said.items() if each[1]]):
        try:
            consumer = share.partitions.get(place)
            if consumer is None:
                raise KafkaError(
                    ErrorCode.INVALID_RECORD_STATE, "The session has no records of this partition"
                )
            consumer.decide(batches, may_renew)
            changed[place] = consumer
        except REFUSALS as error:
            failures[place] = error
    stored = await asyncio.gather(
        *(each.stored() for each in changed.values()), return_exceptions=True
    )
    for place, outcome in zip(changed, stored, strict=True):
        if isinstance(outcome, REFUSALS):
            failures[place] = outcome
        elif isinstance(outcome, BaseException):
            raise outcome
    return failures
