"""What a client was given, and what its acknowledgement in a transaction means.

About: every interleaving of an Exclusive or Failover subscription with a few messages and one or
two clients that consume them in transactions. Clients and broker talk through pipes, so each learns
late what the other does. `acknowledgement_rules` holds what the broker knows and decides.

P1  No message is consumed by two committed transactions; none is acknowledged by a transaction
    that did not consume it.
P2  A refusal is justified: of all true situations that look the same to the broker, no single
    answer is right for all. A client that is alone and stays connected is never refused. Promised
    where nobody mixes individual and cumulative acknowledgements.

Assumed: queues keep order; who requests redelivery drops what it has; who has lost a cumulative
acknowledgement repeats it or requests redelivery; request ids of a consumer object rise.
Left out: batches, plain acknowledgements, ids that were never received, several acknowledgements in
one transaction, more than one unload.
"""

from typing import ClassVar, Final, NamedTuple

from spec import acknowledgement_rules as broker
from spec.acknowledgement_rules import (
    CUMULATIVE,
    INDIVIDUAL,
    OPEN,
    AcknowledgementRules,
    Broker,
    Consumer,
    Life,
    Messages,
    Txn,
    each,
    replaced,
)
from spec.checker import Broken, Model, Off, Rules, Spec, StandsFor, Steps

TWICE: Final = "P1, consumed by two committed transactions"
LOST: Final = "P1, acknowledged by a transaction that did not consume it"
NEEDLESS: Final = "P2, refused although one answer is right"
ALONE: Final = "P2, refused although it is alone and stays connected"

WAITS, ACCEPTED, REFUSED = "waits", "accepted", "refused"


class Client(NamedTuple):
    """One process with one consumer."""

    connected: bool = False
    epoch: int = 0
    pipe: tuple[tuple[int, int], ...] = ()  # (message, epoch): in flight, or in the receiver queue
    sent: tuple[tuple[str, int, str, Messages], ...] = ()  # commands that are on their way
    work: Messages = 0  # received and processed, not consumed yet
    txn: int = -1  # the transaction in work
    kind: str = ""  # of its acknowledgement
    answer: str = ""
    aborted: bool = False  # its transaction was aborted: it has to choose what to do now


class Left(NamedTuple):
    """How much trouble is still to come."""

    abort: int = 0
    disconnect: int = 0
    crash: int = 0
    redeliver: int = 0
    unload: int = 0


class State(NamedTuple):
    broker: Broker
    clients: tuple[Client, ...]
    consumed: Messages  # in committed transactions
    left: Left


class System(NamedTuple):
    left: Left
    messages: int = 3
    clients: int = 2
    kinds: tuple[str, ...] = (CUMULATIVE,)
    txns: int = 3
    queue: int = 3  # messages in flight to a client, and in its queue
    never_refused: bool = False


BOTH: Final = (INDIVIDUAL, CUMULATIVE)
SYSTEMS: Final = {
    "alone": System(Left(abort=2, redeliver=1), 2, 1, BOTH, txns=4),
    "alone cumulative": System(Left(abort=2, redeliver=2), 3, 1, never_refused=True),
    "cumulative": System(Left(abort=1, disconnect=2, redeliver=1), 3, 1),
    "reconnects": System(Left(abort=1, disconnect=1, redeliver=1), 2, 1, BOTH),
    "unloaded": System(Left(abort=1, unload=1, crash=1), 2, 1, BOTH),
    "two": System(Left(disconnect=1), 2, txns=2),
    "two mixed": System(Left(disconnect=1), 2, kinds=BOTH, txns=2, queue=2),
    "two unloaded": System(Left(unload=1), 2, txns=2, queue=2),
    "two restarted": System(Left(crash=1), 2, txns=2, queue=2),
}


class Sight(NamedTuple):
    """All that the broker sees of a cumulative acknowledgement."""

    broker: Broker
    consumer: int
    txn: int
    up_to: int


class Judged(NamedTuple):
    accepted: bool
    right: set[Messages | None]  # what it should cover; None: it should be refused
    example: State


