"""Whether a batch has been committed: the durable cursors know, whatever Spark remembers.

A transaction moves the cursors over the batch's spans and publishes its output at once. So cursors
past the spans say that the output is there; cursors at their beginnings say that it is not.
"""

from collections.abc import Mapping
from enum import Enum

from pybroker.errors import PulsarError
from pybroker.spark.offsets import CursorName, Position, Progress


class Decision(Enum):
    RUN = "run"
    SKIP = "skip"


class CursorsDisagree(PulsarError):
    """The cursors are neither before nor behind the batch: somebody else moves them."""


def decide(progress: Progress, cursors: Mapping[CursorName, Position]) -> Decision:
    """`progress` holds no empty span. Raises CursorsDisagree."""
    committed = [name for name, span in progress.items() if cursors[name] >= span.to]
    untouched = [name for name, span in progress.items() if cursors[name] == span.after]
    if len(committed) == len(progress):
        return Decision.SKIP
    if len(untouched) == len(progress):
        return Decision.RUN
    raise CursorsDisagree(_account(progress, cursors))


def _account(progress: Progress, cursors: Mapping[CursorName, Position]) -> str:
    places = "; ".join(
        f"{name} is at {cursors[name]}, the batch reads ({span.after}, {span.to}]"
        for name, span in progress.items()
    )
    return (
        "The batch is neither committed nor untouched, so running it would repeat or lose "
        f"messages: {places}. Another query or consumer uses this subscription, or it was "
        "reset: stop the other one, then start from a new checkpoint, which begins at the cursor"
    )
