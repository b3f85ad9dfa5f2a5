"""What the consumer of an Exclusive or Failover subscription gets late, or has not been given yet.

A message that an open transaction holds singly is passed over. When that transaction aborts, the
message is delivered behind messages that follow it in the log. A cumulative acknowledgement that
was sent before it came does not speak of it. If it covered the message, nobody would get it.

So an acknowledgement up to `position` covers such a message only if the active consumer was given
the entry at `position` after the message, and not before. Where the entry was given twice, the
client may mean either: then a plain acknowledgement does not cover the message, which may come once
more than necessary and is never lost; one in a transaction is refused, because its effects would
stay while the message comes again.

Clients drop what comes, unseen, if it stands before their own last plain cumulative acknowledgement
(Java's for as long as the consumer object lives, also over reconnects). Whether one did cannot be
told. So what is behind such an acknowledgement is in doubt: a later one that goes further does not
cover it, one that names the message does, and so does one that goes less far than the last: who
sends that has forgotten the last, and drops nothing.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import itemgetter
from typing import Final

from sortedcontainers import SortedDict

from managed_ledger.position import EARLIEST, Position
from pybroker.transaction.pending_acks.store import Held

_PRUNE_FROM: Final = 1000  # messages
MOST_CLIENTS: Final = 1000


@dataclass(frozen=True, slots=True)
class GivenSoFar:
    """What a consumer was given: everything before `read_to` since reading last began anew, and
    what is before `earlier` as the active one of an earlier time. Clients that want everything
    again forget what they have, so only what was given after that counts.
    """

    read_to: Position = EARLIEST  # also of a consumer that is not the active one
    earlier: Position = EARLIEST
    name: str = ""  # the consumer's
    # False: what is acknowledged may be what it was given of this batch when something of it was
    # left out, though it has been given that by now.
    sure: bool = True

    def once(self, position: Position) -> bool:
        """It was given the entry, if at all, as the active consumer that it is now."""
        return self.earlier <= position < self.read_to


class LastAcknowledged:
    """How far clients have acknowledged cumulatively without a transaction, by consumer's name: the
    name outlives a connection, as what the client remembers does.
    """

    __slots__ = ("_by_name", "_of_others")

    def __init__(self) -> None:
        self._by_name: dict[str, Position] = {}  # the latest to acknowledge last
        self._of_others = EARLIEST

    def of(self, name: str) -> Position:
        return self._by_name.get(name, self._of_others)

    def known_of(self, name: str) -> Position:
        """As `of`, where that is more than a guess."""
        return self._by_name.get(name, EARLIEST)

    def note(self, name: str, position: Position) -> None:
        known = self._by_name
        known.pop(name, None)
        known[name] = position
        if len(known) > MOST_CLIENTS:
            self.suppose(known.pop(next(iter(known))))

    def suppose(self, position: Position) -> None:
        """Whoever is not known may have gone so far."""
        self._of_others = max(self._of_others, position)

    def forget(self, name: str) -> None:
        self._by_name.pop(name, None)


class PassedOver:
    """Of one subscription. It grows with what aborted transactions held and nobody acknowledged."""

    __slots__ = (
        "_doubtful",
        "_given",
        "_prune_at",
        "_restored",
        "acknowledged_to",
        "last_acknowledged",
    )

    def __init__(self) -> None:
        self._restored: SortedDict[Position, Held] = SortedDict()
        # Those that were given since, in order of delivery: acknowledgements from where on cover
        # them, which is how far the log had been read by then.
        # The first ones leave first, which a plain dict makes slow.
        self._given: OrderedDict[Position, Position] = OrderedDict()
        self._doubtful: dict[Position, Position] = {}  # as `_given`: the client may have dropped it
        self.last_acknowledged = LastAcknowledged()
        self._prune_at = _PRUNE_FROM
        # Cumulative acknowledgements have settled everything up to here, but for what was passed.
        self.acknowledged_to = EARLIEST

    def restore(
        self,
        restored: Mapping[Position, Held],
        mark: Position,
        is_deleted: Callable[[Position], bool],
    ) -> None:
        """Transactions hold these no more: they will be delivered. `mark`: as in `forget`."""
        self.forget((), mark)
        if len(self._restored) > self._prune_at:
            self.forget([each for each in self._restored if is_deleted(each)], mark)
            self._prune_at = max(_PRUNE_FROM, 2 * len(self._restored))
        for position, held in restored.items():
            self._restored[position] = self._restored.get(position, held) | held
            self._given.pop(position, None)
            self._doubtful.pop(position, None)

    def read_anew(self) -> None:
        """From the mark-delete position on: everything comes again, in order."""
        self._given.clear()
        self._doubtful.clear()

    def given(self, positions: Iterable[tuple[int, int]], read_to: Position, name: str) -> None:
        """The active consumer, `name`, is given these now, after what is before `read_to`."""
        last = self.last_acknowledged.of(name)
        for at in positions:
            if at in self._restored and at not in self._given and at not in self._doubtful:
                position = Position(*at)
                given = self._doubtful if position <= last else self._given
                given[position] = max(position, read_to)

    def passed(self, before: Position, read_to: Position, name: str) -> None:
        """As `given`, for everything before `before`: what did not come will not."""
        passed = self._restored.irange(maximum=before, inclusive=(True, False))
        self.given(list(passed), read_to, name)

    def covered_plainly(
        self, position: Position, still_unacked: int | None, given: GivenSoFar
    ) -> list[Position]:
        """As `covered`; from now on the client may drop what comes up to there."""
        last = self.last_acknowledged.of(given.name)
        self.last_acknowledged.note(given.name, position)
        if given.read_to == EARLIEST:
            return []
        if position < last:  # the client has forgotten that one
            both = sorted([*self._doubtful.items(), *self._given.items()], key=itemgetter(1))
            self._given = OrderedDict(both)
            self._doubtful.clear()
            last, given = EARLIEST, replace(given, sure=True)
        covered = self.covered(position, still_unacked, given)
        known = set(covered)
        for each in self._restored.irange(last, position):
            if each in self._given and each not in known:
                self._doubtful[each] = self._given.pop(each)
        if still_unacked and position in known:  # the client has all that was given of the batch
            self._doubtful.pop(position, None)
            self._given[position] = EARLIEST
            self._given.move_to_end(position, last=False)
        return covered

    def covered(
        self, position: Position, still_unacked: int | None, given: GivenSoFar
    ) -> list[Position]:
        """What a cumulative acknowledgement speaks of, of what its consumer was given late.

        Of a batch some messages may have been given in time: an acknowledgement up to one of these
        may be older than the others.
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
        self, position: Position, given: GivenSoFar, covered: Sequence[Position]
    ) -> bool:
        """Whether `covered` leaves something out that the client may have meant: it was given the
        entry at `position` twice, perhaps because an abort gave back another part of that batch.
        """
        both = chain(self._given, self._doubtful)
        left = [each for each in both if each <= position and each not in covered]
        return bool(left) and (position in left or not given.once(position))

    def in_doubt(self, up_to: Position, name: str, covered: Sequence[Position]) -> list[Position]:
        """What that client may have dropped, by what it has acknowledged since this was kept."""
        last = min(up_to, self.last_acknowledged.known_of(name))
        return [each for each in self._doubtful if each <= last and each not in covered]

    def _is_late(self, position: Position, still_unacked: int) -> bool:
        """The last message that is acknowledged was given late; or the whole of a batch is."""
        last_acked = (still_unacked & -still_unacked) >> 1
        return not still_unacked or bool(self._restored[position].bits & last_acked)

    def not_given(
        self, after: Position, up_to: Position, covered: Iterable[Position]
    ) -> dict[Position, Held]:
        """What was restored of the entries behind `after` up to `up_to`, but for the `covered`."""
        known = set(covered)
        between = self._restored.irange(after, up_to, inclusive=(False, True))
        return {each: self._restored[each] for each in between if each not in known}

    def restored(self, position: Position) -> Held:
        """What was restored of an entry that `covered` has named."""
        held: Held = self._restored[position]
        return held

    def forget(self, positions: Iterable[Position], mark: Position) -> dict[Position, Held]:
        """These, and all up to the mark-delete position, are acknowledged; what the former were."""
        known = {each: self._forget(each) for each in positions}
        while self._restored and self._restored.peekitem(0)[0] <= mark:
            self._forget(self._restored.peekitem(0)[0])
        return known

    def _forget(self, position: Position) -> Held:
        self._given.pop(position, None)
        self._doubtful.pop(position, None)
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
