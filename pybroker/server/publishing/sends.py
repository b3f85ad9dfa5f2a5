"""The way of a producer's SENDs to its topic, and of receipts and refusals back.

A run of SENDs takes these stages, in this order. Each passes it on, in whole or in parts, or
refuses it, or holds it and the producer's later runs with it. Where nothing is set, a stage is one
test.

    send            may the producer publish, in this transaction? Is an earlier run held?
    join            the topic takes part in a transaction that spans its namespace
    within_limits   of what a transaction may hold
    gate            what policies say of single messages
    at_rate         the topic's publish rate
    deduplicate     new ones, copies of stored ones, and of ones whose transaction is open
    publish         to the topic; one buffer of receipts comes back when the run is durable

A held run begins anew at the first stage. Answers keep the order of the SENDs (`_in_order`).
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

from managed_ledger.position import Position
from pybroker.base.errors import (
    ChecksumError,
    PersistenceError,
    PulsarError,
    ServiceNotReady,
    TopicTerminated,
)
from pybroker.base.names import TopicName, TxnId
from pybroker.broker.client_topics import ServedTopic
from pybroker.broker.deduplication import (
    Copy,
    Deduplication,
    Duplicate,
    Later,
    New,
    Refused,
    Rest,
    Taken,
)
from pybroker.broker.persistent.producers import Producer
from pybroker.broker.policies.gate import Gate
from pybroker.broker.policies.throttle import Throttle
from pybroker.server.connections.connection import Connection
from pybroker.server.connections.requests import as_final
from pybroker.server.connections.slots import ProducerSlot
from pybroker.server.publishing.held_runs import HOLD_S, HeldRoom, HeldRuns
from pybroker.server.transactions import fencing
from pybroker.server.transactions.participant_limits import ConnectionJoins
from pybroker.server.transactions.transaction_owner import check_owner
from pybroker.server.transactions.transaction_room import room_for
from pybroker.transaction.coordinator.joining import Joined
from pybroker.wire import commands
from pybroker.wire.frames import BadChecksum, SendRun

# If a producer is too fast, up to this many of its bytes wait while the broker still reads its
# connection, so that it sees a PING after them.
_HELD_WHILE_READING_BYTES: Final = 64 * 1024
LABEL_PROPERTY: Final = "txn.label"  # of a producer: its client's name for its transactions
MAX_LABEL_CHARS: Final = 200


class Sends(ProducerSlot):
    """Of one producer on one connection."""

    __slots__ = ("_connection", "_label", "_services")

    def __init__(self, session: Connection, topic: ServedTopic, producer: Producer) -> None:
        super().__init__(topic, producer)
        self._connection = session
        self._services = session.services
        said = producer.properties.get(LABEL_PROPERTY)
        self._label = said[:MAX_LABEL_CHARS] if said else None

    # -- the stages

    def send(self, run: SendRun) -> None:
        services, txn_id = self._services, run.txn_id
        holder, joined = self.transactional_session, None
        if holder is not None and not services.sessions.may_publish(holder):
            return  # the broker is about to close it; the client resends after reconnecting
        if holder is not None or (
            txn_id is not None
            and (services.coordinators.joining.are_any or self._connection.login is not None)
        ):
            try:
                joined = self._joined(txn_id)
            except PulsarError as error:
                self.refuse_in_order(run, error)
                return
        if self.held is not None:
            self.held.keep(run)
            if self.held.by_rate:
                self._rest_if_much(self.held)
        elif joined is not None:
            self._join(run, joined)
        elif txn_id is None:
            self._gate(run)
        else:
            self._within_limits(run, txn_id)

    def _joined(self, txn_id: TxnId | None) -> Joined | None:
        """What the run has to wait for first, if anything."""
        session, joined = self._connection, None
        if (holder := self.transactional_session) is not None:
            joined = fencing.bound(session, holder, txn_id)
        if txn_id is not None and joined is None:
            joined = _joining(session, self.topic.name, txn_id)
        return joined

    def _join(self, run: SendRun, joined: Joined) -> None:
        """Closing the producer waits for what is held here."""
        too_long = partial(self._start_over, "adding its topic to the transaction took too long")
        held = self._hold(run, HeldRuns(_PublishRoom(self._connection), too_long), by_rate=True)
        joined.add_done_callback(lambda _: self._go_on_at_rate(held))

    def _within_limits(self, run: SendRun, txn_id: TxnId) -> None:
        """Refuses the excess as the gate does: clients report it to the application."""
        if self._label is not None:
            self._put_label(self._label, txn_id)
        fits, excess = room_for(self._connection, self.topic, txn_id, run)
        if fits:
            self._gate(run if excess is None else run.part(0, fits))
        if excess is not None:
            self.refuse_in_order(run.part(fits, len(run.entries)), excess)

    def _put_label(self, label: str, txn_id: TxnId) -> None:
        """For display. The first label stays; a coordinator on another broker does not learn it."""
        transaction = self._services.coordinators.begun(txn_id)
        if transaction is not None and transaction.label is None:
            transaction.label = label

    def _gate(self, run: SendRun) -> None:
        if (gate := self.topic.gate) is None:
            self._deduplicate(run)
        else:
            self._through(gate, run)

    def _through(self, gate: Gate, run: SendRun) -> None:
        for start, stop, refusal in gate.pieces(run.entries):
            part = run.part(start, stop)
            if self.held is not None:
                self.held.keep(part)
            elif refusal is not None:
                self.refuse_in_order(part, refusal)
            elif gate.rate is None:
                self._deduplicate(part)
            else:
                self._at_rate(part, gate.rate)

    def _at_rate(self, run: SendRun, rate: Throttle) -> None:
        now = rate.take(run.entries, run.message_counts)
        if now:
            self._deduplicate(run.part(0, now))
        if now == len(run.entries):
            return
        rest = run.part(now, len(run.entries))
        if self.held is not None:  # an earlier message turned out to be a copy
            self.held.keep(rest)
            return
        held = self._hold(rest, self._held("it exceeds the publish rate"), by_rate=True)
        loop = asyncio.get_running_loop()
        loop.call_later(min(rate.wait_s(), HOLD_S / 2), self._go_on_at_rate, held)
        self._rest_if_much(held)

    def _deduplicate(self, run: SendRun) -> None:
        if (deduplication := self.topic.deduplication) is None:
            self._publish(run, None)
        else:
            self._publish_new(run, deduplication)

    def _publish_new(self, run: SendRun, deduplication: Deduplication) -> None:
        """Publishes the new messages of a run, and answers the others in order."""
        name = self.producer.name
        for piece in deduplication.pieces(name, run, self._services.examinations):
            whole = piece.stop - piece.start == len(run.entries)
            part = run if whole else run.part(piece.start, piece.stop)
            match piece:
                case Rest(taken=taken, entry=entry, messages=messages):
                    rest = run.part(piece.start, piece.stop)
                    rest.entries, rest.message_counts = [entry], [messages]
                    self._publish(rest, taken)
                case New(taken=taken):
                    self._publish(part, taken)
                case Duplicate():
                    self._answer_duplicate(part, piece)
                case Refused(error=error):
                    self._in_order(partial(refuse, self._connection, part, error))
                case Copy(txn_id=txn_id):
                    self._await_decision(part, txn_id, deduplication)
                case Later():
                    self._await_examination(part, piece)

    def _publish(self, run: SendRun, taken: Taken | None) -> None:
        size_bytes = sum(map(len, run.entries))
        session, services, topic = self._connection, self._services, self.topic
        producer, holder = self.producer, self.transactional_session
        producer.messages_in += sum(run.message_counts)
        producer.bytes_in += size_bytes
        topic.bytes_in += size_bytes
        if run.chunked:  # then all its entries are chunks
            topic.chunked = True
            producer.chunks_in += len(run.entries)
        later = self.later_answers = []
        writes, clock = topic.writes, services.clock
        began_s = clock.monotonic_s()

        def published(first: Position | None, error: Exception | None) -> None:
            services.budget.give_back(size_bytes)
            if holder is not None:
                services.sessions.writing.ended(holder)
            if self.later_answers is later:
                self.later_answers = None
            if first is not None:
                if writes is not None:
                    writes.durable(run.entries, size_bytes, clock.monotonic_s() - began_s)
                session.write(commands.receipts(run, first.ledger_id, first.entry_id))
            else:
                self._not_stored(run, error)
            for answer in later:
                answer()

        session.spend_budget(size_bytes)
        if holder is not None:
            services.sessions.writing.begun(holder)
        receipting = services.receipting
        done = published if receipting is None else receipting(session, self, run, published)
        topic.publish(producer, run, done, taken)

    # -- what is held

    def _hold(self, run: SendRun, held: HeldRuns, by_rate: bool) -> HeldRuns:
        held.by_rate = by_rate
        held.keep(run)
        self.held = held
        return held

    def _held(self, too_long: str) -> HeldRuns:
        """`too_long` is the reason to give if they wait too long."""
        return HeldRuns(self._services.held_runs, partial(self._start_over, too_long))

    def _await_examination(self, run: SendRun, later: Later) -> None:
        held = self._hold(run, self._held("its batches take too long to examine"), by_rate=True)
        later.when_ready(partial(self._go_on_at_rate, held))
        self._rest_if_much(held)

    def _await_decision(self, run: SendRun, txn_id: TxnId, deduplication: Deduplication) -> None:
        """A copy of a message in an open transaction is neither stored nor answered before that
        has ended. If it takes too long, the client reconnects, resends everything, and waits again.
        """
        held = self._held("another transaction that sent the same messages is still open")
        self._hold(run, held, by_rate=False)
        self._connection.go_on(self)  # reading may have stopped because of the rate
        deduplication.when_decided(txn_id, partial(self._go_on, held))

    def _rest_if_much(self, held: HeldRuns) -> None:
        if held.size_bytes > _HELD_WHILE_READING_BYTES:
            self._connection.rest(self)

    def _go_on_at_rate(self, held: HeldRuns) -> None:
        self._go_on(held)
        if self.held is None or self.held.size_bytes <= _HELD_WHILE_READING_BYTES:
            self._connection.go_on(self)

    def _go_on(self, held: HeldRuns) -> None:
        if self.held is not held:
            return
        runs, complete = held.take()
        self.held = None
        if not complete:
            self._start_over("too many messages are waiting to be published")
            return
        for run in runs:
            if self._connection.producers.get(run.producer_id) is not self:
                return  # just closed by the broker; the client resends after reconnecting
            self.send(run)

    async def sent_at_rate(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(HOLD_S):
                while self.held is not None and self.held.by_rate:
                    await self.held.taken()

    # -- receipts and refusals

    def refuse_in_order(self, run: SendRun, error: PulsarError) -> None:
        if self.held is not None:  # an earlier message waits: check this run again after it
            self.held.keep(run)
            return
        if (deduplication := self.topic.deduplication) is not None:
            name = self.producer.name
            deduplication.refused_all(name, run, self._services.examinations)
        self._in_order(partial(refuse, self._connection, run, error))

    def _not_stored(self, run: SendRun, error: Exception | None) -> None:
        if isinstance(error, PersistenceError):  # later messages must not overtake this one
            self.later_answers = None
            self._start_over(str(error))
        elif not isinstance(error, ServiceNotReady | TopicTerminated):
            # After those two the producer is closed next; the client resends or gets the reason.
            refuse(self._connection, run, error)

    def _start_over(self, reason: str) -> None:
        topic, producer = self.topic, self.producer
        topic.tasks.start(topic.producers.remove(producer), "producer starts over")
        self._connection.close_producer(producer, reason)

    def _answer_duplicate(self, run: SendRun, duplicate: Duplicate) -> None:
        """`run` is only the duplicate. Its answer follows those of earlier messages, once the first
        copy is durable.
        """

        def answer(error: Exception | None) -> None:
            if error is not None:
                self._not_stored(run, error)
                return
            (lowest,), (highest,) = run.sequence_ids(), run.highest_sequence_ids()
            self._connection.write(commands.duplicate_receipt(run.producer_id, lowest, highest))

        self._in_order(partial(duplicate.when_durable, answer))

    def _in_order(self, answer: Callable[[], None]) -> None:
        """Clients expect answers in sending order."""
        if self.later_answers is None:
            answer()
        else:
            self.later_answers.append(answer)

    async def all_answered(self) -> None:
        if self.later_answers is not None:
            self.later_answers.append((answered := asyncio.Event()).set)
            await answered.wait()


class _PublishRoom(HeldRoom):
    """Counts waiting SENDs as being written, for back-pressure: they wait only for one write."""

    def __init__(self, session: Connection) -> None:
        super().__init__()
        self._session = session

    def take(self, size_bytes: int) -> bool:
        self._session.spend_budget(size_bytes)
        return True

    def give_back(self, size_bytes: int) -> None:
        self._session.services.budget.give_back(size_bytes)


def _joining(session: Connection, topic: TopicName, txn_id: TxnId) -> Joined | None:
    """None: the topic already takes part, or the SEND will get an error. Raises AuthorizationError
    or TransactionNotFound (the transaction belongs to another principal), NotAllowed (no room).
    """
    if session.login is not None:
        check_owner(session, txn_id)
    joins = session.services.coordinators.joining
    if not joins.are_any:
        return None
    return joins.partition(txn_id, topic, ConnectionJoins(session))


def refuse(session: Connection, run: SendRun, error: Exception | None) -> None:
    assert isinstance(error, PulsarError)
    final = as_final(session.client_version, error)
    for sequence_id in run.sequence_ids():
        session.write(commands.send_error(run.producer_id, sequence_id, final))


def refuse_damaged(session: Connection, damaged: BadChecksum) -> None:
    """Refuses the message. Later ones are stored before the client sends it again."""
    slot = session.producers.get(damaged.producer_id)
    if slot is not None and (deduplication := slot.topic.deduplication) is not None:
        ids = damaged.sequence_id, damaged.highest_sequence_id
        deduplication.refused(slot.producer.name, *ids)
    error = ChecksumError(f"Message {damaged.sequence_id} does not match its CRC32C")
    session.write(commands.send_error(damaged.producer_id, damaged.sequence_id, error))
