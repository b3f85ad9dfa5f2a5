"""Fetch: batches of many partitions, or a wait until there are some.

- 4: isolation levels. read_committed ends at the last stable offset, and aborted messages are left
  out at the broker: the list of aborted transactions is empty.
- 5: the log's first offset; 7: fetch sessions, of which there are none here: session id 0.
- 9: the client's leader epoch; 11: the rack; 12: the epoch of the last fetch.
- 13: topics by their ids (KIP-516); 15 to 18: what replicas say.
- 16: the new leader of a partition (KIP-951) is left out: clients believe only a later epoch, and
  epochs do not change here.

Up to max_bytes in all and partition_max_bytes of each are answered; only the first batch may be
larger. With less than min_bytes the request waits for max_wait_ms, and is woken by the topics.
"""

from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, Final

from pybroker.kafka.errors import REFUSALS, ErrorCode, KafkaError, error_code
from pybroker.kafka.fetching import Fetching, PartitionFetch, refused
from pybroker.kafka.log.partition_log import LEADER_EPOCH
from pybroker.kafka.pacing import paced
from pybroker.kafka.partition_logs import partition_log_of
from pybroker.kafka.permissions import Operation
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Request, Session
from pybroker.kafka.topics import named

_READ_COMMITTED: Final = 1
_MOST_WAIT_S: Final = 30.0
_FIRST_WITH_IDS: Final = 13
_MOST_BYTES: Final = 16 * 1024 * 1024
Body = Mapping[str, Any]


async def handle(services: KafkaServices, session: Session, request: Request) -> Body:
    committed = request["isolation_level"] == _READ_COMMITTED
    topics = [
        {
            "topic": topic["topic"],
            "topic_id": topic["topic_id"],
            "partitions": [
                await _asked(services, session, name, each, committed)
                async for each in paced(topic["partitions"])
            ],
        }
        async for name, topic in _named(services, request)
    ]
    room_bytes = services.fetched.take(session, min(max(0, request["max_bytes"]), _MOST_BYTES))
    fetching = Fetching(list(_partitions(topics)), room_bytes)
    await fetching.read(
        min(request["min_bytes"], room_bytes), min(request["max_wait_ms"] / 1000, _MOST_WAIT_S)
    )
    services.fetched.used(session, fetching.size_bytes)
    return {
        "responses": [
            {**each, "partitions": [partition.response() for partition in each["partitions"]]}
            for each in topics
        ]
    }


async def _named(
    services: KafkaServices, request: Request
) -> AsyncIterator[tuple[str | None, Body]]:
    if request.version >= _FIRST_WITH_IDS:
        async for name, topic in named(services, request["topics"]):
            yield name, topic
        return
    async for topic in paced(request["topics"]):
        yield topic["topic"], topic


def _partitions(topics: list[dict[str, Any]]) -> Iterator[PartitionFetch]:
    for topic in topics:
        yield from topic["partitions"]


async def _asked(
    services: KafkaServices, session: Session, topic: str | None, asked: Body, committed: bool
) -> PartitionFetch:
    index = asked["partition"]
    if topic is None:
        return refused(index, ErrorCode.UNKNOWN_TOPIC_ID)
    try:
        log = await partition_log_of(services, session, topic, index, Operation.READ)
        check_epoch(asked["current_leader_epoch"])
    except REFUSALS as error:
        return refused(index, error_code(error))
    return PartitionFetch(
        index, log, asked["fetch_offset"], max(0, asked["partition_max_bytes"]), committed
    )


def check_epoch(asked: int) -> None:
    """Raises KafkaError, if the client knows another leader of the partition."""
    if asked > LEADER_EPOCH:
        raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH, f"the leader's epoch is {LEADER_EPOCH}")
