"""A connection to a bookie: sends the requests of a loop tick in one write, and matches answers.

Responses name only operation, ledger and entry. So at most one request with the same three is in
flight: a second plain read shares the answer of the first, and any other request waits until the
first is answered. A fencing read must not receive the answer to a plain read.

A request without an answer within the timeout breaks the connection and fails all its requests with
`BookieFailed`, because a late answer could be mistaken for that of a repeated request. Such a
failure says nothing about what the bookie did.

A bookie limits the number of queued adds of all its clients and refuses further ones
(TOO_MANY_REQUESTS). This is not a failure: refused adds are sent again after a pause, until the
bookie has stored nothing for the timeout. At most `MAX_IN_FLIGHT` requests are unanswered at once,
so that a few brokers together stay below the limit.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

from managed_ledger.storage.bookkeeper.errors import BookieFailed
from managed_ledger.storage.bookkeeper.protocol import (
    MAX_FRAME_BYTES,
    Code,
    Operation,
    Response,
    Responses,
    batch_read_request,
    read_request,
)

log = logging.getLogger(__name__)
CHECKS_PER_TIMEOUT: Final = 4
MAX_IN_FLIGHT: Final = 2_500  # of the 10,000 of maxPendingAddRequestsPerThread
OVERLOADED_PAUSE_S: Final = 0.05
OVERLOADED_LOG_S: Final = 60.0
_ADD: Final = int(Operation.ADD)  # a plain int is faster, and is used for each entry
_OK: Final = int(Code.OK)
_OVERLOADED: Final = int(Code.TOO_MANY_REQUESTS)
Key = tuple[int, int, int]  # operation, ledger, entry


class Adder(Protocol):
    """Receives a bookie's answers to adds; one object for each ledger and bookie."""

    def added(self, first_entry_id: int, last_entry_id: int) -> None:
        """The bookie has stored the entries `first_entry_id` to `last_entry_id`, inclusive."""
        ...

    def refused(self, entry_id: int, code: int) -> None: ...

    def failed(self, entry_id: int, why: BookieFailed) -> None:
        """There will be no answer."""
        ...


# Called with the response, or with None and the reason.
Answered = Callable[[Response | None, BookieFailed | None], None]


class _Read:
    __slots__ = ("answered", "is_shared", "request")

    def __init__(self, request: bytes, answered: Answered, is_shared: bool) -> None:
        self.request = request
        self.answered = [answered]
        self.is_shared = is_shared


