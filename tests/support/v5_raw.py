"""Commands of the V5 SDK over a raw connection."""

from collections.abc import Iterable, Sequence
from typing import Any

from raw_client import RawClient

from pybroker.wire import pulsar_api_pb2 as pb

_T = pb.BaseCommand


def watch_layout(raw: RawClient, topic: str, session_id: int = 1, create: bool = True) -> Any:
    """The first update: a layout or an error."""
    asked = pb.CommandScalableTopicLookup(
        session_id=session_id, topic=topic, create_if_missing=create
    )
    raw.send(_T.SCALABLE_TOPIC_LOOKUP, "scalableTopicLookup", asked)
    return next_layout(raw)


def next_layout(raw: RawClient) -> Any:
    return raw.receive(_T.SCALABLE_TOPIC_UPDATE)


def close_layout(raw: RawClient, session_id: int = 1) -> None:
    asked = pb.CommandScalableTopicClose(session_id=session_id)
    raw.send(_T.SCALABLE_TOPIC_CLOSE, "scalableTopicClose", asked)


def topics_of(update: Any) -> list[str]:
    """The local names of a layout's segments."""
    assert not update.HasField("error"), update
    return [each.legacy_topic_name.rpartition("/")[2] for each in update.dag.segments]


def join(
    raw: RawClient,
    topic: str,
    name: str = "one",
    consumer_id: int = 1,
    subscription: str = "s",
    kind: Any = pb.STREAM,
) -> Any:
    """The answer: an assignment or an error."""
    asked = pb.CommandScalableTopicSubscribe(
        topic=topic,
        subscription=subscription,
        consumer_name=name,
        consumer_id=consumer_id,
        consumer_type=kind,
    )
    return raw.request(_T.SCALABLE_TOPIC_SUBSCRIBE, "scalableTopicSubscribe", asked)


def leave(raw: RawClient, consumer_id: int = 1) -> Any:
    asked = pb.CommandScalableTopicUnsubscribe(consumer_id=consumer_id)
    return raw.request(_T.SCALABLE_TOPIC_UNSUBSCRIBE, "scalableTopicUnsubscribe", asked)


def next_assignment(raw: RawClient) -> Any:
    return raw.receive(_T.SCALABLE_TOPIC_ASSIGNMENT_UPDATE)


def segments_of(answer: Any) -> Sequence[int]:
    """The ids of an assignment's segments."""
    assert answer.HasField("assignment"), answer
    return [each.segment_id for each in answer.assignment.segments]


def share_by_buckets(
    raw: RawClient,
    topic: str,
    ranges: Iterable[tuple[int, int]],
    consumer_id: int = 1,
    name: str = "",
    mode: Any = pb.STICKY,
) -> Any:
    """The answer to a subscription of one who shares a segment."""
    meta = pb.KeySharedMeta(keySharedMode=mode, entry_bucket_dispatch=True)
    for start, end in ranges:
        meta.hashRanges.add(start=start, end=end)
    return raw.subscribe(
        topic,
        consumer_id,
        subscription="s",
        subType=pb.CommandSubscribe.Key_Shared,
        consumer_name=name,
        keySharedMeta=meta,
    )


def watch_coordinators(raw: RawClient, watch_id: int = 1) -> Any:
    asked = pb.CommandWatchTcAssignments(watch_id=watch_id)
    raw.send(_T.WATCH_TC_ASSIGNMENTS, "watchTcAssignments", asked)
    return raw.receive(_T.WATCH_TC_ASSIGNMENTS_UPDATE)