class Acknowledgements(Model[State]):
    STANDS_FOR: ClassVar[StandsFor]

    def __init__(self, system: System, rules: AcknowledgementRules) -> None:
        self._system = system
        self._rules = rules
        self._judged: dict[Sight, Judged] = {}

    def start(self) -> State:
        count = self._system.clients
        consumers = tuple(Consumer(life) for life in range(count))
        return State(
            Broker(consumers, (Life(),) * count), (Client(),) * count, 0, self._system.left
        )

    def normal(self, s: State) -> State:
        return s._replace(broker=broker.with_small_clock(s.broker))

    # The broker

    def deliver(self, s: State) -> Steps[State]:
        c = s.broker.active
        if c < 0 or len(s.clients[c].pipe) >= self._system.queue:
            return
        after, m = broker.deliver(s.broker, self._rules, self._system.messages)
        if m >= 0:
            pipe = (*s.clients[c].pipe, (m, s.broker.consumers[c].epoch))
            yield f"m{m} is delivered to {_name(c)}", _put(s._replace(broker=after), c, pipe=pipe)

    def answer_acknowledgement(self, s: State) -> Steps[State]:
        for c, client in enumerate(s.clients):
            if client.sent and client.sent[0][0] == "ack":
                (_, t, kind, work), *left = client.sent
                after, accepted = broker.acknowledge(s.broker, self._rules, c, t, kind, work)
                if kind == CUMULATIVE and s.broker.cumulative_holder < 0:
                    self._note(s, c, t, work, accepted)
                answer = ACCEPTED if accepted else REFUSED
                arrived = _put(s._replace(broker=after), c, sent=tuple(left), answer=answer)
                yield f"{_name(c)}'s acknowledgement arrives: {answer}", arrived

    def give_again(self, s: State) -> Steps[State]:
        for c, client in enumerate(s.clients):
            if client.sent and client.sent[0][0] == "redeliver":
                (_, epoch, _, _), *left = client.sent
                after = broker.request_redelivery(s.broker, c, epoch)
                if s.broker.active == c:
                    after = broker.new_pass(after, c)
                arrived = _put(s._replace(broker=after), c, sent=tuple(left))
                yield f"{_name(c)}'s request for redelivery arrives", arrived

    def time_out(self, s: State) -> Steps[State]:
        in_work = {client.txn for client in s.clients}
        for t, txn in enumerate(s.broker.txns):
            if txn.status is OPEN and t not in in_work:
                yield f"t{t} times out", s._replace(broker=broker.abort(s.broker, t))

    # Clients

    def receive(self, s: State) -> Steps[State]:
        for c, x in enumerate(s.clients):
            if x.answer == WAITS or x.txn >= 0 or not x.connected or not x.pipe:
                continue
            (m, epoch), *left = x.pipe
            if epoch < x.epoch:
                yield f"{_name(c)} drops m{m}", _put(s, c, pipe=tuple(left))
            elif not x.aborted:
                received = _put(s, c, pipe=tuple(left), work=x.work | 1 << m)
                yield f"{_name(c)} processes m{m}", received

    def acknowledge(self, s: State) -> Steps[State]:
        """All that was processed, in a new transaction."""
        t = len(s.broker.txns)
        for c, x in enumerate(s.clients):
            is_free = not x.answer and not x.aborted and x.txn < 0
            if is_free and x.work and x.connected and t < self._system.txns:
                txns = (*s.broker.txns, Txn(s.broker.consumers[c].life))
                begun = s._replace(broker=s.broker._replace(txns=txns))
                for kind in self._system.kinds:
                    sent = (*x.sent, ("ack", t, kind, x.work))
                    line = f"{_name(c)} acknowledges {_text(x.work)} {kind}ly in t{t}"
                    yield line, _put(begun, c, txn=t, kind=kind, sent=sent, answer=WAITS)

    def commit(self, s: State) -> Steps[State]:
        for c, x in enumerate(s.clients):
            if x.answer == ACCEPTED:
                yield f"t{x.txn} is committed", self._committed(s, c, x)

    def _committed(self, s: State, c: int, x: Client) -> State | Broken:
        if s.broker.txns[x.txn].status is not OPEN:
            return _put(s, c, txn=-1, answer="", aborted=True)
        if twice := x.work & s.consumed:
            return Broken(TWICE, _text(twice))
        after = broker.commit(s.broker, x.txn)
        if lost := after.acked & ~s.broker.acked & ~x.work:
            return Broken(LOST, _text(lost))
        s = s._replace(broker=after, consumed=s.consumed | x.work)
        return _put(s, c, txn=-1, answer="", work=0)

    def abort(self, s: State) -> Steps[State]:
        for c, x in enumerate(s.clients):
            if x.answer not in (ACCEPTED, REFUSED):
                continue
            after, kind = (s, "") if x.answer == REFUSED else (_spent(s, "abort"), x.kind)
            if after is not None:
                after = after._replace(broker=broker.abort(s.broker, x.txn))
                ended = _put(after, c, txn=-1, answer="", aborted=True, kind=kind)
                yield f"t{x.txn} is aborted", ended

    def go_on_after_abort(self, s: State) -> Steps[State]:
        """Repeat from memory, or, where the broker gives it back by itself, wait for that."""
        for c, x in enumerate(s.clients):
            if x.aborted and x.answer != WAITS:
                yield f"{_name(c)} repeats its work", _put(s, c, aborted=False)
                if x.kind == INDIVIDUAL:
                    yield f"{_name(c)} drops its work", _put(s, c, aborted=False, work=0)

    def request_redelivery(self, s: State) -> Steps[State]:
        after = _spent(s, "redeliver")
        for c, x in enumerate(s.clients):
            if after is not None and x.txn < 0 and x.connected and x.answer != WAITS:
                sent = (*x.sent, ("redeliver", x.epoch + 1, "", 0))
                changes = {"epoch": x.epoch + 1, "pipe": (), "work": 0, "sent": sent}
                requested = _put(after, c, aborted=False, **changes)
                yield f"{_name(c)} requests redelivery", requested

    def connect(self, s: State) -> Steps[State]:
        for c, x in enumerate(s.clients):
            if x.connected:
                continue
            b, forgets = s.broker, x.epoch > s.broker.consumers[c].epoch
            if not self._rules.names and b.life_of(c) != Life():
                b = broker.new_life(b, c)
            if forgets:
                b = broker.request_redelivery(b, c, x.epoch)
            else:
                same = b.consumers[c]._replace(epoch=x.epoch)
                b = b._replace(consumers=replaced(b.consumers, c, same))
            connected = _put(s._replace(broker=b), c, connected=True)
            yield f"{_name(c)} connects", _elected(connected)

    # Faults

    def disconnect(self, s: State) -> Steps[State]:
        after = _spent(s, "disconnect")
        for c, x in enumerate(s.clients):
            if after is not None and x.connected:
                yield f"{_name(c)} disconnects", _elected(_cut(after, c))

    def crash(self, s: State) -> Steps[State]:
        """A process dies, and a new one takes its place."""
        after = _spent(s, "crash")
        for c, x in enumerate(s.clients):
            if after is not None and (x.work or x.pipe):
                new = after._replace(clients=replaced(s.clients, c, Client(kind=x.kind)))
                told = s.broker.consumers[c]._replace(epoch=0)
                consumers = replaced(s.broker.consumers, c, told)
                new = _elected(new._replace(broker=s.broker._replace(consumers=consumers)))
                if self._rules.tells_processes:
                    new = new._replace(broker=broker.new_life(new.broker, c))
                yield f"{_name(c)} dies and starts anew", new

    def unload(self, s: State) -> Steps[State]:
        after = _spent(s, "unload")
        if after is not None:
            loaded = broker.unload(s.broker, self._rules, self._system.messages)
            after = after._replace(broker=loaded)
            for c in range(self._system.clients):
                after = _cut(after, c)
            yield "the topic is unloaded", after

    # P2

    def _note(self, s: State, c: int, t: int, work: Messages, accepted: bool) -> None:
        taken = s.broker.acked | s.broker.held_individually(but=t) | s.consumed
        right = None if work & taken else work & ~s.broker.acked
        sight = Sight(s.broker, c, t, work.bit_length())
        self._judged.setdefault(sight, Judged(accepted, set(), s)).right.add(right)

    def judge(self) -> tuple[Broken, State | None] | None:
        refused = [one for one in self._judged.values() if not one.accepted]
        if refused and self._system.never_refused:
            return Broken(ALONE), refused[0].example
        needless = [one for one in refused if len(one.right) == 1 and None not in one.right]
        if needless and self._system.kinds == (CUMULATIVE,):
            details = f"{len(needless)} of {len(refused)} kinds of refusals"
            return Broken(NEEDLESS, details), needless[0].example
        return None


