"""What the consumers of one topic were given, what they acknowledged in transactions, and whether a
TransactionConflict was needed.

The broker need not know more than it can: `reason_for` returns the excuse that it has. Without one
the refusal is an anomaly. Where the simulation cannot tell, there is an excuse.

A life is one consumer object of an application: it outlives connections. A pass is a time in which
it is given everything unacknowledged from the first message on: it subscribes, or becomes active.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from checks.history import Txn

Key = tuple[int, int, int]  # ledger, entry, index in the batch (-1 outside of one)

# A SUBSCRIBE whose request id is greater than another's of the same consumer by at most this much
# may come from the same client.
SAME_CLIENT_WITHIN: Final = 2**40


@dataclass(frozen=True, slots=True)
class Moment:
    turn: int
    open: frozenset[str] | None  # transactions that had not ended; None: unknown

    def is_after(self, txn: Txn) -> bool:
        """Whether the transaction had surely ended."""
        if txn.began is None or txn.began > self.turn:
            return False
        heard = txn.commit_heard if txn.committed else txn.abort_heard
        if heard is not None and heard < self.turn:
            return True
        return self.open is not None and str(txn.txn_id) not in self.open


@dataclass(slots=True, eq=False)
class Life:
    name: str
    consumer_id: int
    since: Moment  # it has nothing that it was given before
    subscribed: list[int] = field(default_factory=list)  # the request ids
    passes: list[set[Key]] = field(default_factory=list)  # what arrived, in each since then
    twice: set[Key] = field(default_factory=set)  # what arrived twice in one pass
    tries: int = 0  # to subscribe, since then; each may have begun a pass of which nothing arrived
    loads: list[int] = field(default_factory=list)  # of the topic, in which it was there since
    known_in: int | None = None  # the load of the topic in which it has subscribed
    # It has requested redelivery, and nothing arrived since: the loads in which it told the broker.
    told_in: set[int] | None = None
    unsure: bool = False  # the broker may have heard so in one load, and given it nothing in it

    def forget(self, now: Moment, connected: bool) -> None:
        """It drops all that it has, and tells the broker so, before it is given any more: at once
        while it is connected, and with each SUBSCRIBE.
        """
        self.since, self.unsure = now, False
        self.told_in = {self.known_in} if connected and self.known_in is not None else set()
        self.tries = len(self.told_in)
        self.passes, self.twice = [], set()
        self.loads = [*self.told_in]

    def subscribes(self, request_id: int, load: int) -> None:
        """The broker may know it from now on, even if it hears no answer."""
        self.subscribed.append(request_id)
        self.tries += 1
        self.loads.append(load)
        if self.told_in is not None:
            self.told_in.add(load)

    def is_known_in(self, load: int) -> None:
        """It has subscribed. After an unload the broker remembers no passes, only lives."""
        self.loads.append(load)
        self.known_in = load

    def begin_pass(self, load: int) -> None:
        self.passes.append(set())
        self.unsure = self.unsure or bool((self.told_in or set()) - {load})
        self.is_known_in(load)

    def given(self, key: Key) -> None:
        self.told_in = None
        if not self.passes:
            self.passes.append(set())
        if key in self.passes[-1]:
            self.twice.add(key)
        self.passes[-1].add(key)

    @property
    def most_passes(self) -> int:
        return max(len(self.passes), self.tries)

    @property
    def was_given(self) -> set[Key]:
        return set().union(*self.passes)

    def may_be(self, other: "Life") -> bool:
        """Whether the broker may take this life for the other one's continuation."""
        if (
            self is other
            or not other.subscribed
            or (self.name, self.consumer_id) != (other.name, other.consumer_id)
        ):
            return False
        between = self.subscribed[0] - max(other.subscribed)
        return 0 < between <= SAME_CLIENT_WITHIN


@dataclass(slots=True, eq=False)
class Ack:
    """An acknowledgement in a transaction."""

    life: Life
    txn: Txn
    consumed: frozenset[Key]  # by the application, in this transaction
    end: Key | None  # of a cumulative one
    sent: Moment
    unclear: frozenset[Key] = frozenset()  # to this project's client; see Hand.unclear
    answered: Moment | None = None
    refused: bool = False

    def covers(self, key: Key) -> bool:
        return key in self.consumed if self.end is None else key <= self.end

    def may_hold(self, moment: Moment) -> bool:
        """Whether its transaction may have been open then, or committed."""
        if self.refused:
            return False
        may_commit = self.txn.commit is not None and not self.txn.surely_aborted
        return may_commit or not moment.is_after(self.txn)


