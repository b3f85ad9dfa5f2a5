"""Bytes written to connections but not yet read by the peers: per connection, and in total.

A connection's pieces are collected for one write per tick, or written at once if there are many;
beyond `HIGH_BYTES` in its buffer the transport pauses the session. When all connections together
hold more than the limit, every connection with pending bytes is paused until they are gone, so
peers that keep up are served as before. Accounting is per write, not per entry.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from pybroker.base.runtime import break_cycles_of
from pybroker.broker.client_topics import ServedSubscription

HIGH_BYTES: Final = 1024 * 1024
# Nothing limits the bytes that other connections cause to be sent to one: beyond this it is closed.
MOST_BYTES: Final = 64 * 1024 * 1024
_TIGHT_BYTES: Final = 64 * 1024
_WAKEN_A_TURN: Final = 64


class Outboxes:
    """The sum over all connections."""

    def __init__(self, limit_bytes: int) -> None:
        self.held_bytes = 0  # as of the last write of each; may include bytes sent since
        self.tight = False  # the limit is reached
        self._to_flush: list[Outbox] = []  # at the end of this tick
        self._limit_bytes = limit_bytes
        self._held: dict[Outbox, int] = {}

    def flush_soon(self, outbox: "Outbox") -> None:
        """Flushes together with all others at the end of this tick."""
        if not self._to_flush:
            asyncio.get_running_loop().call_soon(self._flush_all)
        self._to_flush.append(outbox)

    def _flush_all(self) -> None:
        outboxes, self._to_flush = self._to_flush, []
        for outbox in outboxes:
            outbox.flush_tick()

    def account(self, outbox: "Outbox", held_bytes: int) -> None:
        """Records how many bytes `outbox` holds now."""
        self.held_bytes += held_bytes - self._held.pop(outbox, 0)
        if held_bytes:
            self._held[outbox] = held_bytes
        if self.tight:
            if held_bytes:
                outbox.tighten()
            if self.held_bytes * 2 <= self._limit_bytes:
                self._loosen()
        elif self.held_bytes > self._limit_bytes:
            self._count_again()

    def _count_again(self) -> None:
        self._held = {box: held for box in self._held if (held := box.buffered_bytes)}
        self.held_bytes = sum(self._held.values())
        if self.held_bytes > self._limit_bytes:
            self.tight = True
            for outbox in list(self._held):
                outbox.tighten()

    def _loosen(self) -> None:
        self.tight = False
        for outbox in list(self._held):
            outbox.loosen()


class Outbox:
    """The outbox of one connection."""

    def __init__(self, outboxes: Outboxes) -> None:
        self._outboxes = outboxes
        self._transport: asyncio.Transport | None = None
        self._pieces: list[bytes] = []
        self._pieces_bytes = 0
        self._flushing = False
        self._written_bytes = 0  # since the beginning
        self._sent_bytes: int | None = None  # at the last `is_being_read`, if some were left
        self._held = False  # whether it had bytes when last accounted
        self._tightened = False

    def open(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        transport.set_write_buffer_limits(high=HIGH_BYTES)

    @property
    def buffered_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def write(self, data: bytes) -> None:
        """Sends `data` together with everything else of this tick."""
        self._pieces.append(data)
        self._pieces_bytes += len(data)
        if self._pieces_bytes >= (_TIGHT_BYTES if self._outboxes.tight else HIGH_BYTES):
            self.flush()
        elif not self._flushing:
            self._flushing = True
            self._outboxes.flush_soon(self)

    def flush_tick(self) -> None:
        self._flushing = False
        self.flush()

    def flush(self) -> None:
        pieces, self._pieces, self._pieces_bytes = self._pieces, [], 0
        transport = self._transport
        if not pieces or transport is None or transport.is_closing():
            return
        joined = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._written_bytes += len(joined)
        transport.write(joined)
        held_bytes = transport.get_write_buffer_size()
        if held_bytes or self._held:
            self._account(held_bytes)
        if held_bytes > MOST_BYTES:
            transport.abort()

    def is_being_read(self) -> bool:
        """Call once per keep-alive interval. Whether bytes waited at the last call, and the peer
        has taken some of them since.
        """
        held_bytes, before = self.buffered_bytes, self._sent_bytes
        sent_bytes = self._written_bytes - held_bytes
        self._sent_bytes = sent_bytes if held_bytes else None
        return before is not None and before < sent_bytes

    def drained(self) -> None:
        """Called when the transport accepts more."""
        self._account(self.buffered_bytes)
        if self._tightened and not self._held:
            self.loosen()

    def close(self) -> None:
        """Called when the connection is gone, and its pending bytes with it."""
        self._pieces.clear()
        self._account(0)
        break_cycles_of(self._transport)

    def _account(self, held_bytes: int) -> None:
        self._held = held_bytes > 0
        self._outboxes.account(self, held_bytes)

    def tighten(self) -> None:
        """Pauses the session until everything has been sent."""
        if not self._tightened and self._transport is not None:
            self._tightened = True
            self._transport.set_write_buffer_limits(high=0)

    def loosen(self) -> None:
        if self._tightened and self._transport is not None:
            self._tightened = False
            self._transport.set_write_buffer_limits(high=HIGH_BYTES)


class Waking:
    """Resumes the consumers of a connection after a pause, some per tick. If the outbox fills again
    before all had their turn, the remaining ones come first the next time.
    """

    def __init__(self, may_go_on: Callable[[], bool]) -> None:
        self._may_go_on = may_go_on
        self._asleep: dict[ServedSubscription, None] = {}
        self._waking = False

    def close(self) -> None:
        """Called when the connection is gone: wakes nothing more, and drops all references."""
        self._asleep.clear()
        self._may_go_on = bool  # returns False

    def wake(self, subscriptions: Iterable[ServedSubscription]) -> None:
        self._asleep.update(dict.fromkeys(subscriptions))
        if not self._waking:
            self._wake_some()

    def _wake_some(self) -> None:
        self._waking = False
        for subscription in list(self._asleep)[:_WAKEN_A_TURN]:
            if not self._may_go_on():
                return
            del self._asleep[subscription]
            subscription.notify()
        if self._asleep:
            self._waking = True
            asyncio.get_running_loop().call_soon(self._wake_some)
