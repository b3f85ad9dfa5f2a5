"""A newer session of a transactional id fences the older one on all brokers before it is granted.

About: the broker that grants the newer session, and another one. Both may have producers of the
older session, and serve the coordinator of its transaction, which moves between them. The epoch in
the metadata says which session is the newest; a broker learns of it later. The other broker may be
cut off from the metadata: the cluster counts it among the live brokers until its lease expires, and
it may run on even then.

Promised: once the newer session is granted, no message of the older one is written, none of its
transactions is committed, and none is live; after the last fault the session is granted.

Assumed: who opens a log first makes all appends of earlier writers fail. A broker that is cut off
knows this before its lease expires, and by then what it was writing is written, or has failed.
Left out: a crash of the granting broker (the next claim repeats everything), two claims at once,
binding a transaction to a session by its first message, expiry of ids, plain transactions.
"""

from typing import ClassVar, Final, NamedTuple

from spec.checker import ENDS, Broken, Model, Off, Rules, Spec, StandsFor, Steps

OPEN: Final = "open"
COMMIT: Final = "commit"
ABORT: Final = "abort"

WRITTEN: Final = "a message of the older session is written after the newer one was granted"
COMMITTED: Final = "a transaction of the older session is committed after the newer one was granted"
LIVE: Final = "a transaction of the older session is live after the newer one was granted"


class FencingRules(Rules):
    records_first: bool = True  # brokers are asked when the epoch is in the metadata
    lists_after: bool = True  # those that are alive after that
    asks_all: bool = True
    asks_again: bool = True  # a broker may have acquired the coordinator since it answered
    closes_producers: bool = True
    awaits_writing: bool = True  # messages that were accepted before
    aborts_open: bool = True  # transactions of the older session
    awaits_ending: bool = True  # those that are decided
    names_coordinators: bool = True  # a coordinator counts when its broker has answered
    joins_informed: bool = True  # a broker knows the metadata before it serves anything
    refuses_new: bool = True  # a broker that knows the epoch admits nothing of older sessions
    lets_go: bool = True  # a broker that may be left out gives up its sessions


class Broker(NamedTuple):
    runs: bool = True
    is_listed: bool = True  # its lease has not expired
    is_certain: bool = True  # that it is listed
    knows: bool = False  # that there is a newer session
    produces: bool = False  # the older session has a producer here
    writes: bool = False  # a message of it is queued in the storage
    fences: bool = False  # it was asked to
    answered: bool = False
    serves: bool = False  # the coordinator
    sees: str = ""  # the transaction of the older session, in the coordinator's memory
    queue: str = ""  # what the coordinator appends


class State(NamedTuple):
    moves: int
    cuts: int
    rejoins: int
    brokers: tuple[Broker, Broker]
    assigned: int = 1  # the broker that is to serve the coordinator
    writer: int = 1  # the broker that opened the coordinator's log last
    txn: str = ""  # durable
    ended: bool = False  # its participants have followed
    claimed: bool = False
    was_listed: bool = True  # the other broker, when the session was claimed
    recorded: bool = False  # the newer epoch is in the metadata
    named: bool = False  # the coordinator has no transactions of the older session
    granted: bool = False


class Left(NamedTuple):
    moves: int = 0
    cuts: int = 0
    rejoins: int = 1


GRANTING, OTHER = 0, 1


