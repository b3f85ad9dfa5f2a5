"""Messages that the consumer of an Exclusive or Failover subscription gets late, or not yet.

A message that an open transaction holds individually is passed over. When that transaction aborts,
the message is delivered after messages that follow it in the log. A cumulative acknowledgement that
was sent before it arrived does not refer to it. If it covered the message, no consumer would
get it.

So an acknowledgement up to `position` covers such a message only if the active consumer was given
the entry at `position` after the message, and not before. If the entry was given twice, the client
may mean either delivery. Then a plain acknowledgement does not cover the message, which may come
once more than necessary but is never lost. An acknowledgement in a transaction is refused, because
its effects would remain although the message is delivered again.

Clients silently drop a message before their own last plain cumulative acknowledgement (Java for the
lifetime of the consumer object, also across reconnects). The broker cannot tell whether a client
did. So a message before such an acknowledgement is in doubt: a later acknowledgement that goes
further does not cover it. An acknowledgement of the message itself covers it. So does one that goes
less far than the last: a client that sends this has forgotten the last one, and drops nothing.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import itemgetter
from typing import Final

from sortedcontainers import SortedDict

from managed_ledger.position import EARLIEST, Position
from pybroker.transaction.pending_acks.records import Held

_PRUNE_FROM: Final = 1000  # messages
MOST_CLIENTS: Final = 1000


@dataclass(frozen=True, slots=True)
class GivenSoFar:
    """What a consumer's client was given: everything before `read_to` since reading last restarted,
    and everything before `earlier` at an earlier time: on another connection, or before another
    consumer became active. A client that requests redelivery forgets what it has, so only what it
    was given after that counts.
    """

    read_to: Position = EARLIEST  # EARLIEST also for a consumer that is not active
    earlier: Position = EARLIEST
    name: str = ""  # of the consumer
    # False: the acknowledgement may refer to an earlier delivery of this batch, which left out
    # messages that the consumer was given since.
    sure: bool = True
    had: Position = EARLIEST  # it was given everything before this when others took some of it

    def once(self, position: Position) -> bool:
        """Whether the consumer was given the entry, if at all, during its present time as the
        active one.
        """
        return self.earlier <= position < self.read_to

    def may_include(self, position: Position, late: Iterable[Position]) -> bool:
        """Whether the client may have had some of the `late` messages when it acknowledged up to
        `position`, although they were delivered after it, or not yet.
        """
        before = self.had if self.once(position) else max(self.had, self.earlier)
        return any(each < before for each in late)


class LastAcknowledged:
    """How far clients have acknowledged cumulatively without a transaction, by consumer name: the
    name outlives a connection, like the client's own memory of it.
    """

    __slots__ = ("_by_name", "_of_others")

    def __init__(self) -> None:
        self._by_name: dict[str, Position] = {}  # ordered: the latest to acknowledge is last
        self._of_others = EARLIEST

    def of(self, name: str) -> Position:
        return self._by_name.get(name, self._of_others)

    def known_of(self, name: str) -> Position:
        """Like `of`, but EARLIEST instead of a guess."""
        return self._by_name.get(name, EARLIEST)

    def note(self, name: str, position: Position) -> None:
        known = self._by_name
        known.pop(name, None)
        known[name] = position
        if len(known) > MOST_CLIENTS:
            self.suppose(known.pop(next(iter(known))))

    def suppose(self, position: Position) -> None:
        """Note that unknown consumers may have acknowledged up to here."""
        self._of_others = max(self._of_others, position)

    def forget(self, name: str) -> None:
        self._by_name.pop(name, None)


class PassedOver:
    """One for each subscription. It grows with messages that aborted transactions held and that are
    still unacknowledged.
    """

    __slots__ = (
        "_doubtful",
        "_given",
        "_mixed",
        "_prune_at",
        "_restored",
        "acknowledged_to",
        "last_acknowledged",
    )

    def __init__(self) -> None:
        self._restored: SortedDict[Position, Held] = SortedDict()
        # Messages given since, in order of delivery, with the position from which on
        # acknowledgements cover them: how far the log had been read by then. The first ones are
        # removed first, which is slow in a plain dict.
        self._given: OrderedDict[Position, Position] = OrderedDict()
        self._doubtful: dict[
            Position, Position
        ] = {}  # like `_given`, but the client may have dropped them
        # Batches given with a part that was restored, before another part was.
        self._mixed: set[Position] = set()
        self.last_acknowledged = LastAcknowledged()
        self._prune_at = _PRUNE_FROM
        # Cumulative acknowledgements have settled everything up to here, except what was passed
        # over.
        self.acknowledged_to = EARLIEST

    def restore(
        self,
        restored: Mapping[Position, Held],
        mark: Position,
        is_deleted: Callable[[Position], bool],
    ) -> None:
        """Transactions no longer hold these messages: they will be delivered. `mark`: as in
        `forget`.
        """
        self.forget((), mark)
        if len(self._restored) > self._prune_at:
            self.forget([each for each in self._restored if is_deleted(each)], mark)
            self._prune_at = max(_PRUNE_FROM, 2 * len(self._restored))
        for position, held in restored.items():
            before = self._restored.get(position, held)
            if before.bits & ~held.bits and (position in self._given or position in self._doubtful):
                self._mixed.add(position)
            self._restored[position] = before | held
            self._given.pop(position, None)
            self._doubtful.pop(position, None)

    def read_anew(self) -> None:
        """Called when everything after the mark-delete position is delivered again, in order."""
        self._given.clear()
        self._doubtful.clear()
        self._mixed.clear()

    def given(self, positions: Iterable[tuple[int, int]], read_to: Position, name: str) -> None:
        """Called when the active consumer, `name`, is given these, after everything before
        `read_to`.
        """
        last = self.last_acknowledged.of(name)
        for at in positions:
            if at in self._restored and at not in self._given and at not in self._doubtful:
                position = Position(*at)
                given = self._doubtful if position <= last else self._given
                given[position] = max(position, read_to)

    def passed(self, before: Position, read_to: Position, name: str) -> None:
        """Like `given`, for everything before `before`: nothing older will be given any more."""
        passed = self._restored.irange(maximum=before, inclusive=(True, False))
        self.given(list(passed), read_to, name)

    def covered_plainly(
        self, position: Position, still_unacked: int | None, given: GivenSoFar, shared: bool
    ) -> list[Position]:
        """Like `covered`, but not in a transaction: the client may drop messages up to there from
        now on. `shared`: several clients may have the consumer's name.
        """
        last = self.last_acknowledged.of(given.name)
        furthest = self.last_acknowledged.known_of(given.name) if shared else EARLIEST
        self.last_acknowledged.note(given.name, max(furthest, position))
        if given.read_to == EARLIEST:
            return []
        if position < last and not shared:  # the client has forgotten the last one
            both = sorted([*self._doubtful.items(), *self._given.items()], key=itemgetter(1))
            self._given = OrderedDict(both)
            self._doubtful.clear()
            last, given = EARLIEST, replace(given, sure=True)
        covered = self.covered(position, still_unacked, given)
        known = set(covered)
        for each in self._restored.irange(last, position):
            if each in self._given and each not in known:
                self._doubtful[each] = self._given.pop(each)
        if still_unacked and position in known:  # the client has everything given of the batch
            self._doubtful.pop(position, None)
            self._given[position] = EARLIEST
            self._given.move_to_end(position, last=False)
        return covered

    def covered(
        self, position: Position, still_unacked: int | None, given: GivenSoFar
    ) -> list[Position]:
        """The messages given late that a cumulative acknowledgement covers.

        Some messages of a batch may have been given in time: an acknowledgement up to one of these
        may have been sent before the others were given.
        """
        late: list[Position] = []
        if not given.once(position):
            return late
        named = given.sure and position in self._restored
        named = named and self._is_late(position, still_unacked or 0)
        if named and position in self._given:
            for each in self._given:
                late.append(each)
                if each == position:
                    break
        else:
            for each, covered_from in self._given.items():
                if covered_from > position:
                    break
                late.append(each)
            if named and position in self._doubtful:
                late.append(position)
        return [each for each in late if each <= position]

    def is_unclear(
        self, position: Position, given: GivenSoFar, covered: Collection[Position]
    ) -> bool:
        """Whether `covered` leaves out something that the client may have meant: it was given the
        entry at `position` twice, perhaps because an abort gave back another part of that batch; or
        it was given a part of a batch that was restored, and not yet another part.
        """
        both = chain(self._given, self._doubtful)
        known = set(covered)
        left = [each for each in both if each <= position and each not in known]
        if any(each <= position for each in self._mixed):
            return True
        return bool(left) and (position in left or not given.once(position))

    def in_doubt(self, up_to: Position, name: str, covered: Sequence[Position]) -> list[Position]:
        """Messages that the client may have dropped, as far as its acknowledgements are known."""
        last, known = min(up_to, self.last_acknowledged.known_of(name)), set(covered)
        return [each for each in self._doubtful if each <= last and each not in known]

    def _is_late(self, position: Position, still_unacked: int) -> bool:
        """Whether the last acknowledged message was given late; true if the whole batch is
        acknowledged.
        """
        last_acked = (still_unacked & -still_unacked) >> 1
        return not still_unacked or bool(self._restored[position].bits & last_acked)

    def not_given(
        self, after: Position, up_to: Position, covered: Iterable[Position]
    ) -> dict[Position, Held]:
        """What was restored of the entries after `after` up to `up_to`, except the `covered`."""
        known = set(covered)
        between = self._restored.irange(after, up_to, inclusive=(False, True))
        return {each: self._restored[each] for each in between if each not in known}

    def restored(self, position: Position) -> Held:
        """What was restored of an entry that `covered` returned."""
        held: Held = self._restored[position]
        return held

    def forget(self, positions: Iterable[Position], mark: Position) -> dict[Position, Held]:
        """Forget `positions` and everything up to the mark-delete position, which are acknowledged.
        Returns what was restored of `positions`.
        """
        known = {each: self._forget(each) for each in positions}
        while self._restored and self._restored.peekitem(0)[0] <= mark:
            self._forget(self._restored.peekitem(0)[0])
        return known

    def _forget(self, position: Position) -> Held:
        self._given.pop(position, None)
        self._doubtful.pop(position, None)
        self._mixed.discard(position)
        held: Held = self._restored.pop(position)
        return held

    @property
    def messages(self) -> Mapping[Position, Held]:
        """What was restored and is not known to be acknowledged, in order."""
        messages: Mapping[Position, Held] = self._restored
        return messages

    @property
    def is_over(self) -> bool:
        return not self._restored
