"""One connection: bytes in, handlers by command, output in one piece per tick.

The inbox parses a chunk, a limited number of commands per turn. Runs of SENDs, ACK and FLOW are
handled on the spot; a handler that may wait (for a topic to load, for a transaction's log) runs in
a task of the session: see `command_runner.py`. While the outbox is full, too many requests are in
progress, or a long command is processed in pieces, received commands wait.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Final

from pybroker.broker.client_topics import ServedSubscription, ServedTopic
from pybroker.broker.persistent.entry_metadata import plain
from pybroker.broker.persistent.producers import Producer
from pybroker.broker.subscriptions.consumer import Consumer
from pybroker.security.identity import Certificate
from pybroker.server.connections.command_runner import CommandRunner
from pybroker.server.connections.inbox import Inbox, Pause
from pybroker.server.connections.live_login import LiveLogin
from pybroker.server.connections.outbox import Outbox, Waking
from pybroker.server.connections.requests import Requests
from pybroker.server.connections.slots import ConsumerSlot, ProducerSlot
from pybroker.server.connections.watching import Watching
from pybroker.server.handler import Handler
from pybroker.server.publishing.sends import Sends, refuse_damaged
from pybroker.server.services import Services
from pybroker.server.transactions.added_participants import AddedParticipants
from pybroker.server.transactions.begun_transactions import BegunTransactions
from pybroker.server.transactions.transactional_session import TransactionalSession
from pybroker.transaction.coordinator.sessions.transactional_ids import TransactionalId
from pybroker.wire import commands
from pybroker.wire.connection_state import ConnectionState
from pybroker.wire.frames import (
    BadChecksum,
    CommandBody,
    CommandFrame,
    Event,
    ProtocolError,
    encode_command,
)

log = logging.getLogger("pybroker.session")

_CLOSE_TIMEOUT_S: Final = 5.0  # for a peer that does not read the rest
LEAVING_A_TURN: Final = 500  # of these are removed, after the connection is lost

# How the versions of clients begin that handle REACHED_END_OF_TOPIC; others close the connection.
_KNOW_THE_END: Final = ("Pulsar-Java", "pulsar-rs", "pybroker")


class Session(asyncio.BufferedProtocol):
    """`admit` may refuse and close a connection; for an admitted one, `logged_in` is called after
    authentication, and `forget` at its end.
    """

    def __init__(
        self,
        services: Services,
        handlers: Mapping[int, Handler],
        admit: Callable[["Session", asyncio.Transport, str], bool],
        logged_in: Callable[["Session"], None],
        forget: Callable[["Session"], None],
    ) -> None:
        self.services = services
        self.number = next(services.connection_numbers)
        self.state = ConnectionState.AWAITING_CONNECT
        self.protocol_version = 0
        self.client_version = ""
        self.sees_entry_metadata = False
        self.supports_partial_producer = False
        self.login: LiveLogin | None = None
        self.producers: dict[int, ProducerSlot] = {}
        self.consumers: dict[int, ConsumerSlot] = {}
        self.watchers: dict[int | str, Watching] = {}
        self.begun = BegunTransactions(services.coordinators)
        self.added = AddedParticipants(services.coordinators)
        self.sessions: dict[TransactionalId, TransactionalSession] = {}
        self.writable = True
        self.peer = ""
        self._admit = admit
        self._logged_in = logged_in
        self._forget = forget
        self._too_fast: dict[ProducerSlot, None] = {}
        self._heard = True  # received anything since the last keep-alive check
        self._asked = False  # sent a PING since then
        self._transport: asyncio.Transport | None = None
        self._inbox = Inbox(self._handle_event, self._refuse_bytes, services.frames)
        self.requests = Requests(
            partial(self._inbox.pause, Pause.TASKS), partial(self._inbox.resume, Pause.TASKS)
        )
        long = partial(self._inbox.pause, Pause.LONG), partial(self._inbox.resume, Pause.LONG)
        self._commands = CommandRunner(handlers, self.requests, *long)
        self._outbox = Outbox(services.outboxes)
        self._waking = Waking(lambda: self.writable)
        self._resumed: asyncio.Future[None] | None = None  # set while there is a waiter
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        # First the handshake timeout, at the end the closing timeout.
        self._timer: asyncio.TimerHandle | None = None

    # -- asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._inbox.open(transport)
        self._outbox.open(transport)
        peer = transport.get_extra_info("peername")
        self.peer = f"{peer[0]}:{peer[1]}" if peer else "unknown"
        if not self._admit(self, transport, peer[0] if peer else "unknown"):
            self.state = ConnectionState.CLOSED
            return
        timeout_s = self.services.config.handshake_timeout_ms / 1000
        self._timer = self._loop.call_later(timeout_s, self._handshake_timed_out)

    def get_buffer(self, sizehint: int) -> memoryview:
        # One buffer for all sessions: filled and emptied within one callback.
        return self.services.receive_buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._heard = True
        self._inbox.receive(self.services.receive_buffer[:nbytes])

    def _refuse_bytes(self, error: ProtocolError) -> None:
        self.close(f"protocol error: {error}")

    def _handle_event(self, event: Event) -> None:
        if isinstance(event, CommandFrame):
            self._commands.run(self, self.state, event.command, event.size_bytes)
        elif self.state is not ConnectionState.CONNECTED:
            raise ProtocolError(f"SEND came while the connection was {self.state.name}")
        elif isinstance(event, BadChecksum):
            refuse_damaged(self, event)
        elif slot := self.producers.get(event.producer_id):
            slot.send(event)  # else the broker has just closed it, and the client resends

    def pause_writing(self) -> None:
        self.writable = False
        self._inbox.pause(Pause.OUTBOX)

    def resume_writing(self) -> None:
        self.writable = True
        self._end_waiting()
        self._outbox.drained()
        self._inbox.resume(Pause.OUTBOX)
        self._waking.wake(slot.subscription for slot in self.consumers.values())

    def connection_lost(self, error: Exception | None) -> None:
        self.state = ConnectionState.CLOSED
        self.writable = False
        self._end_waiting()
        self._cancel_timer()
        self._inbox.close()
        self._outbox.close()
        self._waking.close()
        self.services.budget.forget(self._resume_budget)
        for watcher in self.watchers.values():
            watcher.end()
        self.watchers.clear()
        if self.sessions:
            self.services.sessions.left(self)
        for producer_slot in self.producers.values():
            producer_slot.forget_held()
        self.begun.leave(self.services.disconnections.left)
        self._forget(self)
        self._remove_all(self._removals())

    def _removals(self) -> Iterator[None]:
        for consumer_id, slot in list(self.consumers.items()):
            slot.subscription.remove_consumer(slot.consumer)
            self.consumers.pop(consumer_id, None)
            yield
        producers, self.producers = self.producers, {}
        for left in producers.values():
            left.topic.tasks.start(left.topic.producers.remove(left.producer), "producer gone")
            yield

    def _remove_all(self, leaving: Iterator[None]) -> None:
        """Removes LEAVING_A_TURN producers and consumers; the others follow in the next turns."""
        if sum(1 for _ in islice(leaving, LEAVING_A_TURN)) == LEAVING_A_TURN:
            self._loop.call_soon(self._remove_all, leaving)
        else:
            self.ended.set_result(None)

    @property
    def closed(self) -> bool:
        return self.state is ConnectionState.CLOSED

    @property
    def broker_urls(self) -> tuple[str, str]:
        """The broker's URLs, without TLS and with it: as configured, else with the host that this
        connection used; a client's own within this process. Empty if it does not listen there.
        """
        assert self._transport is not None
        if (within := self._transport.get_extra_info("service_url")) is not None:
            return within, within
        services, name = self.services, self._transport.get_extra_info("sockname")
        host = services.config.advertised(name[0])
        return _url("pulsar", host, services.port), _url("pulsar+ssl", host, services.port_tls)

    @property
    def address(self) -> str:
        return self.peer.rpartition(":")[0]

    @property
    def certificate(self) -> Certificate | None:
        """The client's certificate, if it sent one over TLS."""
        transport = self._transport
        return None if transport is None else transport.get_extra_info("peercert")

    @property
    def owner(self) -> str | None:
        """The owner of transactions begun on this connection."""
        return None if self.login is None else self.login.identity.acting

    @property
    def principal(self) -> str | None:
        """The principal whose transactions this connection may change; None: any principal's."""
        return None if self.login is None or self.login.is_super_user else self.owner

    def add_producer(self, topic: ServedTopic, producer: Producer) -> None:
        self.producers[producer.producer_id] = Sends(self, topic, producer)

    def add_consumer(
        self, topic: ServedTopic, subscription: ServedSubscription, consumer: Consumer
    ) -> None:
        self.consumers[consumer.consumer_id] = ConsumerSlot(
            topic, subscription, consumer, self.sees_entry_metadata
        )

    # -- writing

    def write(self, data: bytes) -> None:
        """Sends `data` together with everything else of this tick."""
        self._outbox.write(data)

    def send_command(self, body: CommandBody) -> None:
        self.write(encode_command(body))

    async def until_writable(self) -> None:
        while not self.writable and not self.closed:
            if self._resumed is None:
                self._resumed = self._loop.create_future()
            await asyncio.shield(self._resumed)

    def _end_waiting(self) -> None:
        if self._resumed is not None:
            self._resumed.set_result(None)
            self._resumed = None

    # -- back-pressure

    def spend_budget(self, size_bytes: int) -> None:
        if not self.services.budget.take(size_bytes, self._resume_budget):
            self._inbox.pause(Pause.BUDGET)

    @property
    def throttled(self) -> bool:
        """Whether reading is paused because the connection publishes too fast."""
        return self._inbox.throttled

    def _resume_budget(self) -> None:
        self._inbox.resume(Pause.BUDGET)

    def rest(self, slot: ProducerSlot) -> None:
        """A producer is too fast for its topic: pause reading until none is."""
        self._too_fast[slot] = None
        self._inbox.pause(Pause.RATE)

    def go_on(self, slot: ProducerSlot) -> None:
        if self._too_fast.pop(slot, slot) is None and not self._too_fast:
            self._inbox.resume(Pause.RATE)

    # -- life of the connection

    def write_pong(self) -> None:
        self.write(commands.PONG)

    def check_alive(self) -> None:
        """Call every keep-alive interval: silence causes a PING, then closes the connection. Who
        reads slowly is not silent, although its bytes are not read meanwhile.
        """
        is_reading = self._outbox.is_being_read()
        if self._inbox.is_stuck():
            self.close("a frame took longer than two keep-alive intervals")
        elif self._heard or is_reading or self._inbox.deaf:
            self._heard = self._asked = False
        elif not self._asked:
            self._asked = True
            self.write(commands.PING)
        else:
            self.close("silent for two keep-alive intervals")

    def connected(self) -> None:
        self.state = ConnectionState.CONNECTED
        self._logged_in(self)
        self._cancel_timer()
        self._inbox.connected(self.services.config.max_message_size)

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
        if slot.plain_only:
            entries = plain(entries)
        if redelivery_counts is None and unacked_indexes is None:
            self.write(slot.frames.encode(ledger_id, entry_ids, entries))
        else:
            self.write(
                slot.frames.encode_again(
                    ledger_id, entry_ids, entries, redelivery_counts, unacked_indexes
                )
            )
        now_ms = self.services.clock.now_ms()
        consumer.times.sent(now_ms)
        slot.subscription.times.sent(now_ms)

    def active_consumer_changed(self, consumer: Consumer, is_active: bool) -> None:
        if self.protocol_version >= 12 and not self.closed:
            self.write(commands.active_consumer_change(consumer.consumer_id, is_active))

    def reached_end_of_topic(self, consumer: Consumer) -> None:
        if self.client_version.startswith(_KNOW_THE_END):
            self.write(commands.reached_end_of_topic(consumer.consumer_id))

    def close_consumer(self, consumer: Consumer, reason: str) -> None:
        slot = self.consumers.get(consumer.consumer_id)
        if slot is None or slot.consumer is not consumer:
            return
        del self.consumers[consumer.consumer_id]
        self.tell_consumer_closed(consumer)

    def tell_consumer_closed(self, consumer: Consumer) -> None:
        self.write(commands.close_consumer(consumer.consumer_id))

    def forget_producer(self, producer: Producer) -> bool:
        """Returns whether the producer belonged to this connection."""
        slot = self.producers.get(producer.producer_id)
        if slot is None or slot.producer is not producer:
            return False
        del self.producers[producer.producer_id]
        slot.forget_held()
        return True

    def close_producer(self, producer: Producer, reason: str) -> None:
        """Tells the client after the pending receipts: otherwise it would resend those messages."""
        slot = self.producers.get(producer.producer_id)
        if slot is None or not self.forget_producer(producer):
            return
        closing = partial(self.write, commands.close_producer(producer.producer_id))
        if slot.later_answers is None:
            closing()
        else:
            slot.later_answers.append(closing)

    # -- closing

    async def finish(self) -> None:
        """Takes no more requests; returns when pending ones are answered."""
        self._inbox.pause(Pause.STOPPING)
        await self.requests.ended()
        while self._inbox.behind:
            await self._inbox.caught_up()
            await self.requests.ended()

    def close(self, reason: str) -> None:
        """Writes pending data, then closes; `connection_lost` does the rest."""
        if self.state is ConnectionState.CLOSED:
            return
        log.info("closing %s: %s", self.peer, reason)
        self.state = ConnectionState.CLOSED
        self.writable = False
        self._outbox.flush()
        if self._transport is not None:
            self._cancel_timer()
            self._timer = self._loop.call_later(_CLOSE_TIMEOUT_S, self._transport.abort)
            self._transport.close()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


def _url(scheme: str, host: str, port: int | None) -> str:
    if port is None:
        return ""
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