class Fencing(Model[State]):
    STANDS_FOR: ClassVar[StandsFor]
    FAULTS = frozenset({"move", "cut_off", "expire"})
    HAS_ENDS = True

    def __init__(self, left: Left, rules: FencingRules) -> None:
        self._left = left
        self._rules = rules

    def start(self) -> State:
        brokers = Broker(), Broker(produces=True, serves=True)
        return State(*self._left, brokers)

    def wrong(self, s: State) -> Broken | None:
        is_live = s.txn in (OPEN, COMMIT, ABORT) and not s.ended
        return Broken(LIVE) if s.granted and is_live else None

    def is_over(self, s: State) -> bool:
        return s.granted

    # The newer session

    def claim(self, s: State) -> Steps[State]:
        if not s.claimed:
            claimed = s._replace(claimed=True, was_listed=s.brokers[OTHER].is_listed)
            yield "a newer session claims the id", claimed

    def record(self, s: State) -> Steps[State]:
        if s.claimed and not s.recorded:
            recorded = _put(s._replace(recorded=True), GRANTING, knows=True)
            yield "its epoch is recorded", recorded

    def learn(self, s: State) -> Steps[State]:
        for i, broker in enumerate(s.brokers):
            if s.recorded and broker.runs and broker.is_certain and not broker.knows:
                yield f"{_name(i)} learns of the epoch", _put(s, i, knows=True)

    def fence(self, s: State) -> Steps[State]:
        """The broker is asked, reads the metadata, and closes the older session's producers."""
        if not s.claimed or not (s.recorded or not self._rules.records_first):
            return
        for i, broker in enumerate(s.brokers):
            is_asked = i == GRANTING or (broker.is_listed and broker.runs and broker.is_certain)
            if is_asked and not broker.fences and not broker.answered:
                produces = broker.produces and not self._rules.closes_producers
                line = f"{_name(i)} fences older sessions"
                yield line, _put(s, i, fences=True, produces=produces, knows=s.recorded)

    def end_older(self, s: State) -> Steps[State]:
        for i, broker in enumerate(s.brokers):
            is_open = broker.fences and broker.serves and broker.sees == OPEN
            if is_open and not broker.queue and self._rules.aborts_open:
                line = f"{_name(i)} aborts the older session's transaction"
                yield line, _put(s, i, sees=ABORT, queue=ABORT)

    def answer(self, s: State) -> Steps[State]:
        for i, broker in enumerate(s.brokers):
            if not broker.fences or (broker.writes and self._rules.awaits_writing):
                continue
            is_open = broker.sees == OPEN and self._rules.aborts_open
            is_ending = broker.sees in (COMMIT, ABORT) and not s.ended
            is_ending = is_ending and self._rules.awaits_ending
            if not (broker.serves and (is_open or is_ending or broker.queue)):
                answered = _put(s, i, fences=False, answered=True)
                answered = answered._replace(named=s.named or broker.serves)
                yield f"nothing is left on {_name(i)}", answered

    def ask_again(self, s: State) -> Steps[State]:
        """All have answered, and none has named the coordinator."""
        if not s.named and self._rules.asks_again and not s.granted:
            for i, broker in enumerate(s.brokers):
                if broker.answered and broker.serves:
                    yield f"{_name(i)} is asked again", _put(s, i, answered=False)

    def grant(self, s: State) -> Steps[State]:
        other = s.brokers[OTHER]
        is_listed = other.is_listed if self._rules.lists_after else s.was_listed
        has_answered = other.answered or not is_listed or not self._rules.asks_all
        is_named = s.named or not self._rules.names_coordinators
        is_ready = s.recorded and s.brokers[GRANTING].answered and has_answered and is_named
        if is_ready and not s.granted:
            yield "the newer session is granted", s._replace(granted=True)

    # The older session

    def publish(self, s: State) -> Steps[State]:
        for i, broker in enumerate(s.brokers):
            may_publish = broker.is_certain or not self._rules.lets_go
            if broker.runs and broker.produces and may_publish and not broker.writes:
                yield f"the older session publishes on {_name(i)}", _put(s, i, writes=True)

    def write_message(self, s: State) -> Steps[State]:
        for i, broker in enumerate(s.brokers):
            if broker.writes:
                line = f"the message is written on {_name(i)}"
                yield line, Broken(WRITTEN) if s.granted else _put(s, i, writes=False)

    def rejoin(self, s: State) -> Steps[State]:
        """It creates a producer. The broker reads the metadata first, if it is not known there."""
        for i, broker in enumerate(s.brokers):
            is_possible = s.rejoins and broker.runs and broker.is_certain and not broker.produces
            is_fenced = broker.knows and self._rules.refuses_new
            if is_possible and not is_fenced:
                rejoined = _put(s._replace(rejoins=s.rejoins - 1), i, produces=True)
                yield f"the older session has a producer on {_name(i)}", rejoined

    def begin(self, s: State) -> Steps[State]:
        for i, broker in enumerate(s.brokers):
            is_possible = broker.runs and broker.serves and not broker.sees and not broker.queue
            is_fenced = broker.knows and self._rules.refuses_new
            if is_possible and broker.is_certain and not is_fenced:
                begun = _put(s, i, sees=OPEN, queue=OPEN)
                yield f"the older session begins a transaction on {_name(i)}", begun

    def commit(self, s: State) -> Steps[State]:
        """Also where it is known to be fenced: to refuse it there is a courtesy."""
        for i, broker in enumerate(s.brokers):
            if broker.runs and broker.serves and broker.sees == OPEN and not broker.queue:
                line = f"the older session commits on {_name(i)}"
                yield line, _put(s, i, sees=COMMIT, queue=COMMIT)

    # The coordinator

    def append(self, s: State) -> Steps[State]:
        for i, broker in enumerate(s.brokers):
            if not broker.queue:
                continue
            if s.writer != i:
                line = f"{_name(i)} cannot append: it closes the coordinator"
                yield line, _put(s, i, serves=False, sees="", queue="")
                continue
            line = f"durable on {_name(i)}: {broker.queue}"
            if s.granted and broker.queue == COMMIT:
                yield line, Broken(COMMITTED)
            else:
                yield line, _put(s._replace(txn=broker.queue), i, queue="")

    def follow(self, s: State) -> Steps[State]:
        is_told = any(broker.serves and broker.sees == s.txn for broker in s.brokers)
        if s.txn in (COMMIT, ABORT) and not s.ended and is_told:
            yield "the participants have followed", s._replace(ended=True)

    def take(self, s: State) -> Steps[State]:
        i = s.assigned
        broker = s.brokers[i]
        if broker.runs and broker.is_certain and not broker.serves:
            taken = s._replace(writer=i)
            line = f"{_name(i)} opens the coordinator"
            yield line, _put(taken, i, serves=True, sees=s.txn, queue="")

    def look_after(self, s: State) -> Steps[State]:
        """The lease of the coordinator's broker has expired."""
        if not s.brokers[s.assigned].is_listed:
            yield "the coordinator is assigned anew", s._replace(assigned=1 - s.assigned)

    def come_back(self, s: State) -> Steps[State]:
        broker = s.brokers[OTHER]
        if broker.is_listed and not broker.is_certain:
            yield "the other broker is connected again", _put(s, OTHER, is_certain=True)
        elif not broker.is_listed:
            knows = s.recorded and self._rules.joins_informed
            joined = s.brokers[GRANTING], Broker(knows=knows)
            yield "the other broker stops, and joins anew", s._replace(brokers=joined)

    # Faults

    def move(self, s: State) -> Steps[State]:
        if s.moves:
            moved = s._replace(moves=s.moves - 1, assigned=1 - s.assigned)
            released = _put(moved, s.assigned, serves=False, sees="", queue="")
            yield f"{_name(s.assigned)} releases the coordinator", released

    def cut_off(self, s: State) -> Steps[State]:
        if s.cuts and s.brokers[OTHER].is_certain:
            cut = _put(s._replace(cuts=s.cuts - 1), OTHER, is_certain=False, fences=False)
            if self._rules.lets_go:
                cut = _put(cut, OTHER, produces=False)
            yield "the other broker is cut off from the metadata", cut

    def expire(self, s: State) -> Steps[State]:
        broker = s.brokers[OTHER]
        if broker.is_listed and not broker.is_certain and not broker.writes:
            yield "its lease expires", _put(s, OTHER, is_listed=False)