@dataclass(slots=True)
class Book:
    """Of one topic's subscription."""

    lives: list[Life] = field(default_factory=list)
    acks: list[Ack] = field(default_factory=list)


def reason_for(refused: Ack, book: Book, says_all: bool = False) -> str | None:
    """The excuse for a TransactionConflict. `says_all`: the client leaves nothing to guess."""
    others = [each for each in book.acks if each is not refused and not each.refused]
    rivals = [
        each
        for each in others
        if each.txn is not refused.txn and each.may_hold(refused.sent)
    ]  # fmt: skip
    if any(each.covers(key) for each in rivals for key in refused.consumed):
        return "another transaction has some of it"
    own = [each for each in others if each.txn is refused.txn]
    if refused.end is None:
        twice = any(each.covers(key) for each in own for key in refused.consumed)
        return "its own transaction has some of it" if twice else None
    sooner = [each for each in book.acks[: book.acks.index(refused)] if each in own]
    if _goes_no_further(refused.end, sooner):
        return "it goes no further than its own transaction"
    if any(each.end is not None and not refused.sent.is_after(each.txn) for each in rivals):
        return "another transaction holds cumulatively"
    if says_all:
        return "it is unclear which of two copies it means" if refused.unclear else None
    if _taken_by_itself(refused.life, refused.end, sooner):
        return "it was given twice what its own transaction has"
    return next(_excuses(refused, refused.end, others, rivals, own, book.lives), None)


def _goes_no_further(end: Key, own: list[Ack]) -> bool:
    return any(each.end is not None and each.end >= end for each in own)


def _excuses(
    refused: Ack,
    end: Key,
    others: list[Ack],
    rivals: list[Ack],
    own: list[Ack],
    lives: Iterable[Life],
) -> Iterator[str]:
    """For a cumulative one, whose application has nothing that others have."""
    life, sent = refused.life, refused.sent
    if life.unsure:
        yield "it asked for redelivery while the topic was being loaded anew"
    if any(life.may_be(each) for each in lives):
        yield "it looks like an earlier life"
    if _taken_by_others(life, end, rivals):
        yield "another life's transaction has some of what it was given"
    if _taken_by_itself(life, end, rivals):
        yield "it was given twice what its own transaction has"
    if any(_given_back(refused, end, others, own)):
        yield "an aborted transaction held some of it singly"
    known = life.was_given
    still_open = (each for each in rivals if not sent.is_after(each.txn))
    singly = (key for each in still_open if each.end is None for key in each.consumed)
    if end not in known and any(key <= end for key in singly):
        yield "it names what it was not given, and another transaction holds some of it singly"


def _taken_by_others(life: Life, end: Key, rivals: list[Ack]) -> bool:
    taken = [each for each in rivals if each.life is not life and not life.since.is_after(each.txn)]
    # It may have been given more than arrived; after a load, the broker does not know whether it
    # was the active one.
    if life.most_passes > 1 or len({*life.loads}) > 1:
        return bool(taken)
    return any(each.covers(key) for each in taken for key in life.was_given if key <= end)


def _taken_by_itself(life: Life, end: Key, rivals: list[Ack]) -> bool:
    taken = [each for each in rivals if each.life is life]
    if life.most_passes > 2 or len({*life.loads}) > 1:
        return bool(taken)
    again = life.twice | (life.passes[1] if len(life.passes) == 2 else set())
    return any(each.covers(key) for each in taken for key in again if key <= end)


def _given_back(refused: Ack, end: Key, others: list[Ack], own: list[Ack]) -> Iterator[Key]:
    """Messages that perhaps came late, because a transaction that held them singly has ended."""
    sent, since, answered = refused.sent, refused.life.since, refused.answered
    forgotten = len({*refused.life.loads}) > 1  # an unload forgets when the life began
    settled = [
        each
        for each in others
        if each.end is None and each.txn.committed and sent.is_after(each.txn)
    ]
    settled += [each for each in own if each.end is None]
    for each in others:
        if each.end is not None or each.txn is refused.txn:
            continue
        if since.is_after(each.txn) and not forgotten:
            continue
        still_open = answered is not None and answered.open is not None
        if still_open and str(each.txn.txn_id) in (answered.open or ()):
            continue
        for key in each.consumed:
            if key <= end and not any(other.covers(key) for other in settled):
                yield key
