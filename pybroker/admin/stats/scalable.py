"""Statistics of a scalable topic and of its segments, under the field names of Apache Pulsar 5."""

from collections.abc import Iterable
from typing import Any, Final

from pybroker.admin.stats.topic import Stats, total
from pybroker.base.names import TopicName
from pybroker.base.runtime import iso_time
from pybroker.broker.scalable.measures import Operation
from pybroker.broker.scalable.record import ACTIVE, SEALED, SegmentRecord, TopicRecord, of_segment
from pybroker.broker.scalable.topics import ScalableTopics

_SUMS: Final = ("msgRateIn", "byteRateIn", "msgRateOut", "byteRateOut", "storageSize")


def segment_stats(segment: SegmentRecord, stats: Stats) -> Stats:
    """Of the segment's topic, whose own statistics are `stats`."""
    return {
        "ownerBroker": stats["ownerBroker"],
        "terminated": segment.sealed,
        "msgRateIn": stats["msgRateIn"],
        "byteRateIn": stats["msgThroughputIn"],
        "msgRateOut": stats["msgRateOut"],
        "byteRateOut": stats["msgThroughputOut"],
        "averageMsgSize": stats["averageMsgSize"],
        "storageSize": stats["storageSize"],
        "backlogSize": stats["backlogSize"],
        "offloadedStorageSize": stats["offloadedStorageSize"],
        "oldestBacklogMessageAgeSeconds": stats["oldestBacklogMessageAgeSeconds"],
        "waitingPublishers": stats["waitingPublishers"],
        "topicCreationTime": iso_time(stats["topicCreationTimeStamp"]),
        "producers": list(map(_producer, stats["publishers"])),
        "subscriptions": {name: _subscription(of) for name, of in stats["subscriptions"].items()},
    }


def scalable_stats(
    name: TopicName,
    record: TopicRecord,
    broker_id: str,
    scalable: ScalableTopics,
    segments: dict[int, Stats],
) -> Stats:
    """`segments` are the statistics of `segment_stats`, by number."""
    last = scalable.last_operations(name)
    return {
        "controllerBroker": broker_id,
        "autoScale": {
            "policy": dict(scalable.auto_scaler.policy(name, record)),
            "blockedReason": scalable.auto_scaler.blocked(name),
            "lastSplitAt": _at("split", last),
            "lastMergeAt": _at("merge", last),
            "lastRebucketAt": _at("rebucket", last),
        },
        "layout": {
            "epoch": record.epoch,
            "lastOperation": _operation(last[-1]) if last else None,
            "segments": {
                str(each.id): _layout_segment(name, each, segments[each.id])
                for each in record.segments.values()
            },
        },
        **{field: total(segments.values(), field) for field in _SUMS},
        "averageMsgSize": _average(segments.values()),
        "backlogSize": total(segments.values(), "backlogSize"),
        "producers": [each for of in segments.values() for each in of["producers"]],
        "subscriptions": {
            subscription: _whole(record, subscription, segments)
            for subscription in sorted({s for of in segments.values() for s in of["subscriptions"]})
        },
    }


def _at(name: str, last: Iterable[Operation]) -> str | None:
    return next((iso_time(each.at_ms) for each in last if each.name == name), None)


def _operation(last: Operation) -> Stats:
    return {
        "operation": last.name,
        "trigger": last.trigger,
        "segmentIds": list(last.segments),
        "status": last.status,
        "at": iso_time(last.at_ms),
        "error": last.error,
    }


def _producer(stats: Stats) -> Stats:
    return {
        "producerName": stats["producerName"],
        "accessMode": stats["accessMode"],
        "msgRateIn": stats["msgRateIn"],
        "byteRateIn": stats["msgThroughputIn"],
        "averageMsgSize": stats["averageMsgSize"],
        "address": stats["address"],
        "connectedSince": stats["connectedSince"],
        "clientVersion": stats["clientVersion"],
    }


def _subscription(stats: Stats) -> Stats:
    return {
        "msgBacklog": stats["msgBacklog"],
        "backlogSize": stats["backlogSize"],
        "unackedMessages": stats["unackedMessages"],
        "msgRateOut": stats["msgRateOut"],
        "byteRateOut": stats["msgThroughputOut"],
        "blocked": stats["blockedSubscriptionOnUnackedMsgs"],
        "drainingBuckets": stats.get("drainingHashesCount", 0),
        "consumerCount": len(stats["consumers"]),
    }


def _layout_segment(name: TopicName, segment: SegmentRecord, stats: Stats) -> Stats:
    return {
        "name": str(of_segment(name, segment)),
        "state": SEALED if segment.sealed else ACTIVE,
        "parentIds": list(segment.parents),
        "childIds": list(segment.children),
        "createdAt": iso_time(segment.created_ms),
        "sealedAt": iso_time(segment.sealed_ms) if segment.sealed else None,
        "load": {
            field: stats[field]
            for field in ("msgRateIn", "byteRateIn", "msgRateOut", "byteRateOut")
        }
        | {"ageSeconds": 0.0},
        "terminated": stats["terminated"],
        "entryBuckets": segment.buckets,
        "ownerBroker": stats["ownerBroker"],
    }


def _whole(record: TopicRecord, subscription: str, segments: dict[int, Stats]) -> Stats:
    having = {number: of["subscriptions"].get(subscription) for number, of in segments.items()}
    there = {str(number): of for number, of in having.items() if of is not None}
    return {
        "type": record.subscriptions.get(subscription),
        "backlog": total(there.values(), "msgBacklog"),
        "uncoveredSegmentIds": sorted(number for number, of in having.items() if of is None),
        "segments": there,
        "consumers": total(there.values(), "consumerCount"),
    }


def _average(segments: Iterable[Stats]) -> float:
    sizes: list[Any] = [each["averageMsgSize"] for each in segments if each["averageMsgSize"]]
    return sum(sizes) / len(sizes) if sizes else 0.0
