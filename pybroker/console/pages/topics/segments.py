"""Draws where a topic's segments come from. Down the drawing runs the range of hashes, from left to
right the epochs of the layout: a segment is as long as it was active, and its children begin where
it ends. Epochs in which no segment came or went take no room. The partitions of a topic that was
made scalable are drawn before the first epoch, one above the other, though each had all hashes.

Lengths are shares of the drawing's width; heights are in pixels.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pybroker.console.formats import count

HEIGHT: Final = 260.0
_HASHES: Final = 65_536
_MOST_EPOCHS: Final = 40  # the last ones
_MOST_SEGMENTS: Final = 500
_LABEL_HEIGHT: Final = 12.0  # the least with room for a number
_LAST_EPOCH_S_WEIGHT: Final = 2.0  # of what is active now


@dataclass(frozen=True, slots=True)
class Box:
    number: int
    x: str
    middle: str
    width: str
    y: str
    baseline: str
    height: str
    kind: str  # active, waiting (sealed, and not consumed yet), sealed
    title: str
    labelled: bool


@dataclass(frozen=True, slots=True)
class Drawing:
    boxes: tuple[Box, ...]
    epochs: tuple[tuple[int, str], ...]  # with their places
    unshown: int  # segments


def drawing(segments: Iterable[Mapping[str, Any]], backlogs: Mapping[int, int]) -> Drawing:
    """`segments` are those of the record as the admin API shows it."""
    every = sorted(segments, key=lambda each: each["segmentId"])
    former = [each["segmentId"] for each in every if each["legacy"]]
    every = [_side_by_side(each, former) if each["legacy"] else each for each in every]
    times = {each["createdAtEpoch"] for each in every} | {
        each["sealedAtEpoch"] for each in every if each["sealed"]
    }
    epochs = sorted(times)[-_MOST_EPOCHS:]
    columns = {epoch: place for place, epoch in enumerate(epochs)}
    width = len(epochs) - 1 + _LAST_EPOCH_S_WEIGHT
    shown = [each for each in every if _end(each, len(epochs), columns) > 0][-_MOST_SEGMENTS:]
    boxes = tuple(_box(each, columns, len(epochs), width, backlogs) for each in shown)
    places = tuple((epoch, _percent(place / width)) for epoch, place in columns.items())
    return Drawing(boxes, places, len(every) - len(shown))


def _side_by_side(segment: Mapping[str, Any], former: Sequence[int]) -> Mapping[str, Any]:
    width, place = _HASHES // len(former), former.index(segment["segmentId"])
    end = _HASHES - 1 if place == len(former) - 1 else (place + 1) * width - 1
    return {
        **segment,
        "createdAtEpoch": segment["createdAtEpoch"] - 1,
        "hashRange": {"start": place * width, "end": end},
    }


def _end(segment: Mapping[str, Any], last: int, columns: Mapping[int, int]) -> int:
    return columns.get(segment["sealedAtEpoch"], 0) if segment["sealed"] else last


def _box(
    segment: Mapping[str, Any],
    columns: Mapping[int, int],
    last: int,
    width: float,
    backlogs: Mapping[int, int],
) -> Box:
    start = columns.get(segment["createdAtEpoch"], 0)
    end = width if not segment["sealed"] else float(_end(segment, last, columns))
    hashes = segment["hashRange"]
    top = hashes["start"] / _HASHES * HEIGHT
    height = (hashes["end"] + 1) / _HASHES * HEIGHT - top
    waits = backlogs.get(segment["segmentId"], 0)
    kind = "active" if segment["active"] else "waiting" if waits else "sealed"
    return Box(
        segment["segmentId"],
        _percent(start / width),
        _percent((start + end) / 2 / width),
        _percent((end - start) / width),
        f"{top:.1f}",
        f"{top + height / 2 + 4:.1f}",
        f"{height:.1f}",
        kind,
        f"Segment {segment['segmentId']}, {_what(segment)}, {kind}, backlog {count(waits)}",
        height >= _LABEL_HEIGHT,
    )


def _what(segment: Mapping[str, Any]) -> str:
    if segment["legacy"]:
        return str(segment["legacyTopicName"])
    hashes = segment["hashRange"]
    return f"{hashes['start']:04x}-{hashes['end']:04x}"


def _percent(share: float) -> str:
    return f"{share * 100:.2f}%"
