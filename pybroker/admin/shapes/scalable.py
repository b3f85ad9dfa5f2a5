"""Schemas of scalable topics. GET shows, beside the record, which segments are in which state."""

from collections.abc import Iterable
from typing import Any, Final

from pybroker.admin.shapes.common import PROPERTIES
from pybroker.base.json_schema import (
    COUNT,
    NUMBER,
    TEXT,
    TRUTH,
    WHOLE,
    choice,
    fields,
    list_of,
    map_of,
    or_null,
    record,
)
from pybroker.broker.policies.auto_scale import AUTO_SCALE
from pybroker.broker.scalable.record import ACTIVE, SEALED, SegmentRecord, TopicRecord

_IDS: Final = list_of(COUNT, most=None)
_STATE: Final = choice(ACTIVE, SEALED)
_RANGE: Final = record("HashRange", fields(COUNT, "start end"))
_SEGMENT: Final = record(
    "SegmentInfo",
    {
        "segmentId": COUNT,
        "hashRange": _RANGE,
        "state": _STATE,
        "parentIds": _IDS,
        "childIds": _IDS,
        "createdAtEpoch": COUNT,
        "sealedAtEpoch": WHOLE,
        "createdAtMs": COUNT,
        "sealedAtMs": WHOLE,
        "entryBucketSplits": _IDS,
        **fields(TRUTH, "sealed active root leaf legacy"),
        "legacyTopicName": TEXT,
    },
    ["legacyTopicName"],
)
METADATA: Final = record(
    "ScalableTopicMetadata",
    {
        "epoch": COUNT,
        "nextSegmentId": COUNT,
        "segments": map_of(_SEGMENT, most=None),
        "properties": PROPERTIES,
        "autoScalePolicy": AUTO_SCALE.check.gives,
    },
    ["autoScalePolicy"],
)
_RATES: Final = fields(NUMBER, "msgRateIn byteRateIn msgRateOut byteRateOut")
_PRODUCER: Final = record(
    "ProducerStats",
    {
        **fields(TEXT, "producerName accessMode address connectedSince clientVersion"),
        **fields(NUMBER, "msgRateIn byteRateIn averageMsgSize"),
    },
)
_SUBSCRIPTION: Final = record(
    "SegmentSubscriptionStats",
    {
        **fields(COUNT, "msgBacklog unackedMessages drainingBuckets consumerCount"),
        "backlogSize": WHOLE,
        **fields(NUMBER, "msgRateOut byteRateOut"),
        "blocked": TRUTH,
    },
)
_TOTALS: Final = {**_RATES, "averageMsgSize": NUMBER, **fields(WHOLE, "storageSize backlogSize")}
SEGMENT_STATS: Final = record(
    "SegmentTopicStats",
    {
        "ownerBroker": TEXT,
        "terminated": TRUTH,
        **_TOTALS,
        **fields(WHOLE, "offloadedStorageSize oldestBacklogMessageAgeSeconds waitingPublishers"),
        "topicCreationTime": TEXT,
        "producers": list_of(_PRODUCER, most=None),
        "subscriptions": map_of(_SUBSCRIPTION, most=None),
    },
)
_LAYOUT_SEGMENT: Final = record(
    "LayoutSegment",
    {
        **fields(TEXT, "name ownerBroker createdAt"),
        "sealedAt": or_null(TEXT),
        "state": _STATE,
        "parentIds": _IDS,
        "childIds": _IDS,
        "load": record("SegmentLoadStats", {**_RATES, "ageSeconds": NUMBER}),
        "terminated": TRUTH,
        "entryBuckets": COUNT,
    },
)
_WHOLE_SUBSCRIPTION: Final = record(
    "ScalableSubscriptionStats",
    {
        "type": or_null(TEXT),
        **fields(COUNT, "backlog consumers"),
        "uncoveredSegmentIds": _IDS,
        "segments": map_of(_SUBSCRIPTION, most=None),
    },
)


_REASON_AND_TIMES: Final = ("blockedReason", "lastSplitAt", "lastMergeAt", "lastRebucketAt")
_OPERATION: Final = record(
    "LayoutOperationStats",
    {
        "operation": choice("split", "merge", "rebucket", "prune", "migrate"),
        "trigger": choice("manual", "auto"),
        "segmentIds": _IDS,
        "status": choice("success", "failure"),
        "at": TEXT,
        "error": or_null(TEXT),
    },
)
STATS: Final = record(
    "ScalableTopicStats",
    {
        "controllerBroker": TEXT,
        "autoScale": record(
            "AutoScaleStats",
            {
                "policy": AUTO_SCALE.check.gives,
                **{each: or_null(TEXT) for each in _REASON_AND_TIMES},
            },
        ),
        "layout": record(
            "LayoutStats",
            {
                "epoch": COUNT,
                "lastOperation": or_null(_OPERATION),
                "segments": map_of(_LAYOUT_SEGMENT, most=None),
            },
        ),
        **_TOTALS,
        "producers": list_of(_PRODUCER, most=None),
        "subscriptions": map_of(_WHOLE_SUBSCRIPTION, most=None),
    },
)


def shown(topic: TopicRecord) -> dict[str, Any]:
    """The record as Apache Pulsar's admin API shows it."""
    return {
        "epoch": topic.epoch,
        "nextSegmentId": topic.next_id,
        "segments": {str(each.id): _shown(each) for each in _in_order(topic)},
        "properties": dict(topic.properties),
        **({"autoScalePolicy": dict(topic.auto_scale)} if topic.auto_scale else {}),
    }


def _in_order(topic: TopicRecord) -> Iterable[SegmentRecord]:
    return sorted(topic.segments.values())


def _shown(segment: SegmentRecord) -> dict[str, Any]:
    return {
        **segment.json(),
        "sealed": segment.sealed,
        "active": not segment.sealed,
        "root": not segment.parents,
        "leaf": not segment.children,
        "legacy": segment.ordinary is not None,
    }
