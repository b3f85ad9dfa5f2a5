"""The advice in error messages about starting from a new checkpoint.

A new checkpoint makes a new query, which does not know the batches of the old query. If the
transactions of exactly_once move the cursors of all sources, it continues after the last committed
batch. Any other source begins where its options say, so input that was read after that point is
published a second time.
"""

from collections.abc import Mapping

from pybroker.spark.marker import Marker
from pybroker.spark.offsets import CursorName, Position
from pybroker.spark.work import Work

_GOES_ON = (
    "start from a new checkpoint, which continues at the cursor (the state of a stateful query is "
    "empty there)"
)
_REPEATS = (
    "first make each source begin after what was published (with startingOffsets, a subscription's "
    "cursor, or by moving files away), then start from a new checkpoint, which would otherwise "
    "publish everything a second time"
)


def new_checkpoint(work: Work, cursors: Mapping[CursorName, Position], newest: Marker) -> str:
    """How to start from a new checkpoint without repeating or losing a row, as a clause."""
    if not work.goes_on_at_cursor:
        return _REPEATS
    ends = {name: span.to for name, span in newest.progress.items()}
    if all(cursors.get(name, end) >= end for name, end in ends.items()):
        return _GOES_ON
    places = "; ".join(f"{name}: {end}" for name, end in ends.items())
    return (
        f"first set the subscription to where batch {newest.batch_id} ended ({places}), since it "
        f"is no longer there, then {_GOES_ON}"
    )
