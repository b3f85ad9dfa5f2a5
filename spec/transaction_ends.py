"""How a transaction ends: the decision of its coordinator, and the participants that follow it.

About: one transaction with two participants (a topic's buffer, or a subscription's pending acks).
One is on the coordinator's broker and shares its storage, which makes queued records durable in
order; it is told in the same turn as the decision is queued. The other is on another broker and is
told over the network; it joins late, by a message that may be on its way while the transaction
ends. The owner commits, an administrator aborts, each repeats what was not answered, and the
timeout runs.

Promised: every participant follows the decision, and none is ahead of it; what anybody was told is
what takes effect, and does not change; "ok" means that all participants have ended it; an END that
is repeated while outcomes are retained is recognised; after the last fault all of it ends.

Assumed: what is durable stays; a broken connection is noticed; a restarted broker comes back.
Left out: several transactions of one topic and their order, log snapshots, deleted topics, other
principals, timeouts of requests, and more than one message.
"""

from collections.abc import Iterator
from typing import ClassVar, Final, NamedTuple

from spec.checker import ENDS, Broken, Model, Off, Rules, Spec, StandsFor, Steps

OPEN: Final = "open"
COMMIT: Final = "commit"
ABORT: Final = "abort"
HELD: Final = "held"  # by a participant: the transaction has messages or acknowledgements there
NOTHING: Final = ""

SPLIT: Final = "a participant takes another outcome than was decided"
CHANGED: Final = "a decision is changed"
TOLD: Final = "somebody was told an outcome that is not the decision"
EARLY: Final = "an end is answered with ok before all participants have ended"
UNKNOWN: Final = "a repeated END is not recognised although outcomes are retained"


class EndRules(Rules):
    decides_once: bool = True  # an END with the other action is refused
    stops_timeout: bool = True  # a decided transaction does not expire
    decision_first: bool = True  # in the storage, a participant's end follows the decision
    durable_first: bool = True  # other brokers are told when the decision is durable
    answers_durable: bool = True  # a refusal, too, waits until the decision is durable
    answers_last: bool = True  # ok is answered when all participants have ended
    keeps_until_ended: bool = True  # the coordinator closes a transaction after them
    repeats: bool = True  # a participant that failed is told again
    resumes: bool = True  # a reopened coordinator continues what was decided
    retains: bool = True  # outcomes are known for a time
    joins_durably: bool = True  # nothing is stored at a participant that may be forgotten
    requires_open: bool = True  # nothing is stored in a transaction that is not open
    told_counts: bool = True  # an END replaces the answer "open" that a participant had
    waits_for_answer: bool = True  # "not known yet" is not "never existed"


class Log(NamedTuple):
    """What of the coordinator is durable."""

    joined: bool = False  # the participant on the other broker
    decided: str = ""
    closed: bool = False


class Coordinator(NamedTuple):
    """In memory: ahead of the log by what is queued."""

    status: str = OPEN
    joined: bool = False
    durable: bool = False  # the decision
    ended_here: bool = False  # the participant has followed
    ended_there: bool = False
    asked_there: bool = False  # it was told, and has not answered yet
    told_before: bool = False  # it was told at least once
    over: bool = False  # all have followed: the transaction is closed
    resumed: bool = True


class There(NamedTuple):
    """The participant on the other broker, and that broker's memory."""

    state: str = NOTHING
    known: str = ""  # what it knows of the transaction: OPEN, or the end that it was told
    writing: str = ""  # the end that is queued in its storage


class Network(NamedTuple):
    ends: frozenset[str] = frozenset()  # ENDs on their way to the other broker
    reply: bool = False  # its answer
    message: str = ""  # the owner's message to it


class Left(NamedTuple):
    """Faults, and repetitions of ENDs that were answered."""

    crash: int = 0
    crash_there: int = 0
    disconnect: int = 0
    late: int = 0


