"""Finds entries that a subscription acknowledged individually after its cursor: not to be read.

A consumer may have left such holes before the query began. The protocol does not list them, but
backlogs reveal them: a reader from the cursor then has a larger backlog than the subscription. Only
then are the holes searched, by comparing what the reader and the subscription receive, up to the
last hole.

Messages acknowledged in an open transaction are not delivered either, but may come back. So during
the search a transaction of this query holds the cursor, as a batch's would.
"""

import contextlib
import logging
from collections.abc import Iterator
from typing import Final

from pybroker.base.errors import ServiceNotReady, TransactionConflict
from pybroker.client import Consumer
from pybroker.spark.offsets import CursorName, Position, Stretch
from pybroker.spark.session import Session, position_of

log = logging.getLogger("pybroker.spark")

_COUNTS: Final = 5
_RECEIVE_TIMEOUT_MS: Final = 10_000
_HOLD_TIMEOUT_MS: Final = 60_000
# How far after the cursor holes are searched: consumers rarely have more unacknowledged messages.
MAX_ENTRIES: Final = 50_000


def acknowledged_behind(session: Session, name: CursorName, cursor: Position) -> list[Stretch]:
    """Raises ServiceNotReady while a transaction holds the cursor, and Timeout if the subscription
    delivers nothing, perhaps because another consumer gets the messages."""
    backlog, wanted = _count(session, name, cursor)
    first = session.first_position_after(name.topic, cursor) if wanted > 0 else None
    if first is None:
        return []
    last = session.last_position(name.topic)
    with _holding(session, name, first), session.receiving(name) as consumer:
        # The first entry is not acknowledged: otherwise the cursor would be past it.
        holes = _Holes(_handed_out(consumer, first, backlog - 1))
        for count, (position, _) in enumerate(session.read_to_end(name.topic, first)):
            if position > last or holes.count >= wanted:
                break
            if count >= MAX_ENTRIES:
                log.warning(
                    "%s: messages acknowledged individually after %s are read again", name, position
                )
                break
            holes.look_at(position)
    return holes.stretches


@contextlib.contextmanager
def _holding(session: Session, name: CursorName, first: Position) -> Iterator[None]:
    txn = session.client.new_transaction(timeout_ms=_HOLD_TIMEOUT_MS)
    try:
        session.acknowledge(name, first, txn)
        yield
    except TransactionConflict as error:
        raise ServiceNotReady(
            f"{name} is held by an open transaction, so what is acknowledged is not yet decided: "
            "wait until it ends"
        ) from error
    finally:
        txn.abort()


def _count(session: Session, name: CursorName, cursor: Position) -> tuple[int, int]:
    """The subscription's backlog, and by how many entries, at least, a reader's is larger."""
    for _ in range(_COUNTS):
        before = session.backlog(name)
        # A broker counts a reader's start entry even if the client skips it.
        first = cursor._replace(entry_id=cursor.entry_id + 1)
        reader = session.reader(name.topic, first, start_message_id_inclusive=True)
        try:
            everything = reader.get_backlog()
        finally:
            reader.close()
        after = session.backlog(name)
        if before == after:
            break
    return after, everything - after


class _Holes:
    """Compares positions with those that the subscription delivers, both in order."""

    def __init__(self, handed_out: Iterator[Position | None]) -> None:
        self.stretches: list[Stretch] = []
        self.count = 0
        self._handed_out = handed_out
        self._next = next(handed_out)
        self._previous: Position | None = None

    def look_at(self, position: Position) -> None:
        if position == self._previous:
            return  # the next message of a batch
        while self._next is not None and self._next < position:
            self._next = next(self._handed_out)
        if self._next is None or self._next > position:
            self._add(position)
        self._previous = position

    def _add(self, position: Position) -> None:
        self.count += 1
        if self.stretches and self.stretches[-1].last == self._previous:
            self.stretches[-1] = self.stretches[-1]._replace(last=position)
        else:
            self.stretches.append(Stretch(position, position))


def _handed_out(consumer: Consumer, first: Position, count: int) -> Iterator[Position | None]:
    """`count` entries after `first`, then None forever."""
    previous = first
    while count:
        position = position_of(consumer.receive(_RECEIVE_TIMEOUT_MS).message_id())
        if position > previous:
            count -= 1
            yield position
            previous = position
    while True:
        yield None
