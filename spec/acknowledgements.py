"""What a client was given, and what its acknowledgement in a transaction means.

About: every interleaving of an Exclusive or Failover subscription with a few messages and one or
two clients that consume them in transactions. Clients and broker talk through pipes, so each learns
late what the other does. `acknowledgement_rules` holds what the broker knows and decides.

P1  No message is consumed by two committed transactions, or twice by one; none is acknowledged by
    a transaction that did not consume it.
P2  A refusal is justified: of all true situations that look the same to the broker, no single
    answer is right for all. A client that is alone and stays connected is never refused. Promised
    where nobody mixes individual and cumulative acknowledgements. It does not say what the broker
    should remember: what it has forgotten looks the same.

Assumed: queues keep order; who requests redelivery drops what it has; who has lost a cumulative
acknowledgement repeats it or requests redelivery; request ids of a consumer object rise.
Left out: batches, plain acknowledgements, ids that were never received, more than one unload.
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
TWICE_IN_ONE: Final = "P1, consumed twice by one committed transaction"
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
    work: Messages = 0  # received and processed, not acknowledged yet
    txn: int = -1  # the transaction in work
    acked: Messages = 0  # what it has acknowledged in it
    twice: Messages = 0  # and what it has processed again, and acknowledged again
    singly: Messages = 0  # what it has acknowledged individually: an abort gives it back
    acks: int = 0  # in it
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
    acks: int = 1  # in a transaction
    queue: int = 3  # messages in flight to a client, and in its queue
    judged: bool = True  # by P2, unless both kinds are mixed
    never_refused: bool = False


BOTH: Final = (INDIVIDUAL, CUMULATIVE)
SYSTEMS: Final = {
    "alone": System(Left(abort=2, redeliver=1), 2, 1, BOTH, txns=4),
    "alone cumulative": System(Left(abort=2, redeliver=2), 3, 1, never_refused=True),
    "cumulative": System(Left(abort=1, disconnect=2, redeliver=1), 3, 1),
    "reconnects": System(Left(abort=1, disconnect=1, redeliver=1), 2, 1, BOTH),
    "unloaded": System(Left(abort=1, unload=1, crash=1), 2, 1, BOTH),
    "unloaded cumulative": System(Left(abort=1, unload=1, crash=1), 3, 1),
    "several alone": System(Left(abort=2, redeliver=1), 3, 1, acks=3, never_refused=True),
    "several": System(Left(abort=1, disconnect=1, redeliver=1), 3, 1, txns=2, acks=2),
    "several mixed": System(Left(abort=1, disconnect=1), 2, 1, BOTH, txns=2, acks=2),
    "several unloaded": System(Left(abort=1, unload=1), 2, 1, BOTH, txns=2, acks=2),
    "two several": System(Left(crash=1), 2, txns=2, acks=2, queue=2),
    # Where such a transaction is repeated after a failover, 3 of 2,221 kinds of refusals are not
    # justified: a client that has processed a message twice is one that has processed it once here.
    "two several, failover": System(Left(disconnect=1), 2, txns=2, acks=2, queue=2, judged=False),
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
                if kind == CUMULATIVE and s.broker.cumulative_holder in (-1, t):
                    self._note(s, c, t, work, accepted)
                arrived = _put(s._replace(broker=after), c, sent=tuple(left), answer=REFUSED)
                if accepted:
                    arrived = _put(arrived, c, answer=ACCEPTED, **_taken(client, kind, work))
                line = f"{_name(c)}'s acknowledgement arrives"
                yield f"{line}: {ACCEPTED if accepted else REFUSED}", arrived

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
            is_free = x.txn < 0 or (x.answer == ACCEPTED and x.acks < self._system.acks)
            if x.answer == WAITS or not is_free or not x.connected or not x.pipe:
                continue
            (m, epoch), *left = x.pipe
            if epoch < x.epoch:
                yield f"{_name(c)} drops m{m}", _put(s, c, pipe=tuple(left))
            elif not x.aborted:
                received = _put(s, c, pipe=tuple(left), work=x.work | 1 << m)
                yield f"{_name(c)} processes m{m}", received

    def acknowledge(self, s: State) -> Steps[State]:
        """All that was processed, in a new transaction or once more in the same one."""
        for c, x in enumerate(s.clients):
            t, begun = x.txn, s
            if x.txn < 0 and not x.aborted:
                t = len(s.broker.txns)
                txns = (*s.broker.txns, Txn(s.broker.consumers[c].life))
                begun = s._replace(broker=s.broker._replace(txns=txns))
            elif x.answer != ACCEPTED or x.acks >= self._system.acks:
                continue
            if not x.work or not x.connected or t >= self._system.txns:
                continue
            for kind in self._system.kinds:
                sent = (*x.sent, ("ack", t, kind, x.work))
                line = f"{_name(c)} acknowledges {_text(x.work)} {kind}ly in t{t}"
                changes = {"txn": t, "sent": sent, "acks": x.acks + 1}
                yield line, _put(begun, c, answer=WAITS, **changes)

    def commit(self, s: State) -> Steps[State]:
        for c, x in enumerate(s.clients):
            if x.answer == ACCEPTED:
                yield f"t{x.txn} is committed", self._committed(s, c, x)

    def _committed(self, s: State, c: int, x: Client) -> State | Broken:
        if s.broker.txns[x.txn].status is not OPEN:
            return _aborted(s, c)
        if twice := x.acked & s.consumed:
            return Broken(TWICE, _text(twice))
        if x.twice:
            return Broken(TWICE_IN_ONE, _text(x.twice))
        after = broker.commit(s.broker, x.txn)
        if lost := after.acked & ~s.broker.acked & ~x.acked:
            return Broken(LOST, _text(lost))
        s = s._replace(broker=after, consumed=s.consumed | x.acked)
        return _put(s, c, txn=-1, answer="", acked=0, singly=0, acks=0)

    def abort(self, s: State) -> Steps[State]:
        for c, x in enumerate(s.clients):
            if x.answer not in (ACCEPTED, REFUSED):
                continue
            after = s if x.answer == REFUSED else _spent(s, "abort")
            if after is not None:
                after = after._replace(broker=broker.abort(s.broker, x.txn))
                yield f"t{x.txn} is aborted", _aborted(after, c)

    def go_on_after_abort(self, s: State) -> Steps[State]:
        """Repeat from memory, or, where the broker gives it back by itself, wait for that."""
        for c, x in enumerate(s.clients):
            if x.aborted and x.answer != WAITS:
                yield f"{_name(c)} repeats its work", _put(s, c, aborted=False, singly=0)
                if x.singly:
                    kept = _put(s, c, aborted=False, singly=0, work=x.work & ~x.singly)
                    yield f"{_name(c)} drops {_text(x.singly)}", kept

    def request_redelivery(self, s: State) -> Steps[State]:
        after = _spent(s, "redeliver")
        for c, x in enumerate(s.clients):
            if after is not None and x.txn < 0 and x.connected and x.answer != WAITS:
                sent = (*x.sent, ("redeliver", x.epoch + 1, "", 0))
                changes = {"epoch": x.epoch + 1, "pipe": (), "work": 0, "sent": sent}
                requested = _put(after, c, aborted=False, singly=0, **changes)
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
                new = after._replace(clients=replaced(s.clients, c, Client()))
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
        held = s.broker.held_individually() | s.clients[c].acked
        taken = s.broker.acked | held | s.consumed
        right = None if work & taken else work
        sight = Sight(s.broker, c, t, work.bit_length())
        self._judged.setdefault(sight, Judged(accepted, set(), s)).right.add(right)

    def judge(self) -> tuple[Broken, State | None] | None:
        refused = [one for one in self._judged.values() if not one.accepted]
        if refused and self._system.never_refused:
            return Broken(ALONE), refused[0].example
        needless = [one for one in refused if len(one.right) == 1 and None not in one.right]
        if needless and self._system.judged and self._system.kinds == (CUMULATIVE,):
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


def _taken(x: Client, kind: str, work: Messages) -> dict[str, Messages]:
    return {
        "work": 0,
        "acked": x.acked | work,
        "twice": x.twice | x.acked & work,
        "singly": x.singly | (work if kind == INDIVIDUAL else 0),
    }


def _aborted(s: State, c: int) -> State:
    work = s.clients[c].work | s.clients[c].acked
    changes = {"txn": -1, "answer": "", "acks": 0, "acked": 0, "twice": 0, "work": work}
    return _put(s, c, aborted=True, **changes)


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
_SUBSCRIPTION: Final = "pybroker.broker.subscriptions.subscription.Subscription"
_LIVES: Final = "pybroker.broker.dispatch.lives.Lives"
_ACKS: Final = "pybroker.broker.subscriptions.transactional_acks.TransactionalAcks"
_PENDING: Final = "pybroker.transaction.pending_acks.pending_ack.PendingAcks"

Acknowledgements.STANDS_FOR = {
    "deliver": (f"{_DISPATCHER}.dispatch", f"{_LIVES}.given", f"{_LIVES}.delivered"),
    "answer_acknowledgement": (
        f"{_SUBSCRIPTION}.acknowledge_in_transaction",
        f"{_ACKS}.acknowledge",
        f"{_LIVES}.taken",
        f"{_ACKS}.acknowledge_cumulative",
        "pybroker.broker.dispatch.cumulative.spared_in_transaction",
    ),
    "give_again": (f"{_SUBSCRIPTION}.redeliver", f"{_DISPATCHER}.redeliver", f"{_LIVES}.begin"),
    "time_out": ("pybroker.transaction.coordinator.coordinator.TransactionCoordinator._expired",),
    "receive": (),
    "acknowledge": (),
    "commit": (f"{_SUBSCRIPTION}.end_transaction", f"{_PENDING}.end", f"{_LIVES}.commits"),
    "abort": (f"{_SUBSCRIPTION}.end_transaction", f"{_ACKS}.given_back", f"{_DISPATCHER}.restore"),
    "go_on_after_abort": (),
    "request_redelivery": (),
    "connect": (
        f"{_SUBSCRIPTION}.add_consumer",
        f"{_DISPATCHER}.add",
        f"{_LIVES}.arrive",
    ),
    "disconnect": (
        f"{_SUBSCRIPTION}.remove_consumer",
        f"{_DISPATCHER}.remove",
        f"{_LIVES}.leave",
    ),
    "crash": (f"{_DISPATCHER}.remove",),
    "unload": (
        f"{_SUBSCRIPTION}.close",
        f"{_ACKS}.start_replay",
        f"{_PENDING}.tell_replayed",
        f"{_LIVES}.restore",
    ),
}


def _build(scenario: str, rules: Rules) -> Acknowledgements:
    assert isinstance(rules, AcknowledgementRules)
    return Acknowledgements(SYSTEMS[scenario], rules)


SPEC: Final = Spec(
    "acknowledgements",
    AcknowledgementRules,
    _build,
    scenarios={
        "alone": 10_000,
        "alone cumulative": 1_200,
        "cumulative": 42_000,
        "reconnects": 13_500,
        "unloaded": 35_000,
        "unloaded cumulative": 13_000,
        "several alone": 600,
        "several": 6_500,
        "several mixed": 11_000,
        "several unloaded": 9_000,
        "two several": 38_000,
        "two several, failover": 65_000,
        "two": 36_000,
        "two mixed": 55_000,
        "two unloaded": 20_000,
        "two restarted": 20_000,
    },
    switched_off={
        "taint_others": Off("two", TWICE),
        "taint_self": Off("reconnects", TWICE),
        "taint_in_same": Off("several", TWICE_IN_ONE),
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
