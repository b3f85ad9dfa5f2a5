"""Transactions of several coordinators that commit together: all of them, or none.

About: a leader, whose coordinator two brokers may serve, one after the other, and a member, whose
coordinator is on a third broker. The member promises; the leader's coordinator decides; the member
asks what was decided. Coordinators crash, requests stay on their way, and a broker that has lost
the leader's coordinator to the other one does not always know it.

Promised: the member commits exactly if the leader does; the leader's end is over when the member
has ended; after the last fault both end.

Assumed: who opens a log first makes all appends of earlier writers fail; what is durable stays.
Left out: several members (none knows of the others, and the leader needs all of them), members of
the leader's own coordinator (one log entry decides them), commits of the member alone, another
leader for the same member, and the participants of each transaction (see `transaction_ends`).
"""

from typing import ClassVar, Final, NamedTuple

from spec.checker import ENDS, Broken, Model, Off, Rules, Spec, StandsFor, Steps

OPEN: Final = "open"
COMMIT: Final = "commit"
ABORT: Final = "abort"

TORN: Final = "a group is committed in part"
EARLY: Final = "the leader's end is over before the member has ended"


class GroupRules(Rules):
    needs_promise: bool = True  # the leader's coordinator decides when the member has promised
    promise_durable: bool = True  # the member's coordinator answers when the promise is durable
    promise_binds: bool = True  # a promised member does not expire
    resumes_promise: bool = True  # nor after its coordinator was reopened
    names_member: bool = True  # the leader's decision says who follows
    undecided_waits: bool = True  # no verdict while the decision is not durable
    collecting_waits: bool = True  # no verdict while promises are being collected
    confirms: bool = True  # "does not commit" is proven by a record that was written afterwards
    same_instance: bool = True  # only the coordinator that promises were collected for decides
    numbers_promises: bool = True  # a late verdict does not release a newer promise
    leader_waits: bool = True  # the leader is retained until the member has ended
    asks: bool = True  # a promised member asks until it knows


class Collecting(NamedTuple):
    """In the memory of a broker, which may lose and regain the coordinator meanwhile."""

    attempt: int
    instance: int
    promised: bool = False


class Server(NamedTuple):
    """A broker that may serve the leader's coordinator."""

    instance: int = 0  # of the coordinator; 0: not open here
    status: str = OPEN
    durable: bool = False  # the decision
    named: bool = False  # it knows of the member
    closed: bool = False
    queue: tuple[tuple[str, int], ...] = ()  # records that are not durable yet
    collecting: Collecting | None = None


class LeaderLog(NamedTuple):
    writer: int = 0  # the instance that opened it last
    decided: str = ""
    named: bool = False
    closed: bool = False


class Member(NamedTuple):
    """The member, and its coordinator."""

    promised: bool = False  # durable
    decided: str = ""  # durable
    is_open: bool = True
    status: str = OPEN
    pledge: int = 0  # the number of the promise in force
    pledges: int = 0  # goes on: a reopened coordinator does not take answers of its predecessor
    queue: tuple[tuple[str, int], ...] = ()


class Network(NamedTuple):
    """All of it may stay on its way for a long time."""

    requests: frozenset[int] = frozenset()  # to promise, by attempt
    promises: frozenset[int] = frozenset()  # the answers
    questions: frozenset[int] = frozenset()  # about a promise, by its number
    verdicts: frozenset[tuple[int, bool]] = frozenset()  # the answers


class Left(NamedTuple):
    attempts: int = 2
    crash: int = 0
    crash_member: int = 0
    move: int = 0


class State(NamedTuple):
    left: Left
    served_by: int = 0
    servers: tuple[Server, Server] = (Server(), Server())
    log: LeaderLog = LeaderLog()
    member: Member = Member()
    network: Network = Network()