class State(NamedTuple):
    left: Left
    log: Log = Log()
    queue: tuple[tuple[str, str], ...] = ()  # of the storage of the coordinator's broker
    coordinator: Coordinator | None = Coordinator()
    here: str = HELD
    there: There = There()
    network: Network = Network()
    clients: tuple[str, str] = ("", "")  # the owner's END, the administrator's
    told: frozenset[str] = frozenset()  # outcomes that anybody was told
    done: bool = False  # somebody was answered ok
    expired: bool = False  # the outcome has been retained for its time


WAITS, LOST, OK, REFUSED, NOT_FOUND = "waits", "lost", "ok", "refused", "not found"
SENT, STORED, REJECTED = "sent", "stored", "rejected"
CLIENTS: Final = (("the owner", COMMIT), ("the administrator", ABORT))


class TransactionEnds(Model[State]):
    STANDS_FOR: ClassVar[StandsFor]
    FAULTS = frozenset({"crash", "crash_there", "disconnect"})
    HAS_ENDS = True

    def __init__(self, left: Left, rules: EndRules) -> None:
        self._left = left
        self._rules = rules

    def start(self) -> State:
        return State(self._left)

    def wrong(self, s: State) -> Broken | None:
        ended = {each for each in (s.here, s.there.state) if each in (COMMIT, ABORT)}
        if not ended <= {s.log.decided}:
            return Broken(SPLIT)
        if not s.told <= {s.log.decided}:
            return Broken(TOLD)
        if s.done and HELD in (s.here, s.there.state):
            return Broken(EARLY)
        return None

    def is_over(self, s: State) -> bool:
        is_known = not {WAITS, LOST} & set(s.clients) and s.network.message != SENT
        return is_known and s.log.closed and HELD not in (s.here, s.there.state)

    # The coordinator

    def request_end(self, s: State) -> Steps[State]:
        """A client sends END, for the first time or again, and the coordinator looks at it."""
        if s.coordinator is None:
            return
        for i, (who, action) in enumerate(CLIENTS):
            asks, after = s.clients[i], s
            if asks in (OK, REFUSED) and s.left.late:
                after = s._replace(left=s.left._replace(late=s.left.late - 1))
            elif asks not in ("", LOST):
                continue
            after = after._replace(clients=_with(after.clients, i, WAITS))
            status, line = s.coordinator.status, f"{who} requests to {action}"
            changes_mind = not self._rules.decides_once and not s.coordinator.over
            if status == OPEN or (changes_mind and status != action):
                yield from self._decide(after, action, line)
            else:
                yield line, after

    def time_out(self, s: State) -> Steps[State]:
        if s.coordinator is None or s.coordinator.over:
            return
        if s.coordinator.status == OPEN or not self._rules.stops_timeout:
            yield from self._decide(s, ABORT, "the timeout passes")

    def _decide(self, s: State, action: str, line: str) -> Iterator[tuple[str, State | Broken]]:
        assert s.coordinator is not None
        decided = s._replace(coordinator=s.coordinator._replace(status=action, durable=False))
        queue = (*s.queue, ("decided", action))
        yield f"{line}: decided", decided._replace(queue=queue)
        if s.here == HELD and ("ended here", action) not in s.queue:
            queue = (*queue, ("ended here", action))
            if not self._rules.decision_first:
                queue = (*s.queue, ("ended here", action), ("decided", action))
            yield f"{line}: decided, and told here", decided._replace(queue=queue)

    def write(self, s: State) -> Steps[State]:
        """The first queued record becomes durable."""
        if not s.queue:
            return
        (kind, action), *left = s.queue
        c, after = s.coordinator, s._replace(queue=tuple(left))
        assert c is not None, "a crash loses the queue"
        line = f"durable: {kind} {action}".rstrip()
        if kind == "joined":
            yield line, after._replace(log=s.log._replace(joined=True))
        elif kind == "decided" and s.log.decided not in ("", action):
            yield line, Broken(CHANGED)
        elif kind == "decided":
            is_latest = c._replace(durable=c.status == action)
            log = s.log._replace(decided=action)
            yield line, after._replace(log=log, coordinator=is_latest)
        elif kind == "ended here":
            followed = c._replace(ended_here=True)
            yield line, after._replace(here=action, coordinator=followed)
        else:
            yield line, after._replace(log=s.log._replace(closed=True))

    def tell_here(self, s: State) -> Steps[State]:
        c = self._ending(s)
        if c is None or c.ended_here or not c.durable:
            return
        if s.here != HELD:
            followed = c._replace(ended_here=True)
            yield "it had ended here", s._replace(coordinator=followed)
        elif ("ended here", c.status) not in s.queue:
            queue = (*s.queue, ("ended here", c.status))
            yield "the participant here is told", s._replace(queue=queue)

    def tell_there(self, s: State) -> Steps[State]:
        c = self._ending(s)
        if c is None or not c.joined or c.ended_there or c.asked_there:
            return
        is_time = c.durable or not self._rules.durable_first
        if is_time and (self._rules.repeats or not c.told_before):
            ends = s.network.ends | {c.status}
            told = c._replace(asked_there=True, told_before=True)
            line = f"{c.status} is sent to the other broker"
            yield line, s._replace(coordinator=told, network=s.network._replace(ends=ends))

    def _ending(self, s: State) -> Coordinator | None:
        c = s.coordinator
        return None if c is None or c.status == OPEN or c.over or not c.resumed else c

    def hear_from_there(self, s: State) -> Steps[State]:
        if s.coordinator is not None and s.network.reply:
            c = s.coordinator._replace(asked_there=False, ended_there=True)
            network = s.network._replace(reply=False)
            yield "the other broker's answer arrives", s._replace(coordinator=c, network=network)

    def close(self, s: State) -> Steps[State]:
        c = self._ending(s)
        if c is None or not c.durable:
            return
        if (c.ended_here and (c.ended_there or not c.joined)) or not self._rules.keeps_until_ended:
            queue = (*s.queue, ("closed", ""))
            closed = s._replace(queue=queue, coordinator=c._replace(over=True))
            yield "the transaction is closed", closed

    def answer(self, s: State) -> Steps[State]:
        c = s.coordinator
        if c is None:
            return
        is_known = not c.over or (self._rules.retains and not s.expired)
        for i, (who, action) in enumerate(CLIENTS):
            if s.clients[i] != WAITS:
                continue
            if not is_known:
                line, after = f"{who} is told that it is not found", _answered(s, i, NOT_FOUND)
                yield line, after if s.expired else Broken(UNKNOWN)
            elif c.status == action and (c.over or (c.durable and not self._rules.answers_last)):
                done = _answered(s, i, OK)._replace(done=True, told=s.told | {action})
                yield f"{who} is told ok", done
            elif c.status != action and (c.durable or c.over or not self._rules.answers_durable):
                refused = _answered(s, i, REFUSED)._replace(told=s.told | {c.status})
                yield f"{who} is told that it {c.status}s", refused

    def reopen(self, s: State) -> Steps[State]:
        if s.coordinator is None:
            decided = s.log.decided
            c = Coordinator(
                status=decided or OPEN,
                joined=s.log.joined,
                durable=bool(decided),
                over=s.log.closed,
                resumed=not decided or self._rules.resumes,
            )
            yield "the coordinator reads its log", s._replace(coordinator=c)

    def expire(self, s: State) -> Steps[State]:
        if s.log.closed and not s.expired:
            yield "its outcome has been retained long enough", s._replace(expired=True)

    # The participant on the other broker

    def join(self, s: State) -> Steps[State]:
        """The owner adds it to the transaction."""
        c = s.coordinator
        if c is not None and c.status == OPEN and not c.joined:
            joined = s._replace(coordinator=c._replace(joined=True))
            yield "the owner adds a participant", joined._replace(queue=(*s.queue, ("joined", "")))

    def send(self, s: State) -> Steps[State]:
        """The owner has been answered that it was added, and sends a message there."""
        if s.coordinator is None or not s.coordinator.joined or s.network.message:
            return
        if s.log.joined or not self._rules.joins_durably:
            network = s.network._replace(message=SENT)
            yield "the owner sends its message", s._replace(network=network)

    def ask(self, s: State) -> Steps[State]:
        """Is it open? What the other broker hears may be outdated when the message is stored."""
        if s.network.message == SENT and not s.there.known and s.coordinator is not None:
            status = s.coordinator.status
            if status == OPEN or not self._rules.requires_open:
                known = s.there._replace(known=OPEN)
                yield "the other broker hears that it is open", s._replace(there=known)
            else:
                network = s.network._replace(message=REJECTED)
                yield "the message is refused", s._replace(network=network)

    def store(self, s: State) -> Steps[State]:
        if s.network.message != SENT or not s.there.known:
            return
        is_open = s.there.known == OPEN
        network = s.network._replace(message=STORED if is_open else REJECTED)
        if is_open:
            there = s.there._replace(state=HELD)
            yield "the message is stored", s._replace(network=network, there=there)
        else:
            yield "the message is refused", s._replace(network=network)

    def end_there(self, s: State) -> Steps[State]:
        for action in sorted(s.network.ends):
            there, network = s.there, s.network._replace(ends=s.network.ends - {action})
            if self._rules.told_counts:
                there = there._replace(known=action)
            if there.state == HELD:
                there = there._replace(writing=there.writing or action)
            else:
                network = network._replace(reply=True)
            line = f"{action} arrives at the other broker"
            yield line, s._replace(there=there, network=network)

    def write_there(self, s: State) -> Steps[State]:
        if s.there.writing:
            there = s.there._replace(state=s.there.writing, writing="")
            network = s.network._replace(reply=True)
            ended = s._replace(there=there, network=network)
            yield f"durable there: {s.there.writing}", ended

    def settle(self, s: State) -> Steps[State]:
        """The other broker holds something of the transaction, and asks what became of it."""
        if s.there.state != HELD or s.there.writing:
            return
        c, action = s.coordinator, NOTHING
        if c is None:
            action = NOTHING if self._rules.waits_for_answer else ABORT
        elif c.over:
            action = ABORT if s.expired else c.status
        line = f"the other broker asks, and will {action or 'wait'}"
        yield line, s._replace(there=s.there._replace(writing=action))

    # Faults

    def crash(self, s: State) -> Steps[State]:
        """The coordinator's broker restarts, or an append has failed. ENDs may still arrive."""
        if s.left.crash and s.coordinator is not None:
            left = s.left._replace(crash=s.left.crash - 1)
            lost = s._replace(left=left, queue=(), coordinator=None)
            first, second = (LOST if each == WAITS else each for each in s.clients)
            network = s.network._replace(reply=False)
            crashed = lost._replace(clients=(first, second), network=network)
            yield "the coordinator's broker crashes", crashed

    def crash_there(self, s: State) -> Steps[State]:
        if s.left.crash_there:
            left = s.left._replace(crash_there=s.left.crash_there - 1)
            network = s.network._replace(ends=frozenset(), reply=False)
            there = There(s.there.state)
            crashed = s._replace(left=left, there=there, network=network)
            yield "the other broker crashes", _noticed(crashed)

    def disconnect(self, s: State) -> Steps[State]:
        """Between the brokers; what was sent may have arrived or not."""
        if s.left.disconnect:
            left = s.left._replace(disconnect=s.left.disconnect - 1)
            broken = _noticed(s._replace(left=left, network=s.network._replace(reply=False)))
            yield "the brokers' connection breaks", broken
            if s.network.ends:
                network = broken.network._replace(ends=frozenset())
                yield "the same, and an END is lost", broken._replace(network=network)