class BookieConnection(asyncio.Protocol):
    """A protocol for `loop.create_connection`. Serves one bookie and never reconnects."""

    def __init__(
        self,
        bookie: str,
        timeout_s: float,
        max_pending_bytes: int,
        lost: Callable[["BookieConnection"], None],
        max_frame_bytes: int = MAX_FRAME_BYTES,
    ) -> None:
        """More than `max_pending_bytes` of unanswered adds break the connection: a bookie that
        cannot keep up must not fill the memory.
        """
        self.bookie = bookie
        self._timeout_s = timeout_s
        self._max_pending_bytes = max_pending_bytes
        self._lost = lost
        self._responses = Responses(max_frame_bytes)
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._outgoing: deque[bytes] = deque()
        self._refused: list[bytes] = []  # by an overloaded bookie; sent again before others
        self._resend: asyncio.TimerHandle | None = None
        self._overloaded_since_s: float | None = None
        self._overload_logged_s = -OVERLOADED_LOG_S
        self._is_flushing = False
        self._is_writable = True
        # In the order of sending, oldest first.
        self._adds: dict[tuple[int, int], tuple[Adder, bytes]] = {}
        self._reads: dict[Key, deque[_Read]] = {}
        self._oldest: tuple[object, object] = (None, None)
        self._unchanged = 0
        self._timer: asyncio.TimerHandle | None = None
        self.pending_bytes = 0
        self.broken: BookieFailed | None = None
        self.was_closed = False  # by the bookie

    # --- requests

    def add(
        self, ledger_id: int, entry_ids: Sequence[int], requests: Sequence[bytes], adder: Adder
    ) -> None:
        """Each request is a whole frame. `adder` is called once for each entry, after this has
        returned. After a failure, calls for the other entries may be missing.
        """
        if self.broken is not None:
            self._loop.call_soon(adder.failed, entry_ids[0], self.broken)
            return
        adds, outgoing, size_bytes = self._adds, self._outgoing, 0
        for entry_id, request in zip(entry_ids, requests, strict=True):
            key = (ledger_id, entry_id)
            if key in adds:
                why = f"entry {entry_id} of ledger {ledger_id} is already in flight"
                failure = BookieFailed(f"{why} to {self.bookie}")
                self._loop.call_soon(adder.failed, entry_id, failure)
                continue
            adds[key] = (adder, request)
            size_bytes += len(request)
            outgoing.append(request)
        self.pending_bytes += size_bytes
        if not self._is_flushing:
            self._flush_soon()
        if self.pending_bytes > self._max_pending_bytes:
            self._loop.call_soon(
                self.break_off,
                f"{self.pending_bytes:,} bytes are unanswered: the bookie is too slow",
            )

    def read(
        self,
        ledger_id: int,
        entry_id: int,
        answered: Answered,
        fence_with: bytes | None = None,
        size_bytes: int = 0,
    ) -> None:
        """Read an entry. `fence_with`, a master key, fences the ledger first. `size_bytes` is the
        least size of the request.
        """
        key = (Operation.READ, ledger_id, entry_id)
        request = read_request(ledger_id, entry_id, fence_with, size_bytes)
        self._ask(key, request, answered, is_shared=fence_with is None)

    def read_batch(
        self, ledger_id: int, first: int, count: int, size_bytes: int, answered: Answered
    ) -> None:
        """Read several entries. The response has at least one, not always all: `batch_bodies`."""
        key = (Operation.BATCH_READ, ledger_id, first)
        request = batch_read_request(ledger_id, first, count, size_bytes)
        self._ask(key, request, answered, is_shared=False)

    def _ask(self, key: Key, request: bytes, answered: Answered, is_shared: bool) -> None:
        if self.broken is not None:
            self._loop.call_soon(answered, None, self.broken)
            return
        line = self._reads.get(key)
        if line is None:
            self._reads[key] = deque([_Read(request, answered, is_shared)])
            self._send(request)
        elif is_shared and line[-1].is_shared:
            line[-1].answered.append(answered)
        else:
            line.append(_Read(request, answered, is_shared))

    # --- sending

    def _send(self, request: bytes) -> None:
        self._outgoing.append(request)
        if not self._is_flushing:
            self._flush_soon()

    def _flush_soon(self) -> None:
        self._is_flushing = True
        self._loop.call_soon(self._flush)
        if self._timer is None:
            self._watch()

    def _flush(self) -> None:
        self._is_flushing = False
        waiting = len(self._outgoing)
        if self._transport is None or not self._is_writable or not waiting or self._refused:
            return
        allowed = MAX_IN_FLIGHT - (len(self._adds) + len(self._reads) - waiting)
        if waiting <= allowed:
            requests = b"".join(self._outgoing)
            self._outgoing.clear()
        elif allowed > 0:
            requests = b"".join([self._outgoing.popleft() for _ in range(allowed)])
        else:
            return  # wait for answers
        self._transport.write(requests)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        if self.broken is not None:  # while the connection was being made
            transport.abort()
            return
        self._transport = transport
        self._flush()

    def pause_writing(self) -> None:
        self._is_writable = False

    def resume_writing(self) -> None:
        self._is_writable = True
        self._flush()

    # --- answers

    def data_received(self, data: bytes) -> None:
        if self.broken is not None:
            return
        try:
            self._answer(self._responses.receive(data))
        except BookieFailed as mistake:
            self.break_off(str(mistake))
        if self._outgoing and not self._is_flushing:
            self._flush_soon()

    def _answer(self, responses: Iterable[Response]) -> None:
        """Handle responses; one call of an adder reports consecutive stored entries."""
        adds, adder, first, last = self._adds, None, 0, 0
        try:
            for response in responses:
                operation, code, ledger_id, entry_id, _ = response
                if operation != _ADD:
                    self._read_answered((operation, ledger_id, entry_id), response)
                    continue
                found = adds.pop((ledger_id, entry_id), None)
                if found is None:
                    continue
                if code == _OVERLOADED and self._is_patient():
                    adds[(ledger_id, entry_id)] = found  # now the newest
                    self._send_later(found[1])
                    continue
                self.pending_bytes -= len(found[1])
                if found[0] is adder and entry_id == last + 1 and code == _OK:
                    last = entry_id
                    continue
                told, adder = adder, None
                if told is not None:
                    told.added(first, last)
                if code == _OK:
                    adder, first, last = found[0], entry_id, entry_id
                    self._overloaded_since_s = None
                else:
                    found[0].refused(entry_id, code)
                if self.broken is not None:  # by a callback
                    break
        finally:
            if adder is not None:
                adder.added(first, last)

    def _read_answered(self, key: Key, response: Response) -> None:
        line = self._reads.get(key)
        if line is None:
            return
        read = line.popleft()
        if line:
            # Move the next request to the end: it is sent now, and its timeout begins now.
            del self._reads[key]
            self._reads[key] = line
            self._send(line[0].request)
        else:
            del self._reads[key]
        for answered in read.answered:
            answered(response, None)

    # --- an overloaded bookie

    def _is_patient(self) -> bool:
        """False once the bookie has stored nothing for as long as an answer may take."""
        now_s = self._loop.time()
        if self._overloaded_since_s is None:
            self._overloaded_since_s = now_s
        if now_s - self._overload_logged_s >= OVERLOADED_LOG_S:
            self._overload_logged_s = now_s
            log.warning("bookie %s is overloaded and refuses entries; they wait", self.bookie)
        return now_s - self._overloaded_since_s <= self._timeout_s

    def _send_later(self, request: bytes) -> None:
        self._refused.append(request)
        if self._resend is None:
            self._resend = self._loop.call_later(OVERLOADED_PAUSE_S, self._send_refused)

    def _send_refused(self) -> None:
        self._resend = None
        self._outgoing.extendleft(reversed(self._refused))
        self._refused.clear()
        if not self._is_flushing:
            self._flush_soon()

    # --- the end

    def break_off(self, why: str) -> None:
        """Fail all requests in flight, and close. Idempotent."""
        if self.broken is not None:
            return
        self.broken = BookieFailed(f"bookie {self.bookie}: {why}")
        if self._timer is not None:
            self._timer.cancel()
        if self._resend is not None:
            self._resend.cancel()
        if self._transport is not None:
            self._transport.abort()
        adds, self._adds = self._adds, {}
        reads, self._reads = self._reads, {}
        self._outgoing.clear()
        self._refused.clear()
        self.pending_bytes = 0
        self._lost(self)
        for (_, entry_id), (adder, _) in adds.items():
            adder.failed(entry_id, self.broken)
        for line in reads.values():
            for read in line:
                for answered in read.answered:
                    answered(None, self.broken)

    def connection_lost(self, error: Exception | None) -> None:
        self.was_closed = self.broken is None
        self.break_off(f"the connection was lost ({error or 'closed by the bookie'})")
        self._transport = None

    def _watch(self) -> None:
        """Break the connection if the oldest request is overdue. The first request of a dict is the
        oldest, so one timer suffices.
        """
        self._timer = None
        line = next(iter(self._reads.values()), None)
        # Compare the read itself, not its key: the same entry may be read again and again.
        oldest = (next(iter(self._adds), None), None if line is None else line[0])
        if oldest == (None, None):
            self._unchanged = 0
            self._oldest = oldest
            return
        stuck = any(
            now is not None and now == before
            for now, before in zip(oldest, self._oldest, strict=True)
        )
        self._unchanged = self._unchanged + 1 if stuck else 0
        self._oldest = oldest
        if self._unchanged > CHECKS_PER_TIMEOUT:
            self.break_off(f"no answer within {self._timeout_s:g} s")
            return
        self._timer = self._loop.call_later(self._timeout_s / CHECKS_PER_TIMEOUT, self._watch)
