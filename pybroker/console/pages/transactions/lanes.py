"""Lays out the drawing of a transaction over time, with a lane for each participant.

Positions are shares of the drawing's width, so that it fits every screen; heights are in pixels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pybroker.console.formats import duration
from pybroker.console.pages.transactions.names import short

LANE_PX: Final = 46
TOP_PX: Final = 30
BOTTOM_PX: Final = 26
MOST_LANES: Final = 40
_BEFORE, _AFTER = 1.5, 97.0  # where the time axis begins and ends, in percent
_ENDING: Final = {"COMMITTING": "commit", "COMMITTED": "commit"} | {
    "ABORTING": "abort",
    "ABORTED": "abort",
}


@dataclass(frozen=True, slots=True)
class Lane:
    label: str
    title: str  # the lane's content, in words
    top: int
    added: str | None  # None: the time is unknown
    begin: str
    width: str
    told: str | None
    kind: str  # open, commit, abort


@dataclass(frozen=True, slots=True)
class Mark:
    at: str
    anchor: str
    text: str


@dataclass(frozen=True, slots=True)
class Drawing:
    lanes: Sequence[Lane]
    height: int
    floor: int  # the lower end of the lanes
    decided: str | None
    ended: str | None
    deadline: str | None
    now: str | None
    ticks: Sequence[Mark]
    unshown: int


class _Scale:
    def __init__(self, first_ms: int, last_ms: int) -> None:
        self._first_ms = first_ms
        self._span_ms = max(1, last_ms - first_ms)

    def share(self, at_ms: int) -> float:
        part = (at_ms - self._first_ms) / self._span_ms
        return _BEFORE + (_AFTER - _BEFORE) * min(max(part, 0.0), 1.0)

    def at(self, at_ms: int) -> str:
        return f"{self.share(at_ms):.2f}%"


def draw(found: Mapping[str, Any]) -> Drawing | None:
    """The drawing; None if only the transaction's outcome is known."""
    if "participants" not in found:
        return None
    opened, ended, now = found["openTimestamp"], found["endTimestamp"], found["timestamp"]
    scale, last = _Scale(opened, ended or now), ended or now
    kind = _ENDING.get(found["status"], "open")
    participants = found["participants"][:MOST_LANES]
    lanes = [
        _lane(found, each, scale, kind, last, TOP_PX + LANE_PX * number)
        for number, each in enumerate(participants)
    ]
    floor = TOP_PX + LANE_PX * max(1, len(lanes))
    deadline = opened + found["timeoutMs"] if found["timeoutMs"] else now + 1
    all_of_them = found["topicCount"] + found["subscriptionCount"]
    return Drawing(
        lanes=lanes,
        height=floor + BOTTOM_PX,
        floor=floor,
        decided=None if found["decidedTimestamp"] is None else scale.at(found["decidedTimestamp"]),
        ended=None if ended is None else scale.at(ended),
        deadline=scale.at(deadline) if ended is None and deadline <= last else None,
        now=scale.at(now) if ended is None else None,
        ticks=_ticks(opened, last, ended is not None),
        unshown=max(0, all_of_them - len(lanes)),
    )


def _lane(
    found: Mapping[str, Any], each: Mapping[str, Any], scale: _Scale, kind: str, last: int, top: int
) -> Lane:
    added, told = each["addedTimestamp"], each["followedTimestamp"]
    begin = scale.share(found["openTimestamp"] if added is None else added)
    end = scale.share(last if told is None else told)
    return Lane(
        label=name_of(each),
        title=_in_words(found, each),
        top=top,
        added=None if added is None else f"{begin:.2f}%",
        begin=f"{begin:.2f}%",
        width=f"{max(0.4, end - begin):.2f}%",
        told=None if told is None else scale.at(told),
        kind=kind,
    )


def name_of(participant: Mapping[str, Any]) -> str:
    topic = short(participant["topic"])
    if participant["subscription"] is None:
        return topic
    return f"{topic} · subscription {participant['subscription']}"


def _in_words(found: Mapping[str, Any], each: Mapping[str, Any]) -> str:
    opened, added, told = found["openTimestamp"], each["addedTimestamp"], each["followedTimestamp"]
    parts = ["added before a restart" if added is None else f"added {after(opened, added)}"]
    if each["firstPosition"] is not None:
        parts.append(f"its messages begin at {each['firstPosition']}")
    if told is not None:
        parts.append(f"ended there {after(opened, told)}")
    elif each["attempts"]:
        parts.append(f"has not ended there after {each['attempts']} attempts")
    elif found["status"] not in ("OPEN", "PREPARED"):
        parts.append("has not ended there yet, or that was not recorded")
    return f"{name_of(each)}: {', '.join(parts)}"


def after(opened_ms: int, at_ms: int) -> str:
    """The time since the transaction began."""
    return f"+{duration((at_ms - opened_ms) / 1000)}"


def _ticks(opened: int, last: int, has_ended: bool) -> list[Mark]:
    span_s = (last - opened) / 1000
    return [
        Mark(f"{_BEFORE:.2f}%", "start", "began"),
        Mark(f"{(_BEFORE + _AFTER) / 2:.2f}%", "middle", f"+{duration(span_s / 2)}"),
        Mark(
            f"{_AFTER:.2f}%",
            "end",
            f"{'ended' if has_ended else 'now,'} +{duration(span_s)}",
        ),
    ]