def _with(clients: tuple[str, str], i: int, state: str) -> tuple[str, str]:
    return (state, clients[1]) if i == 0 else (clients[0], state)


def _answered(s: State, i: int, answer: str) -> State:
    return s._replace(clients=_with(s.clients, i, answer))


def _noticed(s: State) -> State:
    """The coordinator's request to the other broker has failed."""
    if s.coordinator is None:
        return s
    return s._replace(coordinator=s.coordinator._replace(asked_there=False))


_COORDINATOR: Final = "pybroker.transaction.coordinator.coordinator.TransactionCoordinator"
_STORE: Final = "pybroker.transaction.coordinator.metadata_store.TransactionMetadataStore"
_PARTICIPANTS: Final = "pybroker.transaction.coordinator.ends.participants"
_ENDINGS: Final = "pybroker.transaction.coordinator.ends.endings.Endings"

TransactionEnds.STANDS_FOR = {
    "request_end": (f"{_COORDINATOR}.end", f"{_COORDINATOR}.abort", f"{_STORE}.decide_end"),
    "time_out": (f"{_COORDINATOR}._expired",),
    "write": (f"{_COORDINATOR}._end_decided", f"{_ENDINGS}.decided"),
    "tell_here": (
        f"{_PARTICIPANTS}.ParticipantEnds.begin_everywhere",
        f"{_COORDINATOR}._end_in_order",
    ),
    "tell_there": (
        f"{_PARTICIPANTS}._EndEverywhere._tell_next",
        f"{_PARTICIPANTS}._EndEverywhere._repeat",
    ),
    "hear_from_there": (f"{_PARTICIPANTS}._EndEverywhere._answered",),
    "close": (f"{_COORDINATOR}._end_followed", f"{_STORE}.decide_ended"),
    "answer": (f"{_ENDINGS}.over", f"{_ENDINGS}.refused"),
    "reopen": (f"{_COORDINATOR}.open", f"{_COORDINATOR}.resume"),
    "expire": ("pybroker.transaction.coordinator.outcome_window.OutcomeWindow.passed",),
    "join": (f"{_COORDINATOR}.add_partitions", f"{_COORDINATOR}.add_subscriptions"),
    "send": (),
    "ask": ("pybroker.transaction.coordinator.remote_coordinators.RemoteCoordinators.join",),
    "store": ("pybroker.transaction.txn_status.require_open",),
    "end_there": (
        "pybroker.transaction.coordinator.remote_coordinators.RemoteCoordinators.told",
        "pybroker.broker.persistent.topic.Topic.end_transaction",
        "pybroker.broker.subscriptions.subscription.Subscription.end_transaction",
    ),
    "write_there": ("pybroker.transaction.pending_acks.pending_ack.PendingAcks._end_logged",),
    "settle": ("pybroker.transaction.txn_status.action_to_settle",),
    "crash": (f"{_COORDINATOR}._fail",),
    "crash_there": (),
    "disconnect": (),
}