def _name(c: int) -> str:
    return "ab"[c]


def _text(messages: Messages) -> str:
    return ", ".join(f"m{m}" for m in each(messages))


def _put(s: State, c: int, **changes: object) -> State:
    client = s.clients[c]._replace(**changes)  # type: ignore[arg-type]
    return s._replace(clients=replaced(s.clients, c, client))


def _spent(s: State, trouble: str) -> State | None:
    left = getattr(s.left, trouble)
    return s._replace(left=s.left._replace(**{trouble: left - 1})) if left else None


def _cut(s: State, c: int) -> State:
    answer = s.clients[c].answer
    answer = REFUSED if answer == WAITS else answer  # the request fails
    return _put(s, c, connected=False, pipe=(), sent=(), answer=answer)


def _elected(s: State) -> State:
    """The first connected client is the active one."""
    first = next((c for c, x in enumerate(s.clients) if x.connected), -1)
    if first == s.broker.active:
        return s
    return s._replace(broker=broker.new_pass(s.broker, first))


# What each action stands for in the product. Nothing: it happens in a client, or in the network.
_DISPATCHER: Final = "pybroker.broker.dispatch.single.SingleActiveDispatcher"
_SUBSCRIPTION: Final = "pybroker.broker.subscription.Subscription"
_ACKS: Final = "pybroker.broker.transactional_acks.TransactionalAcks"
_PENDING: Final = "pybroker.transaction.pending_acks.pending_ack.PendingAcks"