class Groups(Model[State]):
    STANDS_FOR: ClassVar[StandsFor]
    FAULTS = frozenset({"crash", "crash_member", "move"})
    HAS_ENDS = True

    def __init__(self, left: Left, rules: GroupRules) -> None:
        self._left = left
        self._rules = rules

    def start(self) -> State:
        return State(self._left)

    def wrong(self, s: State) -> Broken | None:
        leader, member = s.log.decided, s.member.decided
        if (leader == COMMIT and member == ABORT) or (member == COMMIT and leader != COMMIT):
            return Broken(TORN)
        if leader == COMMIT and s.log.closed and not member:
            return Broken(EARLY)
        return None

    def is_over(self, s: State) -> bool:
        leader_is_over = s.log.decided == ABORT or s.log.closed
        return leader_is_over and bool(s.member.decided)

    # The leader's coordinator

    def open(self, s: State) -> Steps[State]:
        i = s.served_by
        if not s.servers[i].instance:
            log = s.log._replace(writer=s.log.writer + 1)
            server = Server(
                log.writer,
                log.decided or OPEN,
                bool(log.decided),
                log.named,
                log.closed,
                collecting=s.servers[i].collecting,
            )
            line = f"{_name(i)} opens the leader's coordinator"
            yield line, _put(s._replace(log=log), i, server)

    def collect(self, s: State) -> Steps[State]:
        """A client commits the group, for the first time or again."""
        for i, server in enumerate(s.servers):
            is_free = server.collecting is None and server.status == OPEN
            if server.instance and is_free and s.left.attempts:
                attempt = s.left.attempts
                requests = s.network.requests | {attempt}
                collecting = server._replace(collecting=Collecting(attempt, server.instance))
                asked = s._replace(
                    left=s.left._replace(attempts=attempt - 1),
                    network=s.network._replace(requests=requests),
                )
                yield f"{_name(i)} collects promises", _put(asked, i, collecting)

    def hear_promise(self, s: State) -> Steps[State]:
        for attempt in sorted(s.network.promises):
            network = s.network._replace(promises=s.network.promises - {attempt})
            after = s._replace(network=network)
            for i, server in enumerate(s.servers):
                collecting = server.collecting
                if collecting is not None and collecting.attempt == attempt:
                    promised = server._replace(collecting=collecting._replace(promised=True))
                    after = _put(after, i, promised)
            yield "the promise arrives", after

    def decide(self, s: State) -> Steps[State]:
        for i, server in enumerate(s.servers):
            collecting = server.collecting
            if collecting is None or not (collecting.promised or not self._rules.needs_promise):
                continue
            is_same = collecting.instance == server.instance or not self._rules.same_instance
            if server.instance and server.status == OPEN and is_same:
                decided = server._replace(
                    status=COMMIT,
                    named=True,
                    collecting=None,
                    queue=(*server.queue, (COMMIT, 0)),
                )
                yield f"{_name(i)} decides to commit", _put(s, i, decided)

    def give_up_collecting(self, s: State) -> Steps[State]:
        """The request failed, or the coordinator is another one by now."""
        for i, server in enumerate(s.servers):
            if server.collecting is not None:
                given_up = server._replace(collecting=None)
                yield f"{_name(i)} gives up collecting", _put(s, i, given_up)

    def abort_leader(self, s: State) -> Steps[State]:
        for i, server in enumerate(s.servers):
            if server.instance and server.status == OPEN:
                queue = (*server.queue, (ABORT, 0))
                aborted = server._replace(status=ABORT, queue=queue)
                yield f"the leader is aborted on {_name(i)}", _put(s, i, aborted)

    def write(self, s: State) -> Steps[State]:
        for i, server in enumerate(s.servers):
            if not server.queue:
                continue
            (kind, number), *left = server.queue
            if server.instance != s.log.writer:
                failed = Server(collecting=server.collecting)
                yield f"{_name(i)} cannot append: it closes", _put(s, i, failed)
                continue
            after = _put(s, i, server._replace(queue=tuple(left)))
            line = f"durable on {_name(i)}: {kind}"
            if kind == "confirmed":
                yield line, self._answered(after, i, number)
            elif kind == "closed":
                yield line, after._replace(log=s.log._replace(closed=True))
            else:
                named = kind == COMMIT and self._rules.names_member
                after = after._replace(log=s.log._replace(decided=kind, named=named))
                yield line, _put(after, i, after.servers[i]._replace(durable=True))

    def close(self, s: State) -> Steps[State]:
        for i, server in enumerate(s.servers):
            is_decided = server.instance and server.status == COMMIT and server.durable
            has_followed = s.member.decided == COMMIT or not self._rules.leader_waits
            if is_decided and has_followed and not server.closed:
                queue = (*server.queue, ("closed", 0))
                closed = server._replace(closed=True, queue=queue)
                yield f"the leader's end is over on {_name(i)}", _put(s, i, closed)

    def hear_question(self, s: State) -> Steps[State]:
        """Of the broker that serves the coordinator, or of one that did."""
        for number in sorted(s.network.questions):
            network = s.network._replace(questions=s.network.questions - {number})
            asked = s._replace(network=network)
            yield "the member's question is lost", asked
            for i, server in enumerate(s.servers):
                if not server.instance:
                    continue
                line = f"{_name(i)} is asked about promise {number}"
                if self._verdict(server) is False and self._rules.confirms:
                    queue = (*server.queue, ("confirmed", number))
                    yield line, _put(asked, i, server._replace(queue=queue))
                else:
                    yield line, self._answered(asked, i, number)

    def _verdict(self, server: Server) -> bool | None:
        """Whether the member commits; None: ask again."""
        if server.collecting is not None and self._rules.collecting_waits:
            return None
        if server.status != COMMIT or not server.named or server.closed:
            return False
        return None if not server.durable and self._rules.undecided_waits else True

    def _answered(self, s: State, i: int, number: int) -> State:
        verdict = self._verdict(s.servers[i])
        if verdict is None:
            return s
        verdicts = s.network.verdicts | {(number, verdict)}
        return s._replace(network=s.network._replace(verdicts=verdicts))

    # The member's coordinator

    def promise(self, s: State) -> Steps[State]:
        for attempt in sorted(s.network.requests):
            network = s.network._replace(requests=s.network.requests - {attempt})
            after, m = s._replace(network=network), s.member
            if not m.is_open or m.status != OPEN:
                yield "the member does not promise", after
                continue
            number = m.pledges + 1
            queue = (*m.queue, ("promise", attempt))
            m = m._replace(pledge=number, pledges=number, queue=queue)
            if not self._rules.promise_durable:
                promises = network.promises | {attempt}
                after = s._replace(network=network._replace(promises=promises))
            yield f"the member promises ({number})", after._replace(member=m)

    def write_member(self, s: State) -> Steps[State]:
        m = s.member
        if not m.queue:
            return
        (kind, attempt), *left = m.queue
        m, line = m._replace(queue=tuple(left)), f"durable of the member: {kind}"
        if kind == "promise":
            promises = s.network.promises | {attempt}
            network = s.network._replace(promises=promises)
            yield line, s._replace(member=m._replace(promised=True), network=network)
        elif kind == "release":
            yield line, s._replace(member=m._replace(promised=False))
        else:
            yield line, s._replace(member=m._replace(promised=False, decided=kind))

    def ask(self, s: State) -> Steps[State]:
        """One question at a time."""
        m = s.member
        queued = {record for server in s.servers for record in server.queue}
        is_asking = (
            m.pledge in s.network.questions
            or ("confirmed", m.pledge) in queued
            or any(number == m.pledge for number, _ in s.network.verdicts)
        )
        if m.is_open and m.status == OPEN and m.pledge and not is_asking and self._rules.asks:
            questions = s.network.questions | {m.pledge}
            network = s.network._replace(questions=questions)
            yield f"the member asks about promise {m.pledge}", s._replace(network=network)

    def conclude(self, s: State) -> Steps[State]:
        for number, commits in sorted(s.network.verdicts):
            m = s.member
            network = s.network._replace(verdicts=s.network.verdicts - {(number, commits)})
            is_meant = m.pledge == number or (m.pledge and not self._rules.numbers_promises)
            if m.is_open and m.status == OPEN and is_meant:
                if commits:
                    m = m._replace(status=COMMIT, queue=(*m.queue, (COMMIT, 0)))
                else:
                    m = m._replace(queue=(*m.queue, ("release", 0)))
                m = m._replace(pledge=0)
            line = f"the verdict on promise {number} arrives: {COMMIT if commits else 'released'}"
            yield line, s._replace(member=m, network=network)

    def expire(self, s: State) -> Steps[State]:
        m = s.member
        is_free = not m.pledge or not self._rules.promise_binds
        if m.is_open and m.status == OPEN and is_free:
            expired = m._replace(status=ABORT, pledge=0, queue=(*m.queue, (ABORT, 0)))
            yield "the member expires", s._replace(member=expired)

    def reopen_member(self, s: State) -> Steps[State]:
        m = s.member
        if not m.is_open:
            pledge = m.pledges + 1 if m.promised and self._rules.resumes_promise else 0
            opened = m._replace(is_open=True, status=m.decided or OPEN, pledge=pledge)
            opened = opened._replace(pledges=max(pledge, m.pledges))
            yield "the member's coordinator is opened", s._replace(member=opened)

    # Faults

    def crash(self, s: State) -> Steps[State]:
        """A broker restarts, or its coordinator fails and is reopened."""
        for i, server in enumerate(s.servers):
            if s.left.crash and server.instance:
                after = s._replace(left=s.left._replace(crash=s.left.crash - 1))
                yield f"{_name(i)} crashes", _put(after, i, Server())
                if server.collecting is not None:
                    failed = Server(collecting=server.collecting)
                    yield f"the coordinator fails on {_name(i)}", _put(after, i, failed)

    def crash_member(self, s: State) -> Steps[State]:
        m = s.member
        if s.left.crash_member and m.is_open:
            left = s.left._replace(crash_member=s.left.crash_member - 1)
            lost = m._replace(is_open=False, pledge=0, queue=())
            network = s.network._replace(questions=frozenset(), verdicts=frozenset())
            crashed = s._replace(left=left, member=lost, network=network)
            yield "the member's coordinator crashes", crashed

    def move(self, s: State) -> Steps[State]:
        """The other broker is to serve the leader's coordinator; this one may not know it."""
        if s.left.move:
            left = s.left._replace(move=s.left.move - 1)
            i = s.served_by
            moved = s._replace(left=left, served_by=1 - i)
            line = f"{_name(1 - i)} is to serve the leader's coordinator"
            yield f"{line}, unknown to {_name(i)}", moved
            released = Server(collecting=s.servers[i].collecting)
            yield f"{line}, {_name(i)} releases it", _put(moved, i, released)


