"""The input of the batch that was committed last is kept, for Spark may evaluate it again.

A driver can die between a batch's commit and Spark's own record of it. Its successor skips the
batch, but a stateful query must see its rows once more, and the source's cursor, being past them,
no longer keeps them from deletion. A second subscription does, `<subscription>-replay`: it follows
one batch behind. A marker says from where on, so that a loss is noticed.
"""

from collections.abc import Mapping
from typing import Final

from pybroker.errors import PulsarError
from pybroker.spark.marker import Marker, Places
from pybroker.spark.offsets import CursorName, Position, Progress
from pybroker.spark.session import Session

_SUFFIX: Final = "-replay"


class InputLost(PulsarError):
    """Messages that a batch is to read have been deleted."""


def keep_input(session: Session, progress: Progress, kept: Places) -> dict[CursorName, Position]:
    """For a batch that runs: lets go what no replay needs any more, and says what is kept.

    `kept` is that of the marker before. The cursors of before the batch are let go as far as the
    last batch that passed over them began: they stand, then, before a message of that batch, and
    never beyond this one's beginning.
    """
    now = dict(kept)
    for name, span in progress.items():
        if name in kept:
            session.let_go(_replay(name), kept[name])
            now[name] = span.after
        else:
            now[name] = max(span.after, session.cursor(_replay(name)))
    return now


def require_input(session: Session, progress: Progress, committed: Marker) -> None:
    """For a batch that is evaluated again. Raises InputLost."""
    lost: dict[CursorName, Position] = {}
    for name, span in progress.items():
        first_kept = session.cursor(_replay(name))
        if first_kept > committed.kept.get(name, span.after):
            lost[name] = first_kept
    if lost:
        raise InputLost(_account(committed, lost))


def _replay(name: CursorName) -> CursorName:
    return CursorName(name.topic, name.subscription + _SUFFIX)


def _account(committed: Marker, lost: Mapping[CursorName, Position]) -> str:
    places = "; ".join(f"{name} is kept behind {place} only" for name, place in lost.items())
    return (
        f"Batch {committed.batch_id} of query {committed.query_id} was committed and Spark asks "
        f"for its rows once more, but they have been deleted: {places}. Without them the query's "
        "state would be wrong: start from a new checkpoint, which goes on at the cursor; and leave "
        f"the subscriptions named …{_SUFFIX} alone, which keep such rows"
    )