Acknowledgements.STANDS_FOR = {
    "deliver": (f"{_DISPATCHER}.dispatch", "pybroker.broker.dispatch.clients.Client.given"),
    "answer_acknowledgement": (
        f"{_SUBSCRIPTION}.acknowledge_in_transaction",
        f"{_ACKS}.acknowledge",
        f"{_ACKS}.acknowledge_cumulative",
    ),
    "give_again": (f"{_SUBSCRIPTION}.redeliver", f"{_DISPATCHER}.redeliver"),
    "time_out": ("pybroker.transaction.coordinator.coordinator.TransactionCoordinator._expired",),
    "receive": (),
    "acknowledge": (),
    "commit": (f"{_SUBSCRIPTION}.end_transaction", f"{_PENDING}.end"),
    "abort": (f"{_SUBSCRIPTION}.end_transaction", f"{_ACKS}.restored", f"{_DISPATCHER}.restore"),
    "go_on_after_abort": (),
    "request_redelivery": (),
    "connect": (
        f"{_SUBSCRIPTION}.add_consumer",
        f"{_DISPATCHER}.add",
        "pybroker.broker.dispatch.clients.Clients.arrive",
    ),
    "disconnect": (
        f"{_SUBSCRIPTION}.remove_consumer",
        f"{_DISPATCHER}.remove",
        "pybroker.broker.dispatch.clients.Clients.leave",
    ),
    "crash": (f"{_DISPATCHER}.remove",),
    "unload": (f"{_SUBSCRIPTION}.close", f"{_ACKS}.start_replay", f"{_PENDING}.tell_replayed"),
}


def _build(scenario: str, rules: Rules) -> Acknowledgements:
    assert isinstance(rules, AcknowledgementRules)
    return Acknowledgements(SYSTEMS[scenario], rules)


SPEC: Final = Spec(
    "acknowledgements",
    AcknowledgementRules,
    _build,
    scenarios={
        "alone": 20_000,
        "alone cumulative": 2_800,
        "cumulative": 70_000,
        "reconnects": 22_000,
        "unloaded": 85_000,
        "two": 38_000,
        "two mixed": 90_000,
        "two unloaded": 22_000,
        "two restarted": 33_000,
    },
    switched_off={
        "taint_others": Off("two", TWICE),
        "taint_self": Off("reconnects", TWICE),
        "taint_given": Off("cumulative", TWICE),
        "own_is_no_rival": Off("alone cumulative", ALONE),
        "special": Off("alone", LOST),
        "had": Off("alone", TWICE),
        "refuses": Off("unloaded", TWICE),
        "roster": Off("unloaded", LOST),
        "stored_taints": Off("two unloaded", TWICE),
        "names": Off("cumulative", TWICE),
        "tells_processes": Off("two restarted", NEEDLESS),
    },
)
