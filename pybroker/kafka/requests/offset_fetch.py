"""OffsetFetch: what groups have committed.

Versions: to 7 one group, from 8 on several; from 2 on all of a group's offsets; from 7 on stable
ones only, on request (KIP-447); from 10 on topics by their ids.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pybroker.kafka.coordinator.committing import Fetched, fetch
from pybroker.kafka.errors import ErrorCode, KafkaError
from pybroker.kafka.offsets.records import TopicPartition
from pybroker.kafka.pacing import paced
from pybroker.kafka.permissions import require_group
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Request, Session
from pybroker.kafka.topics import named

_SEVERAL: Final = 8
_FIRST_WITH_IDS: Final = 10
_WITH_AN_ERROR: Final = 2  # of the whole, from here on
_NOTHING: Final = -1


async def handle(services: KafkaServices, session: Session, request: Request) -> Mapping[str, Any]:
    require_stable = request["require_stable"]
    if request.version >= _SEVERAL:
        asked = request["groups"]
        return {
            "groups": [
                await _by_ids(services, session, each, require_stable)
                if request.version >= _FIRST_WITH_IDS
                else await _group(services, session, each, require_stable)
                async for each in paced(asked)
            ]
        }
    group = await _group(services, session, request.body, require_stable)
    if request.version < _WITH_AN_ERROR and group["error_code"] is not ErrorCode.NONE:
        group["topics"] = await _failed(request["topics"], group["error_code"])
    return group


async def _by_ids(
    services: KafkaServices, session: Session, asked: Mapping[str, Any], require_stable: bool
) -> dict[str, Any]:
    """A group with topics by their ids."""
    nameless: list[dict[str, Any]] = []
    if (topics := asked["topics"]) is not None:
        with_names = []
        async for name, topic in named(services, topics):
            if name is None:
                nameless.append(_unknown(topic))
            else:
                with_names.append({**topic, "name": name})
        asked = {**asked, "topics": with_names}
    found = await _group(services, session, asked, require_stable)
    for topic in found["topics"]:
        topic["topic_id"] = services.topic_ids.of(topic["name"])
    found["topics"] += nameless
    return found


def _unknown(topic: Mapping[str, Any]) -> dict[str, Any]:
    partitions = [
        {
            "partition_index": each,
            "committed_offset": _NOTHING,
            "committed_leader_epoch": _NOTHING,
            "metadata": "",
            "error_code": ErrorCode.UNKNOWN_TOPIC_ID,
        }
        for each in topic["partition_indexes"]
    ]
    return {"topic_id": topic["topic_id"], "partitions": partitions}


async def _group(
    services: KafkaServices, session: Session, asked: Mapping[str, Any], require_stable: bool
) -> dict[str, Any]:
    group_id, topics = asked["group_id"], asked["topics"]
    places = None if topics is None else await _places(topics)
    try:
        require_group(services, session, group_id)
        fetched = await fetch(services.groups, group_id, places, require_stable)
    except KafkaError as error:
        return {"group_id": group_id, "error_code": error.code, "topics": []}
    by_topic = await _by_topic(fetched)
    return {"group_id": group_id, "error_code": ErrorCode.NONE, "topics": by_topic}


async def _places(topics: Sequence[Mapping[str, Any]]) -> list[TopicPartition]:
    return [
        TopicPartition(topic["name"], partition)
        async for topic in paced(topics)
        for partition in topic["partition_indexes"]
    ]


async def _by_topic(fetched: Sequence[Fetched]) -> list[dict[str, Any]]:
    topics: dict[str, list[dict[str, Any]]] = {}
    async for each in paced(fetched):
        topics.setdefault(each.place.topic, []).append(_partition(each))
    return [{"name": name, "partitions": partitions} for name, partitions in topics.items()]


def _partition(fetched: Fetched) -> dict[str, Any]:
    committed = fetched.committed
    return {
        "partition_index": fetched.place.partition,
        "committed_offset": _NOTHING if committed is None else committed.offset,
        "committed_leader_epoch": _NOTHING if committed is None else committed.leader_epoch,
        "metadata": "" if committed is None else committed.metadata,
        "error_code": fetched.error,
    }


async def _failed(topics: Sequence[Mapping[str, Any]], error: ErrorCode) -> list[dict[str, Any]]:
    return await _by_topic([Fetched(place, None, error) for place in await _places(topics)])