SCENARIOS: Final = {
    "crashes": Left(crash=2, crash_there=1),
    "broken connections": Left(crash=1, disconnect=2),
    "late ends": Left(crash=1, late=2),
}


def _build(scenario: str, rules: Rules) -> TransactionEnds:
    assert isinstance(rules, EndRules)
    return TransactionEnds(SCENARIOS[scenario], rules)


SPEC: Final = Spec(
    "transaction_ends",
    EndRules,
    _build,
    scenarios={"crashes": 40_000, "broken connections": 35_000, "late ends": 20_000},
    switched_off={
        "decides_once": Off("late ends", CHANGED),
        "stops_timeout": Off("late ends", CHANGED),
        "decision_first": Off("crashes", SPLIT),
        "durable_first": Off("crashes", SPLIT),
        "answers_durable": Off("crashes", TOLD),
        "answers_last": Off("crashes", EARLY),
        "keeps_until_ended": Off("crashes", EARLY),
        "repeats": Off("crashes", ENDS),
        "resumes": Off("crashes", ENDS),
        "retains": Off("late ends", UNKNOWN),
        "joins_durably": Off("crashes", EARLY),
        "requires_open": Off("crashes", EARLY),
        "told_counts": Off("crashes", EARLY),
        "waits_for_answer": Off("crashes", SPLIT),
    },
)
