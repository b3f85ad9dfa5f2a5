"""Draws a topic's log as a bar: the readable entries, then, by transaction, those after the last
stable position. Widths are shares of the drawing's width.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pybroker.console.api import Refused
from pybroker.console.formats import count
from pybroker.console.pages.transactions.names import API, route_parts
from pybroker.console.visit import Visit

_READABLE_SHARE: Final = 30.0  # regardless of their number: the rest matters more
_COLOURS: Final = 6
_LABELLED: Final = 9.0  # the least width with room for an id
_NARROWEST: Final = 0.35
_IN_KEY: Final = 12


@dataclass(frozen=True, slots=True)
class Piece:
    x: str
    middle: str
    width: str
    kind: str  # plain, or t0 to t5
    title: str
    label: str


@dataclass(frozen=True, slots=True)
class TopicBar:
    topic: str
    found: Mapping[str, Any]
    stable_at: str
    pieces: Sequence[Piece]
    key: Sequence[tuple[str, str]]  # a piece's kind, and its transaction


async def bar_of(visit: Visit, topic: str) -> TopicBar | None:
    """The bar of a topic; None if the role may not see it, or the topic does not exist."""
    parts = route_parts(topic)
    template = f"{API}/segments/{{tenant}}/{{namespace}}/{{topic}}"
    if parts is None or not visit.api.may("GET", template, **parts):
        return None
    try:
        return bar(topic, await visit.api.get(template, **parts))
    except Refused:
        return None


def bar(topic: str, found: Mapping[str, Any]) -> TopicBar:
    segments = found["segments"]
    readable = found["readableEntries"]
    stable = (_READABLE_SHARE if readable else 0.0) if segments else 100.0
    ids = list(dict.fromkeys(each["txnId"] for each in segments if each["txnId"]))
    kinds = {txn_id: f"t{number % _COLOURS}" for number, txn_id in enumerate(ids)}
    room = 100.0 - stable
    shares = [max(each["entries"], 1) for each in segments]
    whole = sum(shares) or 1
    least = min(_NARROWEST, room / max(1, len(segments)))
    wanted = [max(least, room * share / whole) for share in shares]
    scale = room / (sum(wanted) or 1)
    pieces, x = list[Piece](), stable
    for each, width in zip(segments, (w * scale for w in wanted), strict=True):
        txn_id = each["txnId"]
        whose = f"transaction {txn_id}" if txn_id else "not in an open transaction"
        entries = f"{count(each['entries'])} {'entry' if each['entries'] == 1 else 'entries'}"
        pieces.append(
            Piece(
                f"{x:.3f}%",
                f"{x + width / 2:.3f}%",
                f"{width:.3f}%",
                kinds.get(txn_id, "plain"),
                f"{each['from']} to {each['to']}: {entries}, {whose}",
                txn_id if txn_id and width >= _LABELLED else "",
            )
        )
        x += width
    key = [(kind, txn_id) for txn_id, kind in kinds.items()]
    return TopicBar(topic, found, f"{stable:.3f}%", pieces, key[:_IN_KEY])
