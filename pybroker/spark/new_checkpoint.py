"""What a new checkpoint is good for, as errors say it.

It makes a new query, which knows nothing of the old one's batches. Where the transactions of
exactly_once move the cursors of all sources it goes on where the last committed batch ended. Any
other source begins where its options say, so what was read behind that is published a second time.
"""

from collections.abc import Mapping

from pybroker.spark.marker import Marker
from pybroker.spark.offsets import CursorName, Position
from pybroker.spark.work import Work

_GOES_ON = (
    "start from a new checkpoint, which goes on at the cursor (the state of a stateful query "
    "begins empty there)"
)
_REPEATS = (
    "first have each source begin behind what was published (by startingOffsets, a subscription's "
    "cursor, or files moved away), then start from a new checkpoint, which would otherwise publish "
    "all of it a second time"
)


def new_checkpoint(work: Work, cursors: Mapping[CursorName, Position], newest: Marker) -> str:
    """How to start from one without repeating or losing a row; words that follow a comma."""
    if not work.goes_on_at_cursor:
        return _REPEATS
    ends = {name: span.to for name, span in newest.progress.items()}
    if all(cursors.get(name, end) >= end for name, end in ends.items()):
        return _GOES_ON
    places = "; ".join(f"{name}: {end}" for name, end in ends.items())
    return (
        f"first set the subscription to where batch {newest.batch_id} ended ({places}), for it is "
        f"no longer there, then {_GOES_ON}"
    )
