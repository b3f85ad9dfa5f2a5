"""What happens to groups as the broker's clock moves on."""

from typing import Any

import pytest
from raw_kafka import RawKafka

from pybroker.testing import RunningBroker, broker

OFFSET_COMMIT, OFFSET_FETCH, JOIN_GROUP = 8, 9, 11


def test_offsets_of_a_group_without_members_expire() -> None:
    with broker(kafka=True) as running, RawKafka(running.kafka_bootstrap) as raw:
        raw.ask(3, 9, {"topics": [{"name": "t"}], "allow_auto_topic_creation": True})
        place = {"partition_index": 0, "committed_offset": 5}
        topics = [{"name": "t", "partitions": [place]}]
        raw.ask(OFFSET_COMMIT, 8, {"group_id": "g", "topics": topics})
        running.clock.advance("6d")
        assert offsets(running, "g") == [5]
        running.clock.advance("2d")
        assert offsets(running, "g") == []


def offsets(running: RunningBroker, group: str) -> list[int]:
    with RawKafka(running.kafka_bootstrap) as raw:
        answer = raw.ask(OFFSET_FETCH, 5, {"group_id": group, "topics": None})
    found = [part for topic in answer["topics"] for part in topic["partitions"]]
    return [each["committed_offset"] for each in found]


def test_the_first_member_of_a_group_waits_for_others() -> None:
    with (
        broker(kafka=True, kafka_group_initial_rebalance_delay_ms=240_000) as running,
        RawKafka(running.kafka_bootstrap) as raw,
    ):
        times = {"session_timeout_ms": 10_000, "rebalance_timeout_ms": 300_000}
        protocol = {"protocol_type": "consumer", "protocols": [{"name": "range", "metadata": b""}]}
        asked = {"group_id": "g", "member_id": "", **times, **protocol}
        raw.send(JOIN_GROUP, 3, asked)
        running.wait_until(lambda: bool(running.call(groups)))
        running.clock.advance("200s")
        raw.socket.settimeout(0.2)
        with pytest.raises(TimeoutError):
            raw.receive_frame()
        running.clock.advance("41s")
        raw.socket.settimeout(20)
        assert raw.receive()["generation_id"] == 1


async def groups(started: Any) -> list[object]:
    """Those with members, or with clients that wait to be one."""
    shards = await started._kafka.services.groups.shards()
    return [group for shard in shards for group in shard.groups.values()]
