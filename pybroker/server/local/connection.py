"""A connection that publishes messages for code in this process.

Its session is like any other, so its messages take the same path as those of every producer:
permissions, quotas, rates, schemas and deduplication apply without extra code.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from managed_ledger.position import Position
from pybroker.base.errors import NotAllowed, PulsarError, ServiceNotReady, TooManyRequests
from pybroker.base.runtime import Pace
from pybroker.broker.local_messages import LocalBatch, LocalSender
from pybroker.broker.schemas.compatibility import StoredSchema
from pybroker.security.identity import Identity
from pybroker.server.connections.live_login import LiveLogin
from pybroker.server.connections.on_connect import PROTOCOL_VERSION
from pybroker.server.connections.session import Session
from pybroker.server.local.sending import Sending, key_values
from pybroker.server.local.transport import MemoryTransport
from pybroker.server.publishing.held_runs import HOLD_S
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.frames import encode_frame
from pybroker.wire.message_metadata import build_entry

PUBLISH_TIMEOUT_S: Final = HOLD_S + 10  # a publish rate holds messages for up to HOLD_S
_CLOSE_TIMEOUT_S: Final = 5.0
_CLIENT_VERSION: Final = "pybroker-rest"
_MESSAGES_A_TURN: Final = 50
_PROPERTIES_A_STEP: Final = 20
_Type = pb.BaseCommand


class LocalConnections:
    """`accept` creates a session, which may refuse this connection like any other."""

    def __init__(self, accept: Callable[[], Session], new_name: Callable[[], str]) -> None:
        self._accept = accept
        self._new_name = new_name
        # Producer names to use again: deduplication remembers every name.
        self._free_names: list[str] = []

    async def publish(
        self,
        identity: Identity | None,
        sender: LocalSender,
        batches: Sequence[LocalBatch],
        schema: StoredSchema | None,
    ) -> None:
        """Every batch has its outcomes when this returns. Raises TooManyRequests."""
        if sender.producer_name:
            await self._publish(identity, sender, batches, schema)
            return
        # A numbered batch needs a new name: under a reused one, its messages might be duplicates.
        once = any(each.sequence_id is not None for batch in batches for each in batch.messages)
        name = self._free_names.pop() if self._free_names and not once else self._new_name()
        await self._publish(identity, replace(sender, producer_name=name), batches, schema)
        # Sequence ids of messages in flight must not be reused.
        stored = all(isinstance(each, Position) for batch in batches for each in batch.outcomes)
        if stored and not once:
            self._free_names.append(name)

    async def _publish(
        self,
        identity: Identity | None,
        sender: LocalSender,
        batches: Sequence[LocalBatch],
        schema: StoredSchema | None,
    ) -> None:
        connection = LocalConnection(self._accept(), sender, identity)
        try:
            async with asyncio.timeout(PUBLISH_TIMEOUT_S):
                await connection.publish(batches, schema)
        except TimeoutError:
            connection.lose(_too_late())
        finally:
            await connection.close()


class LocalConnection:
    def __init__(self, session: Session, sender: LocalSender, identity: Identity | None) -> None:
        """Raises TooManyRequests if the broker has as many connections as it may."""
        self._session = session
        self._sender = sender
        self._transport = MemoryTransport(session, sender.address, self._heard)
        self._asked: dict[int, asyncio.Future[pb.BaseCommand | None]] = {}
        self._producers: dict[int, Sending] = {}
        session.connection_made(self._transport)
        if session.closed:
            raise TooManyRequests("There are too many connections; try again later")
        self._connect(identity)

    def _connect(self, identity: Identity | None) -> None:
        """Does the work of CONNECT for an identity that is already authenticated."""
        session = self._session
        if identity is not None:
            is_super_user = session.services.is_super_user(identity)
            session.login = LiveLogin(identity, "", False, is_super_user)
        session.protocol_version = PROTOCOL_VERSION
        session.client_version = _CLIENT_VERSION
        session.connected()

    async def publish(self, batches: Sequence[LocalBatch], schema: StoredSchema | None) -> None:
        for producer_id, batch in enumerate(batches):
            self._producers[producer_id] = Sending(producer_id, batch)
        for sending in self._producers.values():
            await self._open(sending, schema)
        pace = Pace(_MESSAGES_A_TURN)
        for sending in self._producers.values():
            if not sending.answered.done():
                await self._send(sending, pace)
        for sending in self._producers.values():
            await asyncio.wait([sending.answered])
            await self._close(sending)

    async def _open(self, sending: "Sending", schema: StoredSchema | None) -> None:
        command = pb.CommandProducer(
            topic=str(sending.batch.topic),
            producer_id=sending.producer_id,
            request_id=sending.producer_id,
            producer_name=self._sender.producer_name,
            user_provided_producer_name=True,
        )
        if schema is not None:
            command.schema.CopyFrom(_on_the_wire(schema))
        answer = await self._ask(
            sending.producer_id, pb.BaseCommand(type=_Type.PRODUCER, producer=command)
        )
        if answer is None:
            return
        if answer.type == _Type.ERROR:
            sending.refuse(_error(answer.error.error, answer.error.message))
        else:
            sending.opened(answer.producer_success)

    async def _send(self, sending: "Sending", pace: Pace) -> None:
        services = self._session.services
        for index, message in enumerate(sending.batch.messages):
            sequence_id = sending.sequence_id_of(message)
            metadata = sending.metadata(message, sequence_id, services.clock.now_ms())
            entry = build_entry(metadata, message.payload)
            if len(entry) > services.config.max_message_size:
                sending.answer(
                    index,
                    NotAllowed(
                        f"The message has {len(entry)} bytes; the limit is "
                        f"{services.config.max_message_size} (maxMessageSize)"
                    ),
                )
            else:
                sending.wait_for(sequence_id, index)
                send = pb.BaseCommand(type=_Type.SEND, send=sending.send(sequence_id))
                frame = encode_frame(send, entry)
                self._transport.feed(frame)
            await pace.step(1 + len(message.properties) // _PROPERTIES_A_STEP)

    async def _close(self, sending: "Sending") -> None:
        if sending.producer_id not in self._session.producers:
            return
        command = pb.CommandCloseProducer(
            producer_id=sending.producer_id, request_id=sending.producer_id
        )
        await self._ask(
            sending.producer_id, pb.BaseCommand(type=_Type.CLOSE_PRODUCER, close_producer=command)
        )

    async def _ask(self, request_id: int, command: pb.BaseCommand) -> pb.BaseCommand | None:
        """None: the session has ended without an answer."""
        if self._transport.is_closing():
            return None
        answer: asyncio.Future[pb.BaseCommand | None] = asyncio.get_running_loop().create_future()
        self._asked[request_id] = answer
        self._transport.feed(encode_frame(command))
        return await answer

    # -- answers

    def _heard(self, command: pb.BaseCommand | None) -> None:
        """None: the session has ended."""
        if command is None:
            self.lose(ServiceNotReady("The broker closed the connection; try again"))
        elif (hear := _HEARD.get(command.type)) is not None:
            hear(self, command)

    def _answered(self, command: pb.BaseCommand) -> None:
        body: Any = getattr(command, _ANSWERS[command.type])
        answer = self._asked.pop(body.request_id, None)
        if answer is not None and not answer.done():
            answer.set_result(command)

    def _stored(self, command: pb.BaseCommand) -> None:
        receipt = command.send_receipt
        self._producers[receipt.producer_id].stored(receipt)

    def _not_stored(self, command: pb.BaseCommand) -> None:
        failed = command.send_error
        error = _error(failed.error, failed.message)
        self._producers[failed.producer_id].answer_next(failed.sequence_id, error)

    def _closed_by_broker(self, command: pb.BaseCommand) -> None:
        sending = self._producers.get(command.close_producer.producer_id)
        if sending is not None:
            topic = sending.batch.topic
            sending.lose(ServiceNotReady(f"The broker closed the producer on {topic}; try again"))

    def _alive(self, command: pb.BaseCommand) -> None:
        pong = pb.BaseCommand(type=_Type.PONG, pong=pb.CommandPong())
        self._transport.feed(encode_frame(pong))

    def lose(self, error: PulsarError) -> None:
        """Everything unanswered fails with `error`."""
        for sending in self._producers.values():
            sending.lose(error)
        for answer in self._asked.values():
            if not answer.done():
                answer.set_result(None)
        self._asked.clear()

    async def close(self) -> None:
        """Waits until the session and its producers are gone, at most _CLOSE_TIMEOUT_S."""
        self._transport.close()
        await asyncio.wait([self._session.ended], timeout=_CLOSE_TIMEOUT_S)


_HEARD: Final = {
    _Type.PRODUCER_SUCCESS: LocalConnection._answered,
    _Type.SUCCESS: LocalConnection._answered,
    _Type.ERROR: LocalConnection._answered,
    _Type.SEND_RECEIPT: LocalConnection._stored,
    _Type.SEND_ERROR: LocalConnection._not_stored,
    _Type.CLOSE_PRODUCER: LocalConnection._closed_by_broker,
    _Type.PING: LocalConnection._alive,
}
_ANSWERS: Final[dict[int, str]] = {
    _Type.PRODUCER_SUCCESS: "producer_success",
    _Type.SUCCESS: "success",
    _Type.ERROR: "error",
}


def _on_the_wire(schema: StoredSchema) -> pb.Schema:
    number: Any = schema.type
    return pb.Schema(
        name=schema.name,
        type=number,
        schema_data=schema.data,
        properties=key_values(schema.properties),
    )


def _too_late() -> PulsarError:
    return ServiceNotReady(
        f"No answer within {PUBLISH_TIMEOUT_S:g} s; the message may have been stored"
    )


def _error(code: int, text: str) -> PulsarError:
    return _BY_CODE.get(code, PulsarError)(text)


_BY_CODE: Final[dict[int, type[PulsarError]]] = {
    error.code: error for error in reversed(PulsarError.__subclasses__())
}
