"""What the clients of an Exclusive or Failover subscription were given, so that their cumulative
acknowledgements in transactions are neither lost nor counted twice.

A life is one consumer object of a client. It outlives its connection. A SUBSCRIBE continues it if
consumer name and id are the same and the request id is not lower: the request ids of a client rise,
also over its connections, and a new process begins anew. When the client closes its consumer, or
requests redelivery with a new epoch, it drops what it was given, and the life forgets it.

A pass is the delivery of everything unacknowledged, in order. It begins when another life becomes
the active one, on a reconnect, and on redelivery. So of a life it suffices to know how far passes
went: the present one, the furthest of the earlier ones, and how far two of them went.

A life is tainted by a transaction that takes messages of which its client may have another
delivery. If the transaction commits, a later cumulative acknowledgement might consume them once
more, so it is refused until the client requests redelivery. An abort removes the taint.

Lives and their taints are stored in the pending-ack log (`LifeRecord`), and what they were given
when they are gone, as after an unload. After a crash a life may have been given everything, twice.
The model is spec/acknowledgements.py.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import Final

from managed_ledger.position import EARLIEST, Position
from pybroker.base.names import TxnId
from pybroker.broker.dispatch.delivery import Delivery
from pybroker.broker.dispatch.given_back import GivenBack
from pybroker.broker.dispatch.life import Life
from pybroker.transaction.pending_acks.records import (
    AckRecord,
    Held,
    LifeRecord,
    PendingAck,
    Place,
)
from pybroker.transaction.txn_status import TxnAction

MOST_GONE: Final = 100  # of one subscription; beyond that, the oldest are forgotten
# Clients begin to number requests at random, and later ones of the same client are close behind.
_MOST_REQUESTS: Final = 1 << 40


class Lives:
    """Of one subscription. `first` is always the first unacknowledged entry, and `read_to` how far
    the active life was given everything in the present pass.
    """

    def __init__(self, read_to: Callable[[], Position], first: Callable[[], Position]) -> None:
        self._read_to, self._first = read_to, first
        self.given_back = GivenBack()
        self.now = 1  # counts passes, acknowledgements, and what is given back
        self._active: Life | None = None
        self._present: dict[int, Life] = {}  # by number
        self._gone: dict[int, Life] = {}  # the latest is last
        self._by_name: dict[tuple[str, int], list[Life]] = {}  # and by the consumer's id
        self._numbers = 0
        self._held_at: dict[TxnId, int] = {}  # the latest individual acknowledgement
        # Called with a life whose record is to be stored, and whether it is gone for ever.
        self.on_changed: Callable[[Life, bool], Awaitable[None]] | None = None

    # -- lives begin and end

    def restore(self, records: Iterable[LifeRecord], end: Position, acknowledged: Position) -> None:
        """The lives that the log knows. `end` is the end of the topic, `acknowledged` the last
        message that was acknowledged.
        """
        for record in records:
            life = Life(record.number, record.name, record.consumer_id, record.request_id)
            life.before, life.twice = record.given or (end, end)
            life.given_is_known = record.given is not None
            if record.plainly:
                life.plainly, life.plain_is_known, life.plain_to = True, False, (acknowledged, inf)
            life.taints = dict(record.taints)
            life.stored = life.recorded = True
            life.epoch = life.asked = record.epoch
            self._gone[life.number] = life
            self._by_name.setdefault((life.name, life.consumer_id), []).append(life)
            self._numbers = max(self._numbers, life.number)

    def arrive(self, name: str, consumer_id: int, request_id: int, epoch: int | None) -> Life:
        """`epoch`: that of the SUBSCRIBE, if it has one."""
        self._forget_gone()
        life = self._continued(name, consumer_id, request_id)
        if life is None:
            self._numbers += 1
            life = Life(self._numbers, name, consumer_id, request_id)
            life.oldest = self._tick()
            self._by_name.setdefault((name, consumer_id), []).append(life)
        self._gone.pop(life.number, None)
        self._present[life.number] = life
        life.consumers += 1
        if request_id != life.request_id:
            life.request_id, life.stored = request_id, False
        if epoch is not None and life.begins_epoch(epoch):
            self.forget(life)
        return life

    def _continued(self, name: str, consumer_id: int, request_id: int) -> Life | None:
        found: Life | None = None
        for life in self._by_name.get((name, consumer_id), ()):
            requests = request_id - life.request_id
            # Some clients number the requests of each connection anew.
            rises = 0 < requests < _MOST_REQUESTS or (requests == 0 and not life.consumers)
            if rises and (found is None or found.request_id < life.request_id):
                found = life
        return found

    def asks(self, life: Life | None, epoch: int) -> Awaitable[None] | None:
        """Its client requests redelivery in this epoch. Follow it when the result is done; None: at
        once. See Life.asks_in.
        """
        if life is None or self.on_changed is None or not life.asks_in(epoch):
            return None
        return self.on_changed(life, False)

    def leave(self, life: Life, closed: bool) -> None:
        """A consumer has left, after `begin` if it was the active one. `closed`: its client has
        closed it.
        """
        life.consumers -= 1
        if life.consumers:
            return
        del self._present[life.number]
        if closed or not life.has_something(self._first()):
            self._end(life)
            return
        self._gone[life.number] = life
        if len(self._gone) > MOST_GONE:
            self._end(self._gone.pop(next(iter(self._gone))))

    def _end(self, life: Life) -> None:
        self._forget_name(life)
        if self.on_changed is not None and life.recorded:
            self.on_changed(life, True)

    def _forget_name(self, life: Life) -> None:
        key = life.name, life.consumer_id
        namesakes = self._by_name[key]
        namesakes.remove(life)
        if not namesakes:
            del self._by_name[key]

    def forget_all(self) -> None:
        """The subscription was moved: everything may be given again."""
        for life in self._gone.values():
            self._forget_name(life)
        self._gone.clear()
        self.given_back = GivenBack()
        for life in self._present.values():
            life.forget(self.now)

    def may_return(self) -> bool:
        """Whether a client that is gone may have something unacknowledged."""
        self._forget_gone()
        return bool(self._gone)

    def _forget_gone(self) -> None:
        """Forget lives that have nothing unacknowledged any more."""
        if self._gone:
            first = self._first()
            for life in [each for each in self._gone.values() if not each.has_something(first)]:
                self._end(self._gone.pop(life.number))

    def __iter__(self) -> Iterator[Life]:
        yield from self._present.values()
        yield from self._gone.values()

    def _tick(self) -> int:
        self.now += 1
        return self.now

    # -- what they are given

    def given(self, life: Life | None) -> Position:
        """How far it was given everything in the present pass."""
        if life is None or life is not self._active:
            return EARLIEST
        read_to = self._read_to()
        return read_to if read_to > self._first() else EARLIEST

    def _given_twice(self, life: Life) -> Position:
        """How far it was given everything twice, the present pass included."""
        return max(life.twice, min(life.before, self.given(life)))

    def begin(self, active: Life | None, forgets: Life | None = None) -> None:
        """From now on, `active` is given everything unacknowledged, in order. `forgets`: its client
        has dropped what it was given so far.
        """
        before = self._active
        if before is not None:
            given = self.given(before)
            before.twice = self._given_twice(before)
            before.before = max(before.before, given)
            before.clear_to = EARLIEST
        self._active = active
        now = self._tick()
        if forgets is not None:
            forgets.forget(now)
            self.store()
        if active is not None:
            active.clear_to = EARLIEST
            if not active.before > self._first():
                active.oldest = now
        if self.given_back:
            first = self._first()
            oldest = (each.oldest for each in self if each is active or each.before > first)
            plain_to = max((each.plain_to[0] for each in self), default=EARLIEST)
            self.given_back.begin_anew(min(oldest, default=now), plain_to)

    def delivered(self, delivery: Delivery, read_to: Position) -> None:
        """The active life is given this, after everything before `read_to`."""
        self.now = self.given_back.delivered(delivery, read_to, self.now)

    def passed(self, before: Position, read_to: Position) -> None:
        """It will not be given anything before `before` any more."""
        self.now = self.given_back.passed(before, read_to, self.now)

    def forget(self, life: Life) -> None:
        """Its client has dropped what it was given; it is not the active one."""
        life.forget(self._tick())
        self.store()

    # -- what their transactions take

    def taken(self, life: Life | None, txn_id: TxnId, acks: Sequence[PendingAck]) -> None:
        """Its client has acknowledged these individually in the transaction; None on subscriptions
        of other types.
        """
        self._held_at[txn_id] = self._tick()
        if not acks:
            return
        self._forget_gone()
        first = min(each.first for each in acks)
        for each in self:
            bound = max(each.before, self.given(each))
            if each is life:
                bound = self._given_twice(each)
            if first[0] < bound:
                each.taint(txn_id, first)
        if life is not None and self.given_back:
            self._taint_by_given_back(life, txn_id, acks)

    def _taint_by_given_back(self, life: Life, txn_id: TxnId, acks: Iterable[PendingAck]) -> None:
        """Of a message that was given back, its client may have an earlier and a late delivery."""
        for ack in acks:
            bits = ack.acked_indexes or -1
            for part in self.given_back.of(ack.position):
                if part.bits & bits and part.was_given and life.oldest <= part.held_at:
                    life.taint(txn_id, ack.first)

    def is_clear(self, life: Life, ack: PendingAck) -> bool:
        """Whether its client has received everything from earlier passes before the last message
        that it acknowledges cumulatively.
        """
        late = any(part.was_given for part in self.given_back.of(ack.position))
        return ack.position >= life.before and not late

    def has_again(
        self,
        life: Life,
        before: AckRecord | None,
        ack: PendingAck,
        unacked: Callable[[Position], int],
    ) -> bool:
        """Whether its client, which acknowledges further in the transaction of `before`, was given
        again what it has acknowledged there. `unacked`: see `commits`.
        """
        if before is None or life.holds != before.txn_id:
            return False
        if ack.position >= max(life.before, self.given(life)):
            return False
        if self._given_twice(life) > max(self._first(), life.clear_to):
            return True
        return self._came_late_again(life, before, unacked) is not None

    def acknowledged(
        self, life: Life, txn_id: TxnId, ack: PendingAck, is_clear: bool, names_all: bool = False
    ) -> None:
        """Its client has acknowledged cumulatively in the transaction. `names_all`: it named the
        messages, so that it knows itself what it has twice.
        """
        life.holds, life.holds_to, life.clear_to = txn_id, ack.reach, EARLIEST
        life.clear_at = inf if names_all else -1
        if is_clear:
            life.clear_to, life.twice = self.given(life), EARLIEST
            life.clear_at = max(life.clear_at, self.now)
            life.taints.pop(txn_id, None)

    def restore_hold(self, record: AckRecord, came_since: bool) -> None:
        """The transaction was open when the subscription was unloaded. `came_since`: perhaps its
        client, or another, has subscribed since it acknowledged, so that its messages came again.
        """
        for life in self:
            if life.number == record.life:
                life.holds, life.holds_to = record.txn_id, record.last.reach
                if record.is_clear and not (life.given_is_known or came_since):
                    life.twice = EARLIEST

    def commits(self, record: AckRecord, unacked: Callable[[Position], int]) -> None:
        """The transaction, which has acknowledged cumulatively, commits. Call this before the
        cursor moves, and before the commit is logged. `unacked`: the messages of an entry that are
        not acknowledged, as bits.
        """
        txn_id, first = record.txn_id, self._first()
        while first in record.spared and record.spared[first].bits < 0:
            first = first.after
        for life in self:
            bound = max(life.before, self.given(life))
            if life.holds != txn_id:
                self._taint_from((first, 0), bound, life, txn_id)
                continue
            clear = max(first, life.clear_to)
            self._taint_from((clear, 0), self._given_twice(life), life, txn_id)
            if (late := self._came_late_again(life, record, unacked)) is not None:
                life.taint(txn_id, (late, 0))
            position, messages = life.holds_to
            if life.holds_to < record.last.reach:  # others have acknowledged further in it
                whole = messages == inf
                place = (position.after, 0) if whole else (position, int(messages))
                self._taint_from(place, bound, life, txn_id)
        self.store()

    def _came_late_again(
        self, life: Life, record: AckRecord, unacked: Callable[[Position], int]
    ) -> Position | None:
        """The first entry that its own transaction consumes and of which its client may have the
        late delivery besides: it may have repeated from memory what an abort gave back.
        """
        last = record.last
        for position in self.given_back.up_to(last.position):
            consumed = unacked(position)
            if position in record.spared:
                consumed &= ~record.spared[position].bits
            if position == last.position and last.still_unacked:
                consumed &= last.acked_indexes
            for part in self.given_back.of(position):
                had = part.was_given and life.oldest <= part.held_at
                if had and part.bits & consumed and part.given_at > life.clear_at:
                    return position
        return None

    def _taint_from(self, first: Place, bound: Position, life: Life, txn_id: TxnId) -> None:
        if bound > first[0]:
            life.taint(txn_id, first)

    def ended(self, txn_id: TxnId, action: TxnAction) -> None:
        self._held_at.pop(txn_id, None)
        for life in self:
            if action is TxnAction.ABORT and life.taints.pop(txn_id, None) is not None:
                life.stored = False
            if life.holds == txn_id:
                life.holds, life.clear_to = None, EARLIEST

    def add_given_back(
        self,
        txn_id: TxnId | None,
        given_back: Mapping[Position, Held],
        is_deleted: Callable[[Position], bool],
    ) -> None:
        """The transaction no longer holds these messages, which will be delivered. None: that was
        before the subscription was loaded.
        """
        held_at, now = 0, 0
        if txn_id is not None:
            now = self._tick()
            held_at = self._held_at.get(txn_id, 0)
        self.given_back.add(given_back, held_at, now, is_deleted)

    def records(self) -> list[LifeRecord]:
        return [life.record for life in self]

    def store(self) -> None:
        """Have lives stored that have changed."""
        if self.on_changed is not None:
            for life in self:
                if not life.stored:
                    self.on_changed(life, False)
