"""One connection to a broker: frames in and out, answers matched to requests, keep-alive.

A request is a command body; the connection numbers it, wraps it and returns the answer's body or
raises the refusal. The numbers rise over all connections of a client: by them a broker tells a
consumer that returns from another process with the same names. Producers and consumers register
here and receive the broker's unsolicited commands. Frames written in one turn of the event loop
leave in one write.

When the connection breaks, every open request fails with ConnectError and every producer and
consumer is told once, by `detached`; the connection is not used again.
"""

import asyncio
import itertools
from collections.abc import Iterator
from typing import Any, Final, Protocol

from pybroker.client.connection.auth import Authentication
from pybroker.client.errors import ConnectError, Timeout, refusal
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.frames import (
    FIELD_NAMES,
    CommandBody,
    CommandFrame,
    ProtocolError,
    encode_command,
)
from pybroker.wire.message_run import ClientDecoder, MessageRun

CLIENT_VERSION: Final = "pybroker"
PROTOCOL_VERSION: Final = 21
KEEP_ALIVE_S: Final = 30.0
DEFAULT_MAX_MESSAGE_BYTES: Final = 5 * 1024 * 1024
# Frames may exceed the broker's message limit by what the broker itself adds.
_MAX_FRAME_BYTES: Final = 128 * 1024 * 1024

_Type = pb.BaseCommand
_ANSWERS: Final = {
    _Type.SUCCESS,
    _Type.ERROR,
    _Type.PRODUCER_SUCCESS,
    _Type.PARTITIONED_METADATA_RESPONSE,
    _Type.LOOKUP_RESPONSE,
    _Type.GET_LAST_MESSAGE_ID_RESPONSE,
    _Type.CONSUMER_STATS_RESPONSE,
    _Type.GET_TOPICS_OF_NAMESPACE_RESPONSE,
    _Type.GET_SCHEMA_RESPONSE,
    _Type.ACK_RESPONSE,
    _Type.TC_CLIENT_CONNECT_RESPONSE,
    _Type.NEW_TXN_RESPONSE,
    _Type.ADD_PARTITION_TO_TXN_RESPONSE,
    _Type.ADD_SUBSCRIPTION_TO_TXN_RESPONSE,
    _Type.END_TXN_RESPONSE,
    _Type.ASK_TOPICS_RESPONSE,
    _Type.PREPARE_TXN_RESPONSE,
    _Type.LIST_PREPARED_TXNS_RESPONSE,
    _Type.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE,
    _Type.ASK_TRANSACTION_RESPONSE,  # this one and the next ones are for brokers
    _Type.TRANSACTION_GROUP_RESPONSE,
    _Type.FENCE_SESSIONS_RESPONSE,
    _Type.KAFKA_TRANSACTION_RESPONSE,
    _Type.END_TXN_ON_PARTITION_RESPONSE,
    _Type.END_TXN_ON_SUBSCRIPTION_RESPONSE,
}


class ProducerEnd(Protocol):
    """What a connection tells a producer."""

    def on_receipt(self, receipt: pb.CommandSendReceipt) -> None: ...
    def on_send_error(self, error: pb.CommandSendError) -> None: ...
    def detached(self) -> None: ...


class ConsumerEnd(Protocol):
    """What a connection tells a consumer."""

    reached_end: bool

    def on_messages(self, run: MessageRun) -> None: ...

    def detached(self) -> None: ...


class WatchEnd(Protocol):
    """What a connection tells who watches a scalable topic, or has some of its segments."""

    def on_update(self, update: Any) -> None: ...
    def detached(self) -> None: ...


