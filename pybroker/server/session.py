"""One connection: bytes in, handlers by command, everything written in one piece a tick.

`_received` parses a chunk, a limited number of commands a turn. Runs of SENDs, ACK and FLOW are
handled on the spot; what may wait (loading a topic, a transaction's log) runs in a task of the
session. Commands about the same producer or consumer are handled one after the other, in the order
they came. While the outbox is full, while too much is going on, or while a long command is worked
off a little at a time, nothing more is handled, and what was received waits.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Final

from pybroker.broker.consumer import Consumer
from pybroker.broker.producers import Producer
from pybroker.broker.subscription import Subscription
from pybroker.broker.topic import Topic
from pybroker.errors import ChecksumError, PulsarError, ServiceNotReady
from pybroker.runtime import Tasks
from pybroker.server import on_produce
from pybroker.server.handlers import HANDLERS, Handler
from pybroker.server.held_runs import HeldRuns
from pybroker.server.services import Services
from pybroker.wire import commands
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.connection_state import ACCEPTED, ConnectionState
from pybroker.wire.frames import (
    BadChecksum,
    CommandFrame,
    Event,
    FrameDecoder,
    ProtocolError,
    SendRun,
    encode_frame,
)

log = logging.getLogger("pybroker.session")

_WRITE_HIGH_BYTES: Final = 1024 * 1024
_CLOSE_TIMEOUT_S: Final = 5.0  # for a peer that does not read what is left for it
_MAX_HANDSHAKE_BYTES: Final = 64 * 1024
_EVENTS_A_TURN: Final = 64
_MAX_TASKS: Final = 1000
_MAX_COMMAND_BYTES_AT_HAND: Final = 2 * 1024 * 1024
_MAX_PRODUCERS_AND_CONSUMERS: Final = 20_000

# Why the socket is not being read.
_BUDGET, _OUTBOX, _TASKS = "publish budget", "slow reader", "too many requests at once"
_LONG, _BEHIND = "a long command", "more than one turn's work"
_STOPPING: Final = "the broker shuts down"
# For these reasons nothing of what was received is handled either.
_HOLDING: Final = frozenset({_OUTBOX, _TASKS, _LONG})
# Clients, by their versions, that handle REACHED_END_OF_TOPIC; others close the connection on it.
_KNOW_THE_END: Final = ("Pulsar-Java", "pulsar-rs")
_WITHOUT_TEXT: Final = frozenset({pb.BaseCommand.ACK, pb.BaseCommand.FLOW})  # the frequent ones


class ProducerSlot:
    """A producer and its topic, as this connection knows them."""

    __slots__ = ("behind", "held", "producer", "topic")

    def __init__(self, topic: Topic, producer: Producer) -> None:
        self.topic = topic
        self.producer = producer
        # Answers that wait for the last published run to be answered; None if it is.
        self.behind: list[Callable[[], None]] | None = None
        self.held: HeldRuns | None = None  # what may not be published yet

    def forget_held(self) -> None:
        """The client has it still, and sends it again if it comes back."""
        if self.held is not None:
            self.held.take()
            self.held = None


class ConsumerSlot:
    __slots__ = ("consumer", "frames", "subscription", "topic")

    def __init__(self, topic: Topic, subscription: Subscription, consumer: Consumer) -> None:
        self.topic = topic
        self.subscription = subscription
        self.consumer = consumer
        self.frames = commands.MessageFrames(consumer.consumer_id, topic.name.partition)


class Session(asyncio.BufferedProtocol):
    """`admit` may refuse a connection by its address; `forget` hears of an admitted one's end."""

    def __init__(
        self,
        services: Services,
        admit: Callable[["Session", str], bool],
        forget: Callable[["Session"], None],
    ) -> None:
        self.services = services
        self.number = next(services.connection_numbers)
        self.state = ConnectionState.AWAITING_CONNECT
        self.protocol_version = 0
        self.client_version = ""
        self.principal: str | None = None
        self.producers: dict[int, ProducerSlot] = {}
        self.consumers: dict[int, ConsumerSlot] = {}
        self.writable = True
        self.peer = ""
        self.tasks = Tasks("session")
        self._admit = admit
        self._forget = forget
        self._heard = True  # since the last keep-alive check
        self._asked = False  # by a PING since then
        # Until CONNECT is answered one command at a time, and no large one.
        self._decoder = FrameDecoder(_MAX_HANDSHAKE_BYTES, events_a_turn=1)
        self._transport: asyncio.Transport | None = None
        self._outbox: list[bytes] = []
        self._flushing = False
        self._paused: set[str] = set()
        self._waiting: list[Event] = []  # received and not handled
        self._going_on = False  # `_go_on` is about to be called
        self._caught_up: asyncio.Future[None] | None = None  # for who waits until nothing waits
        self._last_of: dict[tuple[str, int], asyncio.Task[Any]] = {}
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        # Of the handshake first, of closing at the end.
        self._timer: asyncio.TimerHandle | None = None

    # -- asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=_WRITE_HIGH_BYTES)
        peer = transport.get_extra_info("peername")
        self.peer = f"{peer[0]}:{peer[1]}" if peer else "unknown"
        if not self._admit(self, peer[0] if peer else "unknown"):
            self.state = ConnectionState.CLOSED
            transport.abort()
            return
        timeout_s = self.services.config.handshake_timeout_ms / 1000
        self._timer = self._loop.call_later(timeout_s, self._handshake_timed_out)

    def get_buffer(self, sizehint: int) -> memoryview:
        # One buffer for all sessions: it is filled and emptied within one callback.
        return self.services.receive_buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._received(bytes(self.services.receive_buffer[:nbytes]))

    def _received(self, data: bytes) -> None:
        self._heard = True
        try:
            self._handle_all(self._decoder.receive(data))
        except ProtocolError as error:
            self.close(f"protocol error: {error}")

    def _handle_all(self, events: list[Event]) -> None:
        for index, event in enumerate(events):
            self._handle_event(event)
            if self._paused and not self._paused.isdisjoint(_HOLDING):
                self._waiting = events[index + 1 :]
                break
        if self._waiting or self._decoder.behind:
            self.pause_reading(_BEHIND)
            self._go_on_soon()
        elif _BEHIND in self._paused:
            self._end_behind()

    def _handle_event(self, event: Event) -> None:
        if isinstance(event, SendRun):
            self._require(ConnectionState.CONNECTED, "SEND")
            on_produce.send(self, event)
        elif isinstance(event, CommandFrame):
            self._handle(event.command)
        else:
            self._require(ConnectionState.CONNECTED, "SEND")
            self._refuse_checksum(event)

    def _go_on_soon(self) -> None:
        if not self._going_on and self._paused.isdisjoint(_HOLDING):
            self._going_on = True
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """With what was received and not handled yet."""
        self._going_on = False
        if self.closed:
            self._end_behind()
        elif self._paused.isdisjoint(_HOLDING):
            events, self._waiting = self._waiting, []
            try:
                self._handle_all(events or self._decoder.receive(b""))
            except ProtocolError as error:
                self.close(f"protocol error: {error}")

    def _end_behind(self) -> None:
        self._waiting = []
        self.resume_reading(_BEHIND)
        if self._caught_up is not None:
            self._caught_up.set_result(None)
            self._caught_up = None

    def pause_writing(self) -> None:
        self.writable = False
        self.pause_reading(_OUTBOX)

    def resume_writing(self) -> None:
        self.writable = True
        self.resume_reading(_OUTBOX)
        for slot in list(self.consumers.values()):
            slot.subscription.notify()

    def connection_lost(self, error: Exception | None) -> None:
        self.state = ConnectionState.CLOSED
        self.writable = False
        self._cancel_timer()
        self._end_behind()
        self.services.budget.forget(self._resume_budget)
        for slot in list(self.consumers.values()):
            slot.subscription.remove_consumer(slot.consumer)
        self.consumers.clear()
        producers, self.producers = self.producers, {}
        for producer_slot in producers.values():
            producer_slot.forget_held()
            topic = producer_slot.topic
            topic.tasks.start(topic.producers.remove(producer_slot.producer), "producer gone")
        self._forget(self)
        self.ended.set_result(None)

    @property
    def closed(self) -> bool:
        return self.state is ConnectionState.CLOSED

    @property
    def broker_url(self) -> str:
        """Where this broker is found: as configured, else where this connection found it."""
        assert self._transport is not None
        host, port = self._transport.get_extra_info("sockname")[:2]
        host = self.services.config.advertised(host)
        return f"pulsar://[{host}]:{port}" if ":" in host else f"pulsar://{host}:{port}"

    def add_producer(self, topic: Topic, producer: Producer) -> None:
        self.producers[producer.producer_id] = ProducerSlot(topic, producer)

    def add_consumer(self, topic: Topic, subscription: Subscription, consumer: Consumer) -> None:
        self.consumers[consumer.consumer_id] = ConsumerSlot(topic, subscription, consumer)

    # -- writing

    def write(self, data: bytes) -> None:
        """Goes out with everything else of this tick."""
        self._outbox.append(data)
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def send_command(self, command: pb.BaseCommand) -> None:
        self.write(encode_frame(command))

    def _flush(self) -> None:
        self._flushing = False
        outbox, self._outbox = self._outbox, []
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(outbox[0] if len(outbox) == 1 else b"".join(outbox))

    # -- reading

    def pause_reading(self, why: str) -> None:
        if not self._paused and self._transport is not None:
            self._transport.pause_reading()
        self._paused.add(why)

    def resume_reading(self, why: str) -> None:
        self._paused.discard(why)
        if _BEHIND in self._paused:
            self._go_on_soon()
        elif not self._paused and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def spend_budget(self, size_bytes: int) -> None:
        if not self.services.budget.take(size_bytes, self._resume_budget):
            self.pause_reading(_BUDGET)

    def _resume_budget(self) -> None:
        self.resume_reading(_BUDGET)

    # -- commands

    def _require(self, state: ConnectionState, command: str) -> None:
        if self.state is not state:
            raise ProtocolError(f"{command} came while the connection was {self.state.name}")

    def _handle(self, command: pb.BaseCommand) -> None:
        kind = command.type
        if kind not in ACCEPTED[self.state]:
            raise ProtocolError(
                f"command type {kind} is not accepted while the connection is {self.state.name}"
            )
        handler = HANDLERS[kind]
        if not command.HasField(handler.field):
            raise ProtocolError(f"command type {kind} came without its body")
        body = getattr(command, handler.field)
        if kind not in _WITHOUT_TEXT and commands.has_invalid_text(body):
            raise ProtocolError(f"{handler.field} holds text that is not UTF-8")
        if handler.immediate is not None:
            self._run_now(handler, body)
        else:
            self._start(handler, body)

    def _run_now(self, handler: Handler, body: Any) -> None:
        assert handler.immediate is not None
        try:
            rest = handler.immediate(self, body)
        except PulsarError as error:
            handler.answer_error(self, body, error)
        else:
            if rest is not None:
                self.pause_reading(_LONG)
                work = self._run_guarded(handler, body, rest)
                task = self.tasks.start(work, handler.field)
                task.add_done_callback(lambda _: self.resume_reading(_LONG))

    def _start(self, handler: Handler, body: Any) -> None:
        if len(self.producers) + len(self.consumers) > _MAX_PRODUCERS_AND_CONSUMERS:
            raise ProtocolError("too many producers and consumers on one connection")
        key = handler.ordered_by(body) if handler.ordered_by else None
        before = self._last_of.get(key) if key else None
        task = self.start_task(self._run(handler, body, before), handler.field)
        if key is not None:
            self._last_of[key] = task
            task.add_done_callback(lambda ended: self._forget_order(key, ended))

    def start_task(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """A handler's work, or the rest of an immediate one's; it answers its own errors."""
        task = self.tasks.start(work, name)
        if len(self.tasks) >= _MAX_TASKS:
            self.pause_reading(_TASKS)
        task.add_done_callback(self._task_ended)
        return task

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if _TASKS in self._paused and len(self.tasks) <= _MAX_TASKS // 2:
            self.resume_reading(_TASKS)

    def _forget_order(self, key: tuple[str, int], task: asyncio.Task[Any]) -> None:
        if self._last_of.get(key) is task:
            del self._last_of[key]

    async def _run(self, handler: Handler, body: Any, before: asyncio.Task[Any] | None) -> None:
        if before is not None and not before.done():
            await asyncio.wait([before])
        assert handler.deferred is not None
        await self._run_guarded(handler, body, handler.deferred(self, body))

    async def _run_guarded(self, handler: Handler, body: Any, work: Awaitable[None]) -> None:
        """Errors become answers."""
        try:
            await work
        except PulsarError as error:
            handler.answer_error(self, body, error)
        except Exception as error:
            log.exception("%s from %s failed", handler.field, self.peer)
            wrapped = ServiceNotReady(f"The broker failed to handle it: {error!r}; try again")
            handler.answer_error(self, body, wrapped)

    def _refuse_checksum(self, event: BadChecksum) -> None:
        error = ChecksumError(f"Message {event.sequence_id} does not match its CRC32C")
        self.write(commands.send_error(event.producer_id, event.sequence_id, error))

    def write_pong(self) -> None:
        self.write(commands.PONG)

    def check_alive(self) -> None:
        """Once a keep-alive interval: silence is asked about once, then it ends the connection."""
        if self._heard:
            self._heard = self._asked = False
        elif not self._asked:
            self._asked = True
            self.write(commands.PING)
        else:
            self.close("silent for two keep-alive intervals")

    def connected(self) -> None:
        self.state = ConnectionState.CONNECTED
        self._cancel_timer()
        self._decoder.allow(self.services.config.max_message_size)
        self._decoder.events_a_turn = _EVENTS_A_TURN

    def _handshake_timed_out(self) -> None:
        if self.state is ConnectionState.AWAITING_CONNECT:
            self.close("no CONNECT within the handshake timeout")

    # -- what topics and subscriptions see (ProducerOwner, ConsumerSink)

    def deliver(
        self,
        consumer: Consumer,
        ledger_id: int,
        entry_ids: Sequence[int],
        entries: Sequence[bytes],
        redelivery_counts: Sequence[int] | None,
        unacked_indexes: Mapping[int, tuple[int, int]] | None,
    ) -> None:
        slot = self.consumers.get(consumer.consumer_id)
        if slot is None or slot.consumer is not consumer:
            return
        if redelivery_counts is None and unacked_indexes is None:
            self.write(slot.frames.encode(ledger_id, entry_ids, entries))
        else:
            self.write(
                slot.frames.encode_again(
                    ledger_id, entry_ids, entries, redelivery_counts, unacked_indexes
                )
            )

    def active_consumer_changed(self, consumer: Consumer, is_active: bool) -> None:
        if self.protocol_version >= 12:
            change = pb.CommandActiveConsumerChange(
                consumer_id=consumer.consumer_id, is_active=is_active
            )
            self.send_command(
                pb.BaseCommand(
                    type=pb.BaseCommand.ACTIVE_CONSUMER_CHANGE, active_consumer_change=change
                )
            )

    def reached_end_of_topic(self, consumer: Consumer) -> None:
        if self.client_version.startswith(_KNOW_THE_END):
            end = pb.CommandReachedEndOfTopic(consumer_id=consumer.consumer_id)
            self.send_command(
                pb.BaseCommand(type=pb.BaseCommand.REACHED_END_OF_TOPIC, reachedEndOfTopic=end)
            )

    def close_consumer(self, consumer: Consumer, reason: str) -> None:
        slot = self.consumers.get(consumer.consumer_id)
        if slot is None or slot.consumer is not consumer:
            return
        del self.consumers[consumer.consumer_id]
        closing = pb.CommandCloseConsumer(consumer_id=consumer.consumer_id, request_id=2**64 - 1)
        self.send_command(
            pb.BaseCommand(type=pb.BaseCommand.CLOSE_CONSUMER, close_consumer=closing)
        )

    def forget_producer(self, producer: Producer) -> bool:
        """Whether it was one of this connection's."""
        slot = self.producers.get(producer.producer_id)
        if slot is None or slot.producer is not producer:
            return False
        del self.producers[producer.producer_id]
        slot.forget_held()
        return True

    def close_producer(self, producer: Producer, reason: str) -> None:
        if not self.forget_producer(producer):
            return
        closing = pb.CommandCloseProducer(producer_id=producer.producer_id, request_id=2**64 - 1)
        self.send_command(
            pb.BaseCommand(type=pb.BaseCommand.CLOSE_PRODUCER, close_producer=closing)
        )

    # -- closing

    async def finish(self) -> None:
        """Take no more requests; returns when those at hand are answered."""
        self.pause_reading(_STOPPING)
        await self.tasks.ended()
        while _BEHIND in self._paused:
            self._caught_up = self._loop.create_future()
            await asyncio.shield(self._caught_up)
            await self.tasks.ended()

    def close(self, reason: str) -> None:
        """Write what is due, then close; `connection_lost` does the rest."""
        if self.state is ConnectionState.CLOSED:
            return
        log.info("closing %s: %s", self.peer, reason)
        self.state = ConnectionState.CLOSED
        self.writable = False
        if self._outbox:
            self._flush()
        if self._transport is not None:
            self._cancel_timer()
            self._timer = self._loop.call_later(_CLOSE_TIMEOUT_S, self._transport.abort)
            self._transport.close()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
