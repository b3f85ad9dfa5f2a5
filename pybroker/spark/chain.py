"""What a query has committed, read from the control topic, which it may share with other queries.

A query's markers form a chain. Each transaction publishes a marker and acknowledges the previous
one on the query's own subscription. So the newest marker is the one after that subscription's
cursor: reading from there finds it, whatever other queries have written, and the subscription keeps
it from being deleted. The chain is also a fence: of two drivers that continue from the same marker,
one gets a conflict. The first link is a plain message, the opening.

There may be no marker after the cursor, for two reasons:

- An open transaction of another query hides the messages after it. Then this module raises
  ServiceNotReady.
- There is none: before the first batch, or because something else than a transaction moved the
  cursor, such as a message TTL. Then the newest marker is the last one up to the cursor, if it is
  still stored, and its successor must acknowledge an opening after the cursor.

An opening that is published now and can be read tells them apart, because a topic is read in order:
if it is visible, so is everything before it. Drivers acknowledge the first opening after the
cursor, so that only one of them gets through.
"""

from collections.abc import Iterator
from typing import NamedTuple

from pybroker.base.errors import ServiceNotReady
from pybroker.base.names import TxnId
from pybroker.client import Transaction
from pybroker.spark.control_topics import first_partition
from pybroker.spark.marker import Marker
from pybroker.spark.offsets import EARLIEST, CursorName, Position
from pybroker.spark.session import Session
from pybroker.spark.writing.notes import NoteBook, abort_all, subscription_of


class Link(NamedTuple):
    """A marker and the position that its successor acknowledges, which is the marker's own.

    If the cursor has passed the marker, that is the position of an opening.
    """

    marker: Marker
    position: Position
    is_passed: bool = False


class _Probe(NamedTuple):
    """An opening that shows whether messages are hidden, and the cursor when it was published: if
    that has moved since, there may be newer messages."""

    cursor: Position
    position: Position


class Chain:
    """One query's chain, as one driver sees it."""

    def __init__(self, control_topic: str, query_id: str, former: str = "") -> None:
        """`former`: see pybroker.spark.control_topics."""
        self._control_topic = control_topic
        self._former = former
        self._query_id = query_id
        self._first_partition: str | None = None
        self._newest: Link | None = None
        self._probe: _Probe | None = None

    def is_of(self, query_id: str) -> bool:
        return query_id == self._query_id

    def newest(self, session: Session) -> Marker:
        """The query's newest marker, or its opening. Raises ServiceNotReady if it is hidden."""
        if self._newest is None:
            self._newest = self._find(session)
        return self._newest.marker

    def forget(self) -> None:
        """Call after a failure: the newest marker must be read again."""
        self._newest = None

    def acknowledge(self, session: Session, txn: Transaction) -> None:
        """Claims the place after the newest marker. Raises TransactionConflict."""
        assert self._newest is not None
        session.acknowledge(self._cursor_name(session), self._newest.position, txn)

    def publish(self, session: Session, marker: Marker, txn: Transaction) -> Link:
        return Link(marker, session.publish(self._topic(session), marker.to_bytes(), txn))

    def committed(self, link: Link) -> None:
        self._newest = link

    def notes(self, session: Session, batch_id: int) -> NoteBook:
        """Where the transactions of a batch are recorded."""
        return NoteBook(self._topic(session), self._query_id, batch_id)

    def noted(self, session: Session, batch_id: int, job: TxnId | None = None) -> list[TxnId]:
        """The transactions noted since the previous batch's marker. All notes, if that marker is
        not known: the batch was committed, or is the first, whose tasks may precede the opening."""
        newest = self._newest
        assert newest is not None
        known = 0 <= newest.marker.batch_id < batch_id and not newest.is_passed
        after = newest.position if known else EARLIEST
        return list(self.notes(session, batch_id).noted(session, after, job))

    def sweep(self, session: Session, batch_id: int, job: TxnId | None = None) -> None:
        """Aborts noted transactions that have not committed: those of one job if only that is over;
        those of all jobs if the batch is over, because then no other job continues it."""
        abort_all(session, self.noted(session, batch_id, job))

    def _find(self, session: Session) -> Link:
        cursor = session.cursor(self._cursor_name(session), create=True)
        links = list(self._links(session, cursor))
        if all(link.marker.is_opening for link in links):
            if self._probe is None or self._probe.cursor != cursor:
                opening = Marker.opening(self._query_id).to_bytes()
                self._probe = _Probe(cursor, session.publish(self._topic(session), opening))
            links = list(self._links(session, cursor))
        if committed := [link for link in links if not link.marker.is_opening]:
            return max(committed, key=lambda link: link.marker.batch_id)
        if self._probe is None or all(link.position < self._probe.position for link in links):
            raise self._hidden()
        passed = list(self._links(session, EARLIEST, cursor))
        if not passed:
            return links[0]
        newest = max(passed, key=lambda link: link.marker.batch_id)
        return Link(newest.marker, links[0].position, is_passed=True)

    def _links(
        self, session: Session, after: Position, up_to: Position | None = None
    ) -> Iterator[Link]:
        own = self._query_id.encode()
        for position, data in session.read_to_end(self._topic(session), after):
            if up_to is not None and position > up_to:
                return
            if own in data and (marker := _parsed(data)) and marker.query_id == self._query_id:
                yield Link(marker, position)

    def _cursor_name(self, session: Session) -> CursorName:
        return CursorName(self._topic(session), subscription_of(self._query_id))

    def _topic(self, session: Session) -> str:
        if self._first_partition is None:
            self._first_partition = first_partition(session, self._control_topic, self._former)
        return self._first_partition

    def _hidden(self) -> ServiceNotReady:
        return ServiceNotReady(
            f"The markers of query {self._query_id} on {self._control_topic} cannot be read yet: "
            "an open transaction of another query precedes them. Wait until it ends, or give "
            "each query its own control topic"
        )


def _parsed(data: bytes) -> Marker | None:
    """Anyone may write to the topic; ignore what is not a marker."""
    try:
        return Marker.from_bytes(data)
    except ValueError:
        return None
