"""One connection of a Kafka client: requests one after another, responses in their order.

A request begins when the one before it is answered; one that is `pipelined` in the table begins
when the one before it was accepted. Responses go out in the order of the requests, always. No
request begins while too many are unanswered, or the peer does not read.

What cannot be understood closes the connection, and the log says why.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

from pybroker.base.runtime import break_cycles_of, do_nothing
from pybroker.kafka.admission import Closing, admit, must_log_in, raw_step
from pybroker.kafka.codec.frames import SIZE_BYTES, FrameReader
from pybroker.kafka.codec.message_table import message_kinds
from pybroker.kafka.codec.messages import (
    API_VERSIONS,
    HEADER_BYTES,
    encode_response,
    key_and_version,
    read_header,
    response_header,
)
from pybroker.kafka.codec.primitives import Malformed
from pybroker.kafka.errors import REFUSALS, error_fields
from pybroker.kafka.intake import Frame, Intake
from pybroker.kafka.large_messages import AT_ONCE_BYTES, decoded, encoded
from pybroker.kafka.permissions import actor_of
from pybroker.kafka.requests.table import MOST_BYTES, ROWS, Row, codec, handler
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Request, Session
from pybroker.logs import audit

log = logging.getLogger("pybroker.kafka")

MAX_PIPELINED: Final = 128  # requests accepted and not answered
_PIPELINED_BYTES: Final = 1024 * 1024  # of them, after which no other begins
LOGIN_BYTES: Final = 64 * 1024  # of a request before the login
_CLOSE_TIMEOUT_S: Final = 5.0  # for a peer that does not read the rest

# A framed response that may not be known yet; b"" if the client expects none.
_Slot = asyncio.Future[bytes]


class Connection(asyncio.Protocol):
    def __init__(
        self,
        services: KafkaServices,
        session: Session,
        admit: "Callable[[Connection], bool]",
        known: "Callable[[Connection], None]",
        forget: "Callable[[Connection], object]",
    ) -> None:
        """`admit` may refuse the connection; `known` is called after the first request of a client
        that may use the broker, `forget` at the end.
        """
        self.session = session
        self._services = services
        self._admit, self._known, self._forget = admit, known, forget
        self._loop = asyncio.get_running_loop()
        self._change = asyncio.Event()  # something to look at again: see `_until`
        most = _most_bytes(services)
        reader = FrameReader(most, partial(self._most_of, most))
        self._intake = Intake(reader, services.frames, self._change.set)
        self._slots: deque[_Slot] = deque()
        self._pipelined_bytes = 0
        self._unwritten: list[bytes] = []  # responses of this turn, written at its end
        self._writable = True
        self._at_work = False  # a request has begun and was not accepted yet
        self._is_known = False
        self._closed = False
        self._transport: asyncio.Transport | None = None
        self._serving: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None  # for the login, at the end for closing
        self._heard_s = self._loop.time()
        self._unsent_bytes = 0  # at the last look: see `check_alive`
        self.ended: asyncio.Future[None] = self._loop.create_future()

    def _most_of(self, most: int, key: int) -> int:
        if must_log_in(self._services, self.session):
            return LOGIN_BYTES
        row = ROWS.get(key)
        return most if row is not None and row.carries_records else MOST_BYTES

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        describe(self.session, transport)
        if not self._admit(self):
            self._closed = True
            transport.abort()
            return
        self._intake.open(transport)
        if must_log_in(self._services, self.session):
            timeout_s = self._services.config.handshake_timeout_ms / 1000
            self._timer = self._loop.call_later(timeout_s, self._log_in_timed_out)
        self._serving = self._loop.create_task(self._serve(), name=f"kafka {self.session.peer}")

    def _log_in_timed_out(self) -> None:
        if must_log_in(self._services, self.session):
            self.close("it did not log in in time")

    def data_received(self, data: bytes) -> None:
        self._heard_s = self._loop.time()
        if self._closed:
            return
        try:
            self._intake.receive(data)
        except Malformed as error:
            self.close(f"it sent {error}")

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._change.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed = True
        self._cancel_timer()
        self._intake.stop()
        if self._serving is not None:
            self._serving.cancel()
        for slot in self._slots:
            slot.cancel()
        self._slots.clear()
        self._change.set()
        for at_end in self.session.at_end:
            at_end()
        self.session.at_end.clear()
        self._forget(self)
        self._admit = self._known = self._forget = do_nothing  # type: ignore[assignment]
        break_cycles_of(self._transport)
        self.ended.set_result(None)

    # -- requests

    async def _serve(self) -> None:
        """Begins the requests, one after another."""
        audit.act_as(actor_of(self.session))
        try:
            while not self._closed:
                await self._until(self._may_begin)
                await self._work_on(self._intake.take())
        except (Closing, Malformed) as error:
            self.close(str(error))
        except Exception:
            log.exception("%s: a request failed", self.session)
            self.close("a request failed")

    async def _work_on(self, frame: Frame) -> None:
        self._at_work = True
        try:
            await self._begin(frame)
        except BaseException:
            frame.release()
            raise
        finally:
            self._at_work = False
            self._change.set()

    def _may_begin(self) -> bool:
        if len(self._slots) >= MAX_PIPELINED or self._pipelined_bytes > _PIPELINED_BYTES:
            return False
        return bool(self._intake) and self._writable

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._change.clear()
            await self._change.wait()

    async def _begin(self, frame: Frame) -> None:
        if self.session.sends_raw_tokens:
            await self._answer_raw(frame)
            return
        if len(frame.data) < HEADER_BYTES:
            raise Closing(f"it sent a request of {len(frame.data)} bytes")
        key, version, correlation_id = key_and_version(frame.data)
        row = ROWS.get(key)
        if row is not None and key == API_VERSIONS and not row.first <= version <= row.last:
            frame.release()
            await self._tell_versions(correlation_id)
            return
        if row is None or not row.first <= version <= row.last:
            name = row.name if row is not None else f"API key {key}"
            raise Closing(f"it sent {name} in version {version}, which is not served")
        await admit(self._services, self.session, row)
        await self._answer(row, await self._decoded(row, frame.data), correlation_id, frame)
        self._becomes_known()

    async def _tell_versions(self, correlation_id: int) -> None:
        from pybroker.kafka.requests.api_versions import unsupported

        await self._until(lambda: not self._slots)
        encoded = encode_response(API_VERSIONS, 0, unsupported())
        self._write(_framed(response_header(API_VERSIONS, 0, correlation_id), encoded))

    async def _answer_raw(self, frame: Frame) -> None:
        frame.release()
        self._write(_framed(b"", await raw_step(self.session, frame.data)))
        self._becomes_known()

    async def _decoded(self, row: Row, data: bytes) -> Request:
        version = key_and_version(data)[1]
        try:
            header, at = read_header(data, message_kinds()[row.key].is_flexible(version))
            body = await decoded(row.key, version, data, at)
        except Malformed as error:
            raise Closing(f"it sent a {row.name} that cannot be read: {error}") from None
        self.session.client_id = header.client_id
        return Request(row.key, version, header.client_id, body)

    async def _answer(self, row: Row, request: Request, correlation_id: int, frame: Frame) -> None:
        if not row.pipelined:
            await self._until(lambda: not self._slots)
        version = request.version
        header = response_header(row.key, version, correlation_id)
        try:
            response: Any = await handler(row.key)(self._services, self.session, request)
        except REFUSALS as error:
            response = _refusal(row, error)
        if response is not None and not isinstance(response, Mapping):
            self._answer_later(row, request, header, response, frame)
            return
        frame.release()
        del request  # a large one takes its time: not in the turn in which the response goes, too
        if response is not None:
            self._write(_framed(header, await encoded(row.key, version, response)))

    def _becomes_known(self) -> None:
        if self.session.closing:
            self.close(self.session.closing)
        elif not self._is_known and not must_log_in(self._services, self.session):
            self._is_known = True
            self._known(self)

    # -- responses

    def _answer_later(
        self, row: Row, request: Request, header: bytes, later: Awaitable[Any], frame: Frame
    ) -> None:
        slot: _Slot = self._loop.create_future()
        self._slots.append(slot)
        self._pipelined_bytes += len(frame.data)
        if len(frame.data) > AT_ONCE_BYTES:
            later = _encoded_later(row, request, later)

        def came(done: "asyncio.Future[Any]") -> None:
            frame.release()
            self._pipelined_bytes -= len(frame.data)
            if not slot.done():
                self._fill(slot, row, request, header, done)

        asyncio.ensure_future(later).add_done_callback(came)

    def _fill(
        self,
        slot: _Slot,
        row: Row,
        request: Request,
        header: bytes,
        done: "asyncio.Future[Any]",
    ) -> None:
        try:
            body = _outcome(row, done)
            if body is not None and not isinstance(body, bytes):
                body = codec(row.key)[1](row.key, request.version, body)
        except Closing as error:
            self.close(str(error))
        except (Exception, asyncio.CancelledError):
            log.exception("%s: %s failed", self.session, row.name)
            self.close(f"{row.name} failed")
        else:
            slot.set_result(b"" if body is None else _framed(header, body))
            self._write_what_is_known()

    def _write_what_is_known(self) -> None:
        while self._slots and self._slots[0].done():
            framed = self._slots.popleft().result()
            if framed:
                self._write_now(framed)
        self._change.set()

    def _write(self, framed: bytes) -> None:
        if not self._slots:
            self._write_now(framed)
            return
        slot: _Slot = self._loop.create_future()  # a pipelined request that was answered at once
        slot.set_result(framed)
        self._slots.append(slot)

    def _write_now(self, framed: bytes) -> None:
        if self._transport is None or self._closed:
            return
        if not self._unwritten:
            self._loop.call_soon(self._flush)
        self._unwritten.append(framed)

    def _flush(self) -> None:
        """One call of the system for all responses of a group commit."""
        unwritten, self._unwritten = self._unwritten, []
        if unwritten and self._transport is not None:
            self._transport.write(b"".join(unwritten) if len(unwritten) > 1 else unwritten[0])

    # -- the end

    def check_alive(self, idle_s: float) -> None:
        """Called from time to time: closes a connection without requests for `idle_s`, or with a
        request that does not come to its end. Who reads a large response slowly is not idle.
        """
        before, self._unsent_bytes = self._unsent_bytes, self._buffered_bytes
        if self._unsent_bytes < before:
            self._heard_s = self._loop.time()
        if self._intake.is_stuck():
            self.close("it began a request and did not end it")
        elif not self._is_busy and self._loop.time() - self._heard_s > idle_s:
            self.close(f"it sent nothing for {idle_s:g} s")

    @property
    def _buffered_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def _is_busy(self) -> bool:
        """Whether the client waits for an answer; not whether an answer waits for the client."""
        return self._at_work or (bool(self._slots) and self._writable)

    async def finish(self) -> None:
        """Begins nothing more; returns when what has begun is answered."""
        self._intake.stop()
        await self._until(lambda: self._closed or not (self._slots or self._at_work))

    def close(self, why: str) -> None:
        """Writes what is pending, then closes; `connection_lost` does the rest."""
        if self._closed:
            return
        self._closed = True
        log.info("closing %s: %s", self.session, why)
        self._intake.stop()
        self._change.set()
        if self._transport is not None:
            self._cancel_timer()
            self._timer = self._loop.call_later(_CLOSE_TIMEOUT_S, self._transport.abort)
            self._flush()
            self._transport.close()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


def _refusal(row: Row, error: Exception) -> Mapping[str, Any]:
    """The whole response is an error, if its shape has room for one. Raises Closing."""
    if all(field.name != "error_code" for field in message_kinds()[row.key].response):
        raise Closing(f"{row.name} failed: {error}") from error
    return error_fields(error)


async def _encoded_later(row: Row, request: Request, later: Awaitable[Any]) -> bytes | None:
    try:
        body = await later
    except REFUSALS as error:
        body = _refusal(row, error)
    return None if body is None else await encoded(row.key, request.version, body)


def _outcome(row: Row, done: "asyncio.Future[Any]") -> Mapping[str, Any] | bytes | None:
    try:
        body: Mapping[str, Any] | bytes | None = done.result()
    except REFUSALS as error:
        return _refusal(row, error)
    return body


def describe(session: Session, transport: asyncio.Transport) -> None:
    """Fills in what is known of the peer."""
    peer, local = (transport.get_extra_info(name) for name in ("peername", "sockname"))
    if peer:
        session.address, session.peer = peer[0], f"{peer[0]}:{peer[1]}"
    if local:
        session.local_host, session.local_port = local[0], local[1]
    tls = transport.get_extra_info("ssl_object")
    session.is_encrypted = tls is not None
    session.certificate = None if tls is None else tls.getpeercert()


def _framed(header: bytes, encoded: bytes) -> bytes:
    return (len(header) + len(encoded)).to_bytes(SIZE_BYTES, "big") + header + encoded


def _most_bytes(services: KafkaServices) -> int:
    """Of one request: a few of the largest messages, for different partitions."""
    return max(MOST_BYTES, 4 * services.config.max_message_size)
