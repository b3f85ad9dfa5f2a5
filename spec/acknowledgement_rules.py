"""What the broker knows of an Exclusive or Failover subscription's clients, and how it answers.

An application acknowledges what it has received. An individual acknowledgement names everything
that it covers. A cumulative one at p means what the client received up to p and has not consumed,
and the broker must infer this from what it gave, and when. It is known exactly unless p was given
twice, or a message before p was given after p.

A life is one consumer object of one process: its name, consumer id and rising request ids tell it
from its successor. A pass goes from the first unacknowledged message upwards; one begins when a
life becomes the active one, connects again, or is given everything again. A taint says that a
client may hold another delivery of what a transaction takes. A special message is one that an
aborted transaction had held individually: it was passed over, and comes late.

These functions change nothing and look at nothing but the broker's own state: `acknowledgements`
runs them against clients whose true state they cannot see.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple, TypeVar

from spec.checker import Rules

T = TypeVar("T")

Messages = int  # as bits: 1 << m
INDIVIDUAL: Final = "individual"
CUMULATIVE: Final = "cumulative"
OPEN, COMMITTED, ABORTED = "open", "committed", "aborted"


class AcknowledgementRules(Rules):
    taint_others: bool = True  # what a transaction takes, other lives may hold, too
    taint_self: bool = True  # its own life also, if the messages were on their way twice
    taint_given: bool = True  # what is given while a transaction holds it cumulatively
    taint_in_same: bool = True  # nor may a transaction take twice what it has taken itself
    own_is_no_rival: bool = True  # a life has consumed what its own transactions took
    special: bool = True  # what comes late is covered only by what was given after it
    had: bool = True  # a client may repeat what it had before a transaction was aborted
    refuses: bool = True  # what is unclear; otherwise it is passed over silently
    roster: bool = True  # the lives are stored; otherwise all are new after an unload
    stored_taints: bool = True  # and so are the taints
    names: bool = True  # a client that connects again continues its life
    tells_processes: bool = True  # and a new process does not


class Ack(NamedTuple):
    """It covers `held` and, if cumulative, ends at `up_to`."""

    kind: str
    held: Messages
    up_to: int
    held_at: int  # on the clock


class Txn(NamedTuple):
    life: int  # that acknowledges in it
    acks: tuple[Ack, ...] = ()
    status: str = OPEN

    def held(self, kind: str = "") -> Messages:
        """By acknowledgements of this kind, or of any."""
        held = 0
        for ack in self.acks:
            if kind in ("", ack.kind):
                held |= ack.held
        return held

    @property
    def up_to(self) -> int:
        """The last message that it has acknowledged cumulatively; -1: none."""
        return max((ack.up_to for ack in self.acks), default=-1)


class Life(NamedTuple):
    """The life was given everything unacknowledged before these positions."""

    given: int = 0  # in the present pass
    before: int = 0  # in any earlier pass
    twice: int = 0  # in two earlier passes
    oldest: int = (
        0  # on the clock: when the first pass began of which the client may hold something
    )
    taints: frozenset[tuple[int, int]] = frozenset()  # transactions, each with its first message
    known: bool = True  # it began after the subscription was loaded

    @property
    def ever_given(self) -> int:
        return max(self.given, self.before)


class Special(NamedTuple):
    """A message that an aborted transaction had held individually from `held_at`."""

    held_at: int
    released_at: int
    place: int = -1  # how far the log had been read when it was given in the present pass
    seq: int = 0  # on the clock: when that was
    again: bool = False  # an earlier release of it was given


class Consumer(NamedTuple):
    life: int
    epoch: int = 0  # the highest one that came with a request for redelivery


class Broker(NamedTuple):
    consumers: tuple[Consumer, ...]
    lives: tuple[Life, ...]
    acked: Messages = 0
    txns: tuple[Txn, ...] = ()
    special: tuple[tuple[int, Special], ...] = ()
    late: tuple[int, ...] = ()  # messages to give before reading on
    active: int = -1  # the consumer that is given messages
    clock: int = 1  # of holds, releases, passes and deliveries

    def life_of(self, consumer: int) -> Life:
        return self.lives[self.consumers[consumer].life]

    @property
    def cumulative_holder(self) -> int:
        """The open transaction that holds messages cumulatively; -1 if there is none."""
        is_open = (i for i, txn in enumerate(self.txns) if txn.status is OPEN)
        return next((i for i in is_open if self.txns[i].up_to >= 0), -1)

    def held_individually(self, but: int = -1) -> Messages:
        """By open transactions other than `but`. No two hold the same message."""
        held = 0
        for i, txn in enumerate(self.txns):
            if i != but and txn.status is OPEN:
                held |= txn.held(INDIVIDUAL)
        return held


def each(messages: Messages) -> Iterator[int]:
    return (m for m in range(messages.bit_length()) if messages >> m & 1)


def replaced(items: tuple[T, ...], i: int, item: T) -> tuple[T, ...]:
    return (*items[:i], item, *items[i + 1 :])


def tainted(life: Life, txn: int, first: int) -> Life:
    others = {taint for taint in life.taints if taint[0] != txn}
    first = min([first, *(known for t, known in life.taints if t == txn)])
    return life._replace(taints=frozenset(others | {(txn, first)}))


# Passes


def new_pass(b: Broker, consumer: int) -> Broker:
    """`consumer` becomes or remains the active one, and is given everything again, in order."""
    lives = list(b.lives)
    for i in {b.consumers[c].life for c in (b.active, consumer) if c >= 0}:
        life = lives[i]
        twice = max(life.twice, min(life.before, life.given))
        lives[i] = life._replace(before=life.ever_given, twice=twice, given=0)
    if consumer >= 0:
        i = b.consumers[consumer].life
        if not lives[i].before and lives[i].known:
            lives[i] = lives[i]._replace(oldest=b.clock + 1)
    special = tuple(
        (m, x._replace(place=-1, seq=0, again=x.again or x.place >= 0)) for m, x in b.special
    )
    passing = b._replace(lives=tuple(lives), special=special, late=(), active=consumer)
    return passing._replace(clock=b.clock + 1)


def forget(b: Broker, consumer: int) -> Broker:
    """The client has dropped everything that it was given before."""
    return b._replace(lives=replaced(b.lives, b.consumers[consumer].life, Life()))


def new_life(b: Broker, consumer: int) -> Broker:
    successor = b.consumers[consumer]._replace(life=len(b.lives))
    consumers = replaced(b.consumers, consumer, successor)
    return b._replace(lives=(*b.lives, Life()), consumers=consumers)


def request_redelivery(b: Broker, consumer: int, epoch: int) -> Broker:
    """REDELIVER, or SUBSCRIBE with a higher epoch. The client drops deliveries of lower epochs."""
    told = b.consumers[consumer]._replace(epoch=epoch)
    return forget(b._replace(consumers=replaced(b.consumers, consumer, told)), consumer)


def unload(b: Broker, rules: AcknowledgementRules, messages: int) -> Broker:
    """What is stored remains: lives without what they were given, taints, special messages. That is
    a crash; an orderly unload also stores what they were given, and so is a disconnection.
    """
    lives = []
    for life in b.lives:
        has_begun = bool(life.before or life.given or life.taints)
        taints = life.taints if rules.stored_taints else frozenset()
        if has_begun and rules.roster:
            lives.append(Life(0, messages, messages, 0, taints, False))
        else:
            lives.append(Life(taints=taints))
    special = tuple((m, Special(0, 0)) for m, _ in b.special)
    txns = tuple(
        txn._replace(acks=tuple(ack._replace(held_at=0) for ack in txn.acks)) for txn in b.txns
    )
    return Broker(b.consumers, tuple(lives), b.acked, txns, special)


# Delivery


def deliver(b: Broker, rules: AcknowledgementRules, messages: int) -> tuple[Broker, int]:
    """Give the active consumer its next message. -1: there is none."""
    i = b.consumers[b.active].life
    life, withheld = b.lives[i], b.held_individually() | b.acked
    m = next((m for m in (*b.late, *range(life.given, messages)) if not withheld >> m & 1), -1)
    if m < 0:
        return b, m
    special = dict(b.special)
    if m in special and special[m].place < 0:
        special[m] = special[m]._replace(place=max(m, life.given), seq=b.clock)
    holder = b.cumulative_holder
    if holder >= 0 and b.txns[holder].held(CUMULATIVE) >> m & 1 and rules.taint_given:
        again = m < life.before or (m in special and life.oldest <= special[m].held_at)
        if again or b.txns[holder].life != i:
            life = tainted(life, holder, m)
    life = life._replace(given=max(life.given, m + 1))
    late = tuple(other for other in b.late if other != m)
    given = b._replace(lives=replaced(b.lives, i, life), late=late, clock=b.clock + 1)
    return given._replace(special=tuple(sorted(special.items()))), m


# Acknowledgements: the table of rules


def acknowledge(
    b: Broker, rules: AcknowledgementRules, consumer: int, t: int, kind: str, named: Messages
) -> tuple[Broker, bool]:
    """`named`: what an individual acknowledgement names; a cumulative one names the last of it.
    False: TransactionConflict.
    """
    up_to = -1 if kind == INDIVIDUAL else named.bit_length() - 1
    covered: Messages | None = named
    if kind == INDIVIDUAL and named & _taken(b):
        return b, False
    if kind == CUMULATIVE:
        covered = _covered_up_to(b, rules, b.consumers[consumer].life, t, up_to)
    if covered is None:
        return b, False
    owner, lives = b.consumers[consumer].life, list(b.lives)
    for i, life in enumerate(lives):
        if i == owner:
            first = _held_besides(b, rules, life, covered, up_to)
        else:
            bound = life.ever_given if rules.taint_others else 0
            first = next((m for m in each(covered) if m < bound), None)
        if first is not None:
            lives[i] = tainted(life, t, first)
    ack = Ack(kind, covered, up_to, b.clock)
    txns = replaced(b.txns, t, Txn(owner, (*b.txns[t].acks, ack)))
    return b._replace(txns=txns, lives=tuple(lives), clock=b.clock + 1), True


def _taken(b: Broker) -> Messages:
    holder = b.cumulative_holder
    cumulatively = b.txns[holder].held() if holder >= 0 else 0
    return b.acked | b.held_individually() | cumulatively


def _covered_up_to(
    b: Broker, rules: AcknowledgementRules, life: int, t: int, p: int
) -> Messages | None:
    """What a cumulative acknowledgement at p covers; None: it is refused."""
    is_held = b.cumulative_holder not in (-1, t)
    if is_held or p < _mark_delete(b) or p <= b.txns[t].up_to:
        return None
    own = t if not rules.taint_in_same else -1
    if any(txn != own and first <= p for txn, first in b.lives[life].taints):
        return None
    covered, special = 0, dict(b.special)
    held = b.held_individually() | b.txns[t].held()
    for m in range(p + 1):
        if (b.acked | held) >> m & 1:
            continue
        covers = _covers(rules, b.lives[life], special, m, p) if m in special else True
        if covers is None:
            return None
        covered |= covers << m
    return covered


def _mark_delete(b: Broker) -> int:
    """The first message that is not acknowledged."""
    return (~b.acked & (b.acked + 1)).bit_length() - 1


def _covers(
    rules: AcknowledgementRules, life: Life, special: dict[int, Special], m: int, p: int
) -> bool | None:
    """Whether an acknowledgement at p covers the special message m; None if that is unclear."""
    x, end = special[m], special.get(p)
    is_ordinary = m == p or life.oldest > x.released_at
    if is_ordinary or p >= life.ever_given or not rules.special:
        return True
    had = rules.had and (life.oldest <= x.held_at or x.again)
    if not had and x.place < 0:
        return False  # the client has never been given it
    if p < life.before:
        return None if rules.refuses else False
    if end is not None and life.oldest <= end.released_at:
        end_had = end.again or end.place < 0 or life.oldest <= end.held_at
        return True if not (had or end_had) and x.seq < end.seq else None
    return True if 0 <= x.place <= p else None


def _held_besides(
    b: Broker, rules: AcknowledgementRules, life: Life, covered: Messages, up_to: int
) -> int | None:
    """The first of these messages of which the acknowledging client may hold another delivery."""
    if not rules.own_is_no_rival:
        return next(each(covered), None)
    if not rules.taint_self:
        return None
    special = dict(b.special)
    ends_special = up_to in special and life.oldest <= special[up_to].released_at
    if up_to >= life.before and not ends_special:
        return None  # it is past everything that it was given before
    for m in each(covered):
        if m < max(life.twice, min(life.before, life.given)):
            return m
        x = special.get(m)
        if x is not None and (x.place >= 0 or x.again) and life.oldest <= x.held_at:
            return m
    return None


# Ends of transactions


def commit(b: Broker, t: int) -> Broker:
    """The taints of the transaction stay until the lives that have them forget."""
    acked = b.acked | b.txns[t].held()
    special = tuple((m, x) for m, x in b.special if not acked >> m & 1)
    late = tuple(m for m in b.late if not acked >> m & 1)
    txns = replaced(b.txns, t, b.txns[t]._replace(status=COMMITTED))
    return b._replace(txns=txns, acked=acked, special=special, late=late)


def abort(b: Broker, t: int) -> Broker:
    """What was held individually is given late; nothing that was held cumulatively is."""
    txn = b.txns[t]
    lives = tuple(
        life._replace(taints=frozenset(taint for taint in life.taints if taint[0] != t))
        for life in b.lives
    )
    txns = replaced(b.txns, t, txn._replace(status=ABORTED))
    b = b._replace(txns=txns, lives=lives, clock=b.clock + 1)
    special, late = dict(b.special), list(b.late)
    read_to = b.life_of(b.active).given if b.active >= 0 else 0
    individual = [(m, ack.held_at) for ack in txn.acks if ack.up_to < 0 for m in each(ack.held)]
    for m, held_at in sorted(individual):
        again = m in special and (special[m].again or special[m].place >= 0)
        special[m] = Special(held_at, b.clock, again=again)
        if m < read_to:
            late = [other for other in late if other != m] + [m]
    return b._replace(special=tuple(sorted(special.items())), late=tuple(late))


def with_small_clock(b: Broker) -> Broker:
    """The same: only the order of the values on the clock matters, and only while they matter."""
    open_acks = [ack for txn in b.txns if txn.status is OPEN for ack in txn.acks]
    ended_acks = [ack for txn in b.txns if txn.status is not OPEN for ack in txn.acks]
    values = {b.clock, 0}
    values.update(life.oldest for life in b.lives)
    values.update(ack.held_at for ack in open_acks)
    for _, x in b.special:
        values |= {x.held_at, x.released_at, x.seq}
    if not ended_acks and len(values) == b.clock + 1:
        return b  # each value up to the clock is in use
    rank = {value: i for i, value in enumerate(sorted(values))}
    lives = tuple(life._replace(oldest=rank[life.oldest]) for life in b.lives)
    txns = tuple(_with_ranks(txn, rank) if txn.status is OPEN else _ended(txn) for txn in b.txns)
    special = tuple(
        (m, Special(rank[x.held_at], rank[x.released_at], x.place, rank[x.seq], x.again))
        for m, x in b.special
    )
    return b._replace(lives=lives, txns=txns, special=special, clock=rank[b.clock])


def _with_ranks(txn: Txn, rank: dict[int, int]) -> Txn:
    return txn._replace(acks=tuple(ack._replace(held_at=rank[ack.held_at]) for ack in txn.acks))


def _ended(txn: Txn) -> Txn:
    """What it held is in no rule any more."""
    return Txn(0, (), txn.status)
