"""A session whose steps pass the fault points, for brokers that have any.

SENDs and deliveries pass one by one and in order: while one waits at a point, later messages of the
same producer, or later deliveries to the same consumer, wait too.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

from managed_ledger.position import Position
from pybroker.base.errors import PulsarError
from pybroker.broker.persistent.publishing import Published
from pybroker.broker.subscriptions.consumer import Consumer
from pybroker.faults.lane import Lane, Lanes
from pybroker.faults.passing import Passing
from pybroker.faults.points import (
    DELIVER_AFTER,
    DELIVER_BEFORE,
    PUBLISH_AFTER_APPEND,
    PUBLISH_BEFORE_APPEND,
    PUBLISH_BEFORE_RECEIPT,
    STEPS,
    Action,
)
from pybroker.faults.rule import Rule
from pybroker.server.connections.connection import Connection
from pybroker.server.connections.inbox import Pause
from pybroker.server.connections.session import Session
from pybroker.server.connections.slots import ProducerSlot
from pybroker.server.faults import descriptions
from pybroker.server.handler import Handler
from pybroker.wire import commands
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.connection_state import ConnectionState
from pybroker.wire.frames import SIZES, Event, SendRun

_T: Final = pb.BaseCommand
_WITHOUT_ID: Final = {_T.CONNECT: _T.CONNECTED, _T.PING: _T.PONG}
# Answered by a first update, which names the watch.
_FIRST_UPDATES: Final = {
    _T.SCALABLE_TOPIC_LOOKUP: (_T.SCALABLE_TOPIC_UPDATE, "session_id"),
    _T.WATCH_SCALABLE_TOPICS: (_T.WATCH_SCALABLE_TOPICS_UPDATE, "watch_id"),
    _T.WATCH_TC_ASSIGNMENTS: (_T.WATCH_TC_ASSIGNMENTS_UPDATE, "watch_id"),
}
_ID_OF_UPDATE: Final[dict[int, str]] = dict(_FIRST_UPDATES.values())
_MAX_UNANSWERED: Final = 10_000
_LANE_BYTES: Final = 1024 * 1024  # waiting SENDs; then the socket is not read

AnswerKey = tuple[int, ...]


class _Unanswered(NamedTuple):
    kind: int
    handler: Handler
    body: Any
    passing: Passing | None  # of its arrival, if the command's points are watched


class FaultySession(Session):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        assert self.services.faults is not None
        self.faults = self.services.faults
        self._unanswered: dict[AnswerKey, _Unanswered] = {}
        self._sending = Lanes[ProducerSlot]()
        self._receipts = Lanes[ProducerSlot]()
        self._delivering = Lanes[Consumer]()
        self.waiting: dict[int, asyncio.Task[None]] = {}  # by consumer: its last waiting command
        self._instead: bytes | None = None  # replaces the next write

    def cut(self) -> None:
        """Closes without sending pending data."""
        if self.state is not ConnectionState.CLOSED:
            self.state = ConnectionState.CLOSED
            self.writable = False
            if self._transport is not None:
                self._transport.abort()

    # -- commands; see faulty_handlers

    def arrived(self, kind: int, handler: Handler, body: Any) -> Rule | None:
        """Called before a command is handled. Returns the rule that strikes, if any."""
        step, faults = STEPS[kind], self.faults
        if not (faults.watches(step.point_before) or faults.watches(step.point_after)):
            self._expect_answer(_Unanswered(kind, handler, body, None))
            return None
        passing = descriptions.of_command(self, kind, body, step.point_before)
        rule = faults.passing(passing)
        if rule is None or rule.action in (Action.DELAY, Action.HOLD):
            self._expect_answer(_Unanswered(kind, handler, body, passing))
        return rule

    def waited(self, consumer_id: int, ended: asyncio.Task[None]) -> None:
        if self.waiting.get(consumer_id) is ended:
            del self.waiting[consumer_id]

    def _expect_answer(self, asked: "_Unanswered") -> None:
        if not STEPS[asked.kind].after or len(self._unanswered) >= _MAX_UNANSWERED:
            return
        if (key := _key_of_command(asked.kind, asked.body)) is not None:
            self._unanswered[key] = asked

    def done_unasked(self, kind: int, body: Any) -> None:
        """Called after a command that has no answer was handled."""
        point, is_one = STEPS[kind].point_after, bool(STEPS[kind].after)
        if is_one and _key_of_command(kind, body) is None and self.faults.watches(point):
            rule = self.faults.passing(descriptions.of_command(self, kind, body, point))
            if rule is not None and rule.action is Action.CUT:
                self.cut()

    def write(self, data: bytes) -> None:
        if self.faults.has_crashed:
            return
        if self._instead is not None:
            data, self._instead = self._instead, None
            if not data:
                return
        elif self._unanswered:
            answer = _first_command(data)
            key = _key_of_answer(answer)
            expected = None if key is None else self._unanswered.pop(key, None)
            if expected is not None:
                self._answer(expected, answer, data)
                return
        super().write(data)

    def _answer(self, asked: "_Unanswered", answer: pb.BaseCommand, data: bytes) -> None:
        point = STEPS[asked.kind].point_after
        rule = None
        if self.faults.watches(point):
            known = asked.passing or descriptions.of_command(self, asked.kind, asked.body, point)
            passing = replace(known, point=point, struck="")
            _note_answer(passing, answer)
            rule = self.faults.passing(passing)
        if rule is None:
            super().write(data)
        elif rule.action is Action.CUT:
            self.cut()
        elif rule.action is Action.FAIL:
            asked.handler.answer_error(self, asked.body, rule.error())
        elif rule.action is not Action.DROP:
            rule.wait(partial(super().write, data))

    # -- publish

    def _handle_event(self, event: Event) -> None:
        if self.faults.has_crashed:
            return
        slot = None
        if isinstance(event, SendRun) and self.state is ConnectionState.CONNECTED:
            slot = self.producers.get(event.producer_id)
        if slot is None:
            super()._handle_event(event)
            return
        assert isinstance(event, SendRun)
        if slot not in self._sending and not self.faults.watches(PUBLISH_BEFORE_APPEND):
            super()._handle_event(event)
            return
        lane = self._sending.of(slot)
        for at, entry in enumerate(event.entries):
            lane.run(partial(self._send, lane, slot, event.part(at, at + 1)), len(entry))
        if lane.size_bytes > _LANE_BYTES:
            self._inbox.pause(Pause.FAULT)
        self._sending.tidy(slot)

    def _send(self, lane: Lane, slot: ProducerSlot, run: SendRun) -> None:
        passing = descriptions.of_messages(
            self,
            PUBLISH_BEFORE_APPEND,
            slot.topic.name,
            run.entries,
            messages=sum(run.message_counts),
        )
        rule = self.faults.passing(descriptions.published_by(passing, slot.producer, run.txn_id))
        if rule is None:
            self._send_on(lane, slot, run)
        elif rule.action is Action.FAIL:
            slot.refuse_in_order(run, rule.error())
        elif rule.action is Action.CUT:
            self.cut()
        elif rule.action is not Action.DROP:
            lane.wait(rule, partial(self._send_on, lane, slot, run))

    def _send_on(self, lane: Lane, slot: ProducerSlot, run: SendRun) -> None:
        if lane.size_bytes <= _LANE_BYTES // 2:
            self._inbox.resume(Pause.FAULT)
        if self.producers.get(run.producer_id) is slot and not self.closed:
            slot.send(run)

    def stored(
        self, slot: ProducerSlot, run: SendRun, published: Published, first: Position
    ) -> None:
        """`published` sends the receipt to the client."""
        lane = self._receipts.of(slot)
        lane.run(partial(self._pass_stored, lane, slot, run, published, first))
        self._receipts.tidy(slot)

    def _pass_stored(
        self, lane: Lane, slot: ProducerSlot, run: SendRun, published: Published, first: Position
    ) -> None:
        receipt = partial(self._pass_receipt, lane, slot, run, published, first)
        rule = self._pass_published(PUBLISH_AFTER_APPEND, slot, run, first)
        if rule is None:
            receipt()
        else:
            lane.wait(rule, receipt)

    def _pass_receipt(
        self, lane: Lane, slot: ProducerSlot, run: SendRun, published: Published, first: Position
    ) -> None:
        rule = self._pass_published(PUBLISH_BEFORE_RECEIPT, slot, run, first)
        tell = partial(published, first, None)
        if rule is not None and rule.action not in (Action.DROP, Action.CUT, Action.FAIL):
            lane.wait(rule, tell)
            return
        if rule is not None:
            self._instead = b""
            if rule.action is Action.FAIL:
                self._instead = _send_errors(run, rule.error())
        tell()
        self._instead = None
        if rule is not None and rule.action is Action.CUT:
            self.cut()

    def _pass_published(
        self, point: str, slot: ProducerSlot, run: SendRun, first: Position
    ) -> Rule | None:
        if not self.faults.watches(point):
            return None
        ledger_id, entry_id = first
        positions = [(ledger_id, entry_id + at) for at in range(len(run.entries))]
        passing = descriptions.of_messages(
            self, point, slot.topic.name, run.entries, positions, sum(run.message_counts)
        )
        return self.faults.passing(descriptions.published_by(passing, slot.producer, run.txn_id))

    # -- deliver

    def deliver(
        self,
        consumer: Consumer,
        ledger_id: int,
        entry_ids: Sequence[int],
        entries: Sequence[bytes],
        redelivery_counts: Sequence[int] | None,
        unacked_indexes: Mapping[int, tuple[int, int]] | None,
    ) -> None:
        watches = self.faults.watches(DELIVER_BEFORE) or self.faults.watches(DELIVER_AFTER)
        if consumer not in self._delivering and not watches:
            super().deliver(
                consumer, ledger_id, entry_ids, entries, redelivery_counts, unacked_indexes
            )
            return
        lane = self._delivering.of(consumer)
        for at, (entry_id, entry) in enumerate(zip(entry_ids, entries, strict=True)):
            counts = None if redelivery_counts is None else redelivery_counts[at : at + 1]
            deliver = partial(
                super().deliver, consumer, ledger_id, [entry_id], [entry], counts, unacked_indexes
            )
            passing = self._delivery(consumer, DELIVER_BEFORE, (ledger_id, entry_id), entry)
            if passing is None:
                deliver()  # the consumer is gone: nothing is sent
            else:
                lane.run(partial(self._deliver_one, lane, consumer, passing, deliver))
        self._delivering.tidy(consumer)

    def _delivery(
        self, consumer: Consumer, point: str, position: tuple[int, int], entry: bytes
    ) -> Passing | None:
        slot = self.consumers.get(consumer.consumer_id)
        if slot is None or slot.consumer is not consumer:
            return None
        passing = descriptions.of_messages(self, point, slot.topic.name, [entry], [position])
        passing.subscription = slot.subscription.name
        return passing

    def _deliver_one(
        self, lane: Lane, consumer: Consumer, passing: Passing, deliver: "partial[None]"
    ) -> None:
        rule = self.faults.passing(passing)
        go_on = partial(self._deliver_on, consumer, passing, deliver)
        if rule is None:
            go_on()
        elif rule.action is Action.CUT:
            self.cut()
        elif rule.action is not Action.DROP:
            lane.wait(rule, go_on)

    def _deliver_on(self, consumer: Consumer, passing: Passing, deliver: "partial[None]") -> None:
        if self.closed:
            return
        deliver()
        if not self.faults.watches(DELIVER_AFTER):
            return
        assert passing.position is not None
        delivered = self._delivery(consumer, DELIVER_AFTER, passing.position, passing.entries[0])
        if delivered is not None and self.faults.is_armed(DELIVER_AFTER):
            self._outbox.flush()  # before a rule strikes, so that a quick client has the message
        if delivered is not None and self.faults.passing(delivered) is not None:
            self.cut()


def receipting(
    session: Connection, slot: ProducerSlot, run: SendRun, published: Published
) -> Published:
    """`published`, after the fault points between a durable message and its receipt."""
    assert isinstance(session, FaultySession)

    def stored(first: Position | None, error: Exception | None) -> None:
        if first is None:
            published(first, error)
        else:
            session.stored(slot, run, published, first)

    return stored


def _send_errors(run: SendRun, error: PulsarError) -> bytes:
    return b"".join(
        commands.send_error(run.producer_id, sequence_id, error)
        for sequence_id in run.sequence_ids()
    )


def _first_command(data: bytes) -> pb.BaseCommand:
    _, size = SIZES.unpack_from(data)
    return pb.BaseCommand.FromString(data[SIZES.size : SIZES.size + size])


def _body_of(answer: pb.BaseCommand) -> Any:
    return next((value for field, value in answer.ListFields() if field.name != "type"), None)


def _key_of_command(kind: int, body: Any) -> AnswerKey | None:
    """None: the command has no answer."""
    if kind in _WITHOUT_ID:
        return (_WITHOUT_ID[kind],)  # type: ignore[index]
    if kind in _FIRST_UPDATES:
        update, field = _FIRST_UPDATES[kind]  # type: ignore[index]
        return update, getattr(body, field)
    if kind == _T.ACK and not body.HasField("request_id"):
        return (_T.ACK_RESPONSE, body.consumer_id) if body.HasField("txnid_least_bits") else None
    return (_T.SUCCESS, body.request_id) if hasattr(body, "request_id") else None


def _key_of_answer(answer: pb.BaseCommand) -> AnswerKey | None:
    if answer.type in _WITHOUT_ID.values():
        return (answer.type,)
    body = _body_of(answer)
    if answer.type in _ID_OF_UPDATE:
        return answer.type, getattr(body, _ID_OF_UPDATE[answer.type])
    if answer.type == _T.ACK_RESPONSE and not body.HasField("request_id"):
        return _T.ACK_RESPONSE, body.consumer_id
    return (_T.SUCCESS, body.request_id) if hasattr(body, "request_id") else None


def _note_answer(passing: Passing, answer: pb.BaseCommand) -> None:
    body = _body_of(answer)
    for field in ("error", "error_code"):
        if hasattr(body, field) and body.HasField(field):
            passing.error = pb.ServerError.Name(getattr(body, field))
            passing.detail = getattr(body, "message", "") or getattr(body, "error_message", "")
    if hasattr(body, "txnid_least_bits") and body.HasField("txnid_least_bits"):
        passing.transaction = descriptions.transaction_of(body)
    if answer.type == _T.PRODUCER_SUCCESS:
        passing.producer = body.producer_name
