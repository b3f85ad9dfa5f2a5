"""Moves the cursor past the batches that Spark has finished.

When Spark asks for the next batch it passes the end of the last one, which it has recorded as
finished. So a query that loses its checkpoint continues there, except for a batch in progress, and
finished messages may be deleted.

The cursor of a `subscription` is moved in this way too, because the sink may not be exactly_once.
exactly_once moves the cursor itself, in the transaction that publishes the results: then the cursor
is already there, and after one batch this module stops checking.
"""

from collections.abc import Collection

from pybroker.spark.offsets import SourceOffset
from pybroker.spark.reading.survey import survey_of
from pybroker.spark.session import Session, each_of


class Finished:
    """The cursors of one run of a query."""

    def __init__(self) -> None:
        self._acknowledged: SourceOffset | None = None
        self._sink_moves_cursors = False

    def acknowledge_up_to(
        self,
        session: Session,
        finished: SourceOffset,
        there: Collection[str],
        of_this_run: bool = False,
    ) -> None:
        """`there`: the topics that still exist, because subscribing would create the others again.
        `of_this_run`: this run planned it, so since then only a sink can have moved the cursors."""
        progress = finished.progress()
        moved = {name: span for name, span in progress.items() if name.topic in there}
        if self._sink_moves_cursors or not moved or finished == self._acknowledged:
            return
        if of_this_run and not finished.follows:
            name, span = next(iter(moved.items()))
            self._sink_moves_cursors = session.cursor(name) >= span.to
            session.release(name)
        if not self._sink_moves_cursors:
            places = {name.topic: span.to for name, span in moved.items()}
            survey_of(session).acknowledge_up_to(places, finished.subscription)
            if not finished.follows:
                each_of(list(moved), session.release)  # The sink's consumer is enough.
        self._acknowledged = finished