def _name(i: int) -> str:
    return "AC"[i]


def _put(s: State, i: int, server: Server) -> State:
    servers = (server, s.servers[1]) if i == 0 else (s.servers[0], server)
    return s._replace(servers=servers)


_GROUPS: Final = "pybroker.transaction.coordinator.group_commits.groups.Groups"
_ENDS: Final = "pybroker.transaction.coordinator.group_commits.group_ends.GroupEnds"
_SETTLING: Final = "pybroker.transaction.coordinator.group_commits.settling.Settling"
_COORDINATORS: Final = "pybroker.transaction.coordinator.coordinators.Coordinators"
_SHARED: Final = "pybroker.cluster.transactions"

Groups.STANDS_FOR = {
    "open": (f"{_COORDINATORS}.take", f"{_SHARED}.coordinators.SharedCoordinators._acquired"),
    "collect": (f"{_GROUPS}.commit", f"{_GROUPS}._collect"),
    "hear_promise": (f"{_GROUPS}._promised", f"{_SHARED}.groups.SharedGroups.promise"),
    "decide": (f"{_GROUPS}._decide", f"{_ENDS}.commit"),
    "give_up_collecting": (f"{_GROUPS}._collected",),
    "abort_leader": ("pybroker.transaction.coordinator.coordinator.TransactionCoordinator.end",),
    "write": (f"{_ENDS}._decided", f"{_ENDS}.confirm"),
    "close": (f"{_ENDS}._drive",),
    "hear_question": (f"{_GROUPS}.verdicts", f"{_ENDS}.verdict"),
    "promise": (f"{_GROUPS}.promise_to", f"{_ENDS}.promise"),
    "write_member": (f"{_ENDS}._members_decided",),
    "ask": (f"{_SETTLING}.settle", f"{_SETTLING}.ask", f"{_GROUPS}.follow_at_once"),
    "conclude": (f"{_ENDS}.conclude",),
    "expire": ("pybroker.transaction.coordinator.coordinator.TransactionCoordinator._expired",),
    "reopen_member": (f"{_ENDS}.resume",),
    "crash": (f"{_COORDINATORS}._reopen",),
    "crash_member": (f"{_COORDINATORS}._reopen",),
    "move": (f"{_COORDINATORS}.release", f"{_SHARED}.coordinators.SharedCoordinators._released"),
}