class Connection(asyncio.Protocol):
    def __init__(
        self,
        address: str,
        authentication: Authentication | None,
        request_ids: Iterator[int] | None = None,
    ) -> None:
        self.address = address
        self.closed = False
        self.max_message_bytes = DEFAULT_MAX_MESSAGE_BYTES
        # Whether this broker can commit several transactions atomically.
        self.commits_together = False
        self.spans_namespaces = False
        self.fences_sessions = False  # of transactional ids
        self.commits_across = False
        # Whether it answers questions about many topics at once.
        self.answers_topic_questions = False
        self.answers_about_transactions = False  # to other brokers
        self.joins_groups = False  # with other brokers
        self.takes_covered_messages = False
        self.prepares = False  # transactions
        self.has_scalable_topics = False
        # Whether it can abort transactions when their connection closes, if NEW_TXN asks for that.
        self.aborts_on_disconnect = False
        self.producers: dict[int, ProducerEnd] = {}
        self.consumers: dict[int, ConsumerEnd] = {}
        self.watches: dict[int, WatchEnd] = {}
        self._authentication = authentication
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._decoder = ClientDecoder(_MAX_FRAME_BYTES)
        self._requests: dict[int, asyncio.Future[Any]] = {}
        self._request_ids = itertools.count(1) if request_ids is None else request_ids
        self._outbox: list[bytes] = []
        self._connected: asyncio.Future[pb.CommandConnected] = self._loop.create_future()
        self._keep_alive: asyncio.TimerHandle | None = None
        self._heard = True
        self._is_paused = False

    # --- requests -----------------------------------------------------------------------------

    async def handshake(self, proxy_to: str | None) -> None:
        """Sends CONNECT; returns when the broker has accepted the client."""
        body = pb.CommandConnect(
            client_version=CLIENT_VERSION,
            protocol_version=PROTOCOL_VERSION,
            feature_flags=pb.FeatureFlags(supports_auth_refresh=True),
        )
        if self._authentication is not None:
            body.auth_method_name = self._authentication.method
            body.auth_data = self._credentials(self._authentication)
        if proxy_to is not None:
            body.proxy_to_broker_url = proxy_to
        self.post(body)
        connected = await self._connected
        self.commits_together = connected.feature_flags.supports_committing_together
        self.commits_across = connected.feature_flags.supports_committing_across
        self.spans_namespaces = connected.feature_flags.supports_spanning_namespaces
        self.fences_sessions = connected.feature_flags.supports_transactional_ids
        self.answers_topic_questions = connected.feature_flags.supports_asking_topics
        flags = connected.feature_flags
        self.answers_about_transactions = flags.supports_asking_transactions
        self.joins_groups = flags.supports_transaction_groups
        self.has_kafka_producers = flags.supports_kafka_transactions
        self.prepares = flags.supports_preparing
        self.has_scalable_topics = flags.supports_scalable_topics
        self.takes_covered_messages = flags.supports_covered_messages
        self.aborts_on_disconnect = connected.feature_flags.supports_aborting_on_disconnect
        if connected.max_message_size > 0:
            self.max_message_bytes = connected.max_message_size
        if self.closed:
            return  # lost between the answer and this turn of the event loop
        self._keep_alive = self._loop.call_later(KEEP_ALIVE_S, self._check_alive)

    async def request(self, body: Any, timeout_s: float | None) -> Any:
        """Returns the answer's body. Raises the broker's refusal, ConnectError, Timeout."""
        request_id = body.request_id = next(self._request_ids)
        answer = self._loop.create_future()
        self._requests[request_id] = answer
        timer = None  # asyncio.timeout costs three times as much
        if timeout_s is not None:
            timer = self._loop.call_later(timeout_s, self._late, answer, body, timeout_s)
        try:
            self.post(body)
            return await answer
        finally:
            self._requests.pop(request_id, None)
            if timer is not None:
                timer.cancel()
            del answer  # a failure's traceback refers to this frame: break the cycle

    def _late(self, answer: asyncio.Future[Any], body: Any, timeout_s: float) -> None:
        name = type(body).__name__.removeprefix("Command")
        _fail(answer, Timeout(f"{self.address} did not answer {name} within {timeout_s} s"))

    def post(self, body: CommandBody) -> None:
        """Sends a command that needs no answer. Raises ConnectError."""
        self.write(encode_command(body))

    def write(self, frame: bytes) -> None:
        if self.closed:
            raise ConnectError(f"The connection to {self.address} is closed")
        if not self._outbox:
            self._loop.call_soon(self._flush)
        self._outbox.append(frame)

    def _flush(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(self._outbox))
        self._outbox.clear()

    def close(self) -> None:
        self._flush()
        self._ended(ConnectError(f"The connection to {self.address} was closed by this client"))
        if self._transport is not None:
            self._transport.close()

    def abort(self, reason: str) -> None:
        """Drops the connection so that everything on it starts over on another."""
        self._ended(ConnectError(f"{self.address}: {reason}"))
        if self._transport is not None:
            self._transport.abort()

    def pause_reading(self) -> None:
        """Reads nothing more, not even answers, until `resume_reading`."""
        if self._transport is not None and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None and self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()

    # --- asyncio.Protocol -------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._heard = True
        try:
            events = self._decoder.receive(data)
        except ProtocolError as error:
            self.abort(str(error))
            return
        for event in events:
            if isinstance(event, MessageRun):
                self._on_messages(event)
            elif isinstance(event, CommandFrame):
                self._on_command(event.command, event.entry)

    def _on_messages(self, run: MessageRun) -> None:
        consumer = self.consumers.get(run.consumer_id)
        if consumer is not None:
            consumer.on_messages(run)

    def connection_lost(self, exc: Exception | None) -> None:
        reason = f"lost: {exc}" if exc else "closed by the broker"
        self._ended(ConnectError(f"The connection to {self.address} was {reason}"))

    def _ended(self, error: ConnectError) -> None:
        if self.closed:
            return
        self.closed = True
        self._outbox.clear()
        if self._keep_alive is not None:
            self._keep_alive.cancel()
        for future in (self._connected, *self._requests.values()):
            _fail(future, error)
        ends: list[ProducerEnd | ConsumerEnd | WatchEnd] = [*self.producers.values()]
        ends += [*self.consumers.values(), *self.watches.values()]
        self.producers.clear()
        self.consumers.clear()
        self.watches.clear()
        for end in ends:
            end.detached()

    # --- commands from the broker ---------------------------------------------------------------

    def _on_command(self, command: pb.BaseCommand, entry: bytes) -> None:
        kind = command.type
        if kind == _Type.MESSAGE:
            message = command.message
            self._on_messages(MessageRun(message.consumer_id, [message], [entry]))
        elif kind == _Type.SEND_RECEIPT:
            producer = self.producers.get(command.send_receipt.producer_id)
            if producer is not None:
                producer.on_receipt(command.send_receipt)
        elif kind in _ANSWERS:
            self._on_answer(getattr(command, FIELD_NAMES[kind]))
        else:
            self._on_notice(kind, command)

    def _on_answer(self, body: Any) -> None:
        if isinstance(body, pb.CommandProducerSuccess) and not body.producer_ready:
            return  # Waiting for exclusive access: a second answer follows.
        answer = self._requests.get(body.request_id)
        if isinstance(body, pb.CommandError) and not self._connected.done():
            answer = self._connected
        if answer is None or answer.done():
            return
        if "error" in body.DESCRIPTOR.fields_by_name and body.HasField("error"):
            answer.set_exception(refusal(body))
        else:
            answer.set_result(body)

    def _on_notice(self, kind: int, command: pb.BaseCommand) -> None:
        if kind == _Type.PING:
            self.post(pb.CommandPong())
        elif kind == _Type.CONNECTED:
            if not self._connected.done():
                self._connected.set_result(command.connected)
        elif kind == _Type.SEND_ERROR:
            producer = self.producers.get(command.send_error.producer_id)
            if producer is not None:
                producer.on_send_error(command.send_error)
        elif kind == _Type.CLOSE_PRODUCER:
            self._detach(self.producers.pop(command.close_producer.producer_id, None))
        elif kind == _Type.CLOSE_CONSUMER:
            self._detach(self.consumers.pop(command.close_consumer.consumer_id, None))
        elif kind == _Type.REACHED_END_OF_TOPIC:
            consumer = self.consumers.get(command.reachedEndOfTopic.consumer_id)
            if consumer is not None:
                consumer.reached_end = True
        elif kind == _Type.SCALABLE_TOPIC_UPDATE:
            self._tell_watch(command.scalableTopicUpdate.session_id, command.scalableTopicUpdate)
        elif kind == _Type.SCALABLE_TOPIC_ASSIGNMENT_UPDATE:
            assigned = command.scalableTopicAssignmentUpdate
            self._tell_watch(assigned.consumer_id, assigned)
        elif kind == _Type.AUTH_CHALLENGE:
            self._answer_challenge()

    def _tell_watch(self, watch_id: int, update: Any) -> None:
        watch = self.watches.get(watch_id)
        if watch is not None:
            watch.on_update(update)

    def _detach(self, end: ProducerEnd | ConsumerEnd | None) -> None:
        if end is not None:
            end.detached()

    def _answer_challenge(self) -> None:
        if self._authentication is None:
            self.abort("asked for credentials; pass authentication= to Client")
            return
        try:
            credentials = self._credentials(self._authentication)
        except ConnectError as error:
            self.abort(str(error))
            return
        data = pb.AuthData(auth_method_name=self._authentication.method, auth_data=credentials)
        self.post(
            pb.CommandAuthResponse(
                client_version=CLIENT_VERSION, response=data, protocol_version=PROTOCOL_VERSION
            )
        )

    def _credentials(self, authentication: Authentication) -> bytes:
        """Raises ConnectError, so that the application's function is called again later."""
        try:
            return authentication.data()
        except Exception as error:
            raise ConnectError(
                f"The function that supplies the credentials for {self.address} raised {error!r}"
            ) from error

    def _check_alive(self) -> None:
        if not self._heard and not self._is_paused:
            self.abort(f"silent for {KEEP_ALIVE_S:.0f} s after a PING")
            return
        self._heard = False
        self.post(pb.CommandPing())
        self._keep_alive = self._loop.call_later(KEEP_ALIVE_S, self._check_alive)


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # Marks it as retrieved: there may be no waiter.