def _name(i: int) -> str:
    return ("the granting broker", "the other broker")[i]


def _put(s: State, i: int, **changes: object) -> State:
    broker = s.brokers[i]._replace(**changes)  # type: ignore[arg-type]
    return s._replace(brokers=(broker, s.brokers[1]) if i == 0 else (s.brokers[0], broker))


_SESSIONS: Final = "pybroker.server.transactions.transactional_sessions.TransactionalSessions"
_SHARED: Final = "pybroker.cluster.transactions"
_FENCING: Final = f"{_SHARED}.fencing.SharedFencing"
_IDS: Final = "pybroker.transaction.coordinator.sessions.transactional_ids.TransactionalIds"
_COORDINATOR: Final = "pybroker.transaction.coordinator.coordinator.TransactionCoordinator"

Fencing.STANDS_FOR = {
    "claim": (f"{_SESSIONS}.join", f"{_SESSIONS}._newer"),
    "record": (f"{_IDS}.begin",),
    "learn": (f"{_IDS}._changed",),
    "fence": (f"{_FENCING}.fence", f"{_SESSIONS}.fence", f"{_SESSIONS}._fence_here"),
    "end_older": ("pybroker.transaction.coordinator.sessions.fencing.end_older",),
    "answer": (
        f"{_SESSIONS}._fence_here",
        "pybroker.server.transactions.transactional_session.Writing.nothing_before",
    ),
    "ask_again": (f"{_FENCING}._missing",),
    "grant": (f"{_SESSIONS}._grant",),
    "publish": ("pybroker.server.publishing.sends.Sends.send", f"{_SESSIONS}.may_publish"),
    "write_message": ("pybroker.server.transactions.transactional_session.Writing.ended",),
    "rejoin": (f"{_SESSIONS}.join", f"{_SESSIONS}._find", f"{_SESSIONS}._catch_up"),
    "begin": (
        f"{_COORDINATOR}.new_transaction",
        "pybroker.server.transactions.fencing.session_of_new",
    ),
    "commit": (f"{_COORDINATOR}.end", "pybroker.server.transactions.fencing.require_current"),
    "append": ("pybroker.transaction.coordinator.log.transaction_log.TransactionLog.append",),
    "follow": (f"{_COORDINATOR}._end_followed",),
    "take": ("pybroker.transaction.coordinator.coordinators.Coordinators.take",),
    "look_after": (f"{_SHARED}.coordinators.SharedCoordinators._look_after",),
    "come_back": ("pybroker.cluster.cluster.Cluster.join",),
    "move": ("pybroker.transaction.coordinator.coordinators.Coordinators.release",),
    "cut_off": (f"{_FENCING}._release_all", f"{_SESSIONS}.release_all"),
    "expire": (),
}

SCENARIOS: Final = {
    "moves": Left(moves=2),
    "cut off": Left(cuts=1),
    "cut off and moves": Left(moves=1, cuts=1),
}


def _build(scenario: str, rules: Rules) -> Fencing:
    assert isinstance(rules, FencingRules)
    return Fencing(SCENARIOS[scenario], rules)


SPEC: Final = Spec(
    "fencing",
    FencingRules,
    _build,
    scenarios={"moves": 2_800, "cut off": 5_500, "cut off and moves": 16_000},
    switched_off={
        "records_first": Off("moves", WRITTEN),
        "lists_after": Off("cut off", WRITTEN),
        "asks_all": Off("moves", WRITTEN),
        "asks_again": Off("moves", ENDS),
        "closes_producers": Off("moves", WRITTEN),
        "awaits_writing": Off("moves", WRITTEN),
        "aborts_open": Off("moves", LIVE),
        "awaits_ending": Off("moves", LIVE),
        "names_coordinators": Off("cut off", LIVE),
        "joins_informed": Off("cut off", WRITTEN),
        "refuses_new": Off("moves", WRITTEN),
        "lets_go": Off("cut off", WRITTEN),
    },
)
