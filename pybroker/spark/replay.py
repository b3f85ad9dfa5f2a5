"""Keeps the input of the last committed batch, because Spark may evaluate it again.

A driver can die between a batch's commit and Spark's own record of it. Its successor skips the
batch, but a stateful query must see its rows again, and the source's cursor is past them and no
longer keeps them from deletion. A second subscription, `<subscription>-replay`, does: it follows
one batch behind. A marker records where it starts, so that a loss is noticed.
"""

from collections.abc import Mapping
from typing import Final

from pybroker.base.errors import PulsarError
from pybroker.spark.marker import Marker, Places
from pybroker.spark.new_checkpoint import new_checkpoint
from pybroker.spark.offsets import CursorName, Position, Progress, Span
from pybroker.spark.session import Session
from pybroker.spark.work import Work

_SUFFIX: Final = "-replay"


class InputLost(PulsarError):
    """Messages that a batch must read have been deleted."""


def keep_input(session: Session, progress: Progress, kept: Places) -> dict[CursorName, Position]:
    """Called before a batch runs: releases what no replay needs any more. Returns what is kept.

    `kept` is from the previous marker. The second subscription's cursor moves up to the beginning
    of the last batch that passed over the partition. So it is right before a message of that batch
    and stays there, although brokers move cursors past anything that is not a message. Before the
    first batch no such position is known: then the first message is looked up.
    """
    now = dict(kept)
    for name, span in progress.items():
        session.acknowledge_up_to(_replay(name), kept.get(name, span.after))
        now[name] = span.after if name in kept else _before_first(session, name, span)
    return now


def _before_first(session: Session, name: CursorName, span: Span) -> Position:
    first = session.first_position_after(name.topic, span.after)
    return span.after if first is None else first._replace(entry_id=first.entry_id - 1)


def require_input(session: Session, work: Work, committed: Marker) -> None:
    """Checks that the input of a batch that is evaluated again is there. Raises InputLost."""
    lost: dict[CursorName, Position] = {}
    for name, span in work.progress.items():
        first_kept = session.cursor(_replay(name))
        if first_kept > committed.kept.get(name, span.after):
            lost[name] = first_kept
    if lost:
        raise InputLost(_account(work, committed, lost))


def _replay(name: CursorName) -> CursorName:
    return CursorName(name.topic, name.subscription + _SUFFIX)


def _account(work: Work, committed: Marker, lost: Mapping[CursorName, Position]) -> str:
    places = "; ".join(f"{name} keeps only what follows {place}" for name, place in lost.items())
    return (
        f"Batch {committed.batch_id} of query {committed.query_id} was committed and Spark needs "
        f"its rows again, but they have been deleted: {places}. Without them the query's "
        f"state would be wrong. Do not touch the subscriptions named …{_SUFFIX}: they keep such "
        f"rows. To continue, {new_checkpoint(work, {}, committed)}"
    )
