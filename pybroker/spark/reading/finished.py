"""The cursor follows what Spark has finished.

When Spark asks for the next batch it says where the last one ended, and has recorded that as
finished. So a query that loses its checkpoint goes on there, but for a batch that was under way,
and what is finished may be deleted.

A `subscription` is moved so as well, for who writes may be another sink than exactly_once. That one
moves it itself, in the transaction that publishes the results: then it is there already, and after
one batch nobody looks any more.
"""

from collections.abc import Collection

from pybroker.spark.offsets import SourceOffset
from pybroker.spark.reading.survey import survey_of
from pybroker.spark.session import Session, each_of


class Finished:
    """Of one run of a query."""

    def __init__(self) -> None:
        self._let_go: SourceOffset | None = None
        self._sink_moves_cursors = False

    def let_go(
        self,
        session: Session,
        finished: SourceOffset,
        there: Collection[str],
        of_this_run: bool = False,
    ) -> None:
        """`there`: the topics that are not gone, for a subscription would make them anew.
        `of_this_run`: since it was planned nobody but a sink can have moved the cursors."""
        progress = finished.progress()
        moved = {name: span for name, span in progress.items() if name.topic in there}
        if self._sink_moves_cursors or not moved or finished == self._let_go:
            return
        if of_this_run and not finished.follows:
            name, span = next(iter(moved.items()))
            self._sink_moves_cursors = session.cursor(name) >= span.to
            session.release(name)
        if not self._sink_moves_cursors:
            places = {name.topic: span.to for name, span in moved.items()}
            survey_of(session).let_go(places, finished.subscription)
            if not finished.follows:
                each_of(list(moved), session.release)  # The sink's consumer is enough.
        self._let_go = finished