SCENARIOS: Final = {
    "crashes": Left(crash=1, crash_member=1),
    "taken over": Left(attempts=1, crash=1, crash_member=1, move=1),
    "taken over and back": Left(attempts=1, crash_member=1, move=2),
    "collected twice": Left(attempts=2, move=1),
}


def _build(scenario: str, rules: Rules) -> Groups:
    assert isinstance(rules, GroupRules)
    return Groups(SCENARIOS[scenario], rules)


SPEC: Final = Spec(
    "groups",
    GroupRules,
    _build,
    scenarios={
        "crashes": 23_000,
        "taken over": 20_000,
        "taken over and back": 23_000,
        "collected twice": 29_000,
    },
    switched_off={
        "needs_promise": Off("crashes", TORN),
        "promise_durable": Off("crashes", TORN),
        "promise_binds": Off("crashes", TORN),
        "resumes_promise": Off("crashes", TORN),
        "names_member": Off("crashes", TORN),
        "undecided_waits": Off("crashes", TORN),
        "collecting_waits": Off("crashes", TORN),
        "confirms": Off("taken over", TORN),
        "same_instance": Off("taken over and back", TORN),
        "numbers_promises": Off("crashes", TORN),
        "leader_waits": Off("crashes", EARLY),
        "asks": Off("crashes", ENDS),
    },
)
