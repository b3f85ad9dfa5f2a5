"""What a cumulative acknowledgement on an Exclusive or Failover subscription covers.

Its client means what it received up to a message and has not consumed. The broker knows what it
delivered, but not when the acknowledgement was sent. Of an unacknowledged message up to the last
one, the acknowledgement

    covers it   if it is the last one; if no abort has given it back since the client's first pass;
                if it was delivered before the last one, which was delivered once; if the client
                was never given the last one, and takes the ids from elsewhere
    spares it   if a transaction holds it individually; if an abort has given it back, and the
                client was never given it
    is unclear  otherwise: its client may have had it before, or may have received it meanwhile

In a transaction, an unclear acknowledgement is refused: an effect of the transaction would remain
although the message comes again. Without a transaction it spares the message, which comes again.

Clients silently drop a message before their last plain cumulative acknowledgement (Java also across
reconnects). Such a message is unclear, unless a later acknowledgement goes less far.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf
from operator import attrgetter

from managed_ledger.position import Position
from pybroker.broker.dispatch.given_back import GivenBack, Part
from pybroker.broker.dispatch.life import Life
from pybroker.broker.dispatch.lives import Lives
from pybroker.transaction.pending_acks.records import ALL_INDEXES, Held, PendingAck, Reach

# The indexes of an entry that are neither acknowledged nor held, individually or by the same
# transaction; ALL_INDEXES if it has not been acknowledged in part.
Unacked = Callable[[Position], int]
Messages = dict[Position, Held]


class Unclear(Exception):
    """Nobody can know whether the client means this message."""

    def __init__(self, position: Position, dropped: bool = False) -> None:
        super().__init__(position)
        self.position = position
        self.dropped = dropped  # its client may have dropped it unseen


@dataclass(frozen=True, slots=True)
class _Acknowledged:
    """A cumulative acknowledgement, and what its client was given."""

    ack: PendingAck
    last: Position
    end: Part | None  # the last message, if it was given back and then delivered
    oldest: int
    before: Position  # the client was given everything before this in earlier passes
    is_foreign: bool  # the client was never given the last message
    is_clear: bool  # it refers to all deliveries of the last entry
    goes_back: bool  # it refers to the latest delivery of the last message
    plain_to: Reach  # the client may have dropped unseen what came later than this
    plain_is_known: bool  # otherwise it may have acknowledged less

    def names(self, position: Position, part: Part) -> int:
        if position > self.last:
            return 0
        indexes = self.ack.acked_indexes if position == self.last else 0
        return part.bits & (indexes or ALL_INDEXES)

    def covers(self, position: Position, part: Part) -> bool | None:
        """None: it is unclear."""
        if part is self.end or part.given_back_at < self.oldest or self.is_foreign:
            return True
        had = self._had(part)
        if part.read_to is None:
            return None if had else False
        end = self.end
        if self.is_clear and position == self.last:
            return True
        if self.goes_back and end is not None and part.given_at < end.given_at:
            return True
        if self.last < self.before:
            return None
        if end is None:
            return part.read_to <= self.last or None
        in_order = end.read_to is not None and part.given_at < end.given_at
        return (in_order and not had and not self._had(end)) or None

    def _had(self, part: Part) -> bool:
        return self.oldest <= part.held_at or part.again

    def may_be_dropped(self, position: Position, bits: int, part: Part) -> bool:
        """Whether the client may have dropped some of the messages unseen."""
        plain_to, messages = self.plain_to
        if position > plain_to or part is self.end:
            return False
        if self.plain_is_known and self.plain_to >= self.ack.reach:
            return False
        whole = position < plain_to or messages == inf
        return whole or bool(bits & ((1 << int(messages)) - 1))

    def add(self, messages: Messages, position: Position, bits: int, part: Part) -> None:
        size = self.ack.batch_size if position == self.last else 0
        held = Held(bits, max(size, part.batch_size))
        messages[position] = messages[position] | held if position in messages else held


def spared_in_transaction(
    lives: Lives, life: Life, ack: PendingAck, clear: bool | None, unacked: Unacked
) -> Messages:
    """The messages that aborted transactions have given back and that the acknowledgement does not
    cover. `clear`: whether an acknowledgement of the whole last entry refers to all its deliveries,
    some of which had only a part of it; None if there were no such. Raises Unclear.
    """
    spared: Messages = {}
    acknowledged = _acknowledged(lives, life, ack, clear, in_transaction=True)
    for position in lives.given_back.up_to(ack.position):
        left = unacked(position)
        for part in lives.given_back.of(position):
            if not (bits := acknowledged.names(position, part) & left):
                continue
            covers = acknowledged.covers(position, part)
            if covers is None:
                raise Unclear(position)
            if not covers:
                acknowledged.add(spared, position, bits, part)
            elif acknowledged.may_be_dropped(position, bits, part):
                raise Unclear(position, dropped=True)
    return spared


def parted(
    lives: Lives, life: Life, ack: PendingAck, clear: bool | None, after: Position
) -> tuple[Messages, Messages]:
    """What an acknowledgement without a transaction surely covers of the messages that aborted
    transactions have given back, and what it spares in the entries after `after`.
    """
    acknowledged = _acknowledged(lives, life, ack, clear, in_transaction=False)
    covered: Messages = {}
    for position, part in _delivered(lives.given_back, acknowledged):
        bits = acknowledged.names(position, part)
        if not bits or acknowledged.may_be_dropped(position, bits, part):
            continue
        if acknowledged.covers(position, part):
            acknowledged.add(covered, position, bits, part)
    spared: Messages = {}
    for position in lives.given_back.up_to(ack.position, after):
        known = covered[position].bits if position in covered else 0
        for part in lives.given_back.of(position):
            bits = acknowledged.names(position, part) & ~known
            if bits and (
                part.given_back_at >= acknowledged.oldest
                or acknowledged.may_be_dropped(position, bits, part)
            ):
                acknowledged.add(spared, position, bits, part)
    return covered, spared


def _delivered(
    given_back: GivenBack, acknowledged: _Acknowledged
) -> Iterator[tuple[Position, Part]]:
    """What the acknowledgement may cover. Messages come back one after the other, and each of many
    acknowledgements covers a few.
    """
    last, end = acknowledged.last, acknowledged.end
    if end is not None:
        yield from given_back.delivered_before(end)
        yield last, end
        return
    yield from given_back.delivered_by(last)
    if acknowledged.is_clear:
        late = (part for part in given_back.of(last) if part.read_to and part.read_to > last)
        yield from ((last, part) for part in late)


def _acknowledged(
    lives: Lives, life: Life, ack: PendingAck, clear: bool | None, in_transaction: bool
) -> _Acknowledged:
    last, whole = ack.position, not ack.still_unacked
    goes_back = not in_transaction and life.plain_is_known and ack.reach <= life.plain_to
    if whole and (goes_back or clear is False):
        given = (part for part in lives.given_back.of(last) if part.read_to is not None)
        end = max(given, key=attrgetter("given_at"), default=None) if goes_back else None
    else:
        end = _end(lives, life, last, -1 if whole else ack.acked_indexes.bit_length() - 1)
    is_foreign = in_transaction and last >= max(life.before, lives.given(life))
    is_clear = whole and clear is True
    return _Acknowledged(
        ack=ack,
        last=last,
        end=end,
        oldest=life.oldest,
        before=life.before,
        is_foreign=is_foreign,
        is_clear=is_clear,
        goes_back=goes_back,
        plain_to=life.plain_to,
        plain_is_known=life.plain_is_known,
    )


def _end(lives: Lives, life: Life, last: Position, index: int) -> Part | None:
    for part in lives.given_back.of(last):
        if part.has(index) and part.given_back_at >= life.oldest:
            had = life.oldest <= part.held_at or part.again
            return part if had or part.read_to is not None else None
    return None
