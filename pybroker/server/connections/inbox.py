"""A connection's input: decoded in turns, handed over in order, held back while a `Pause` applies.

Memory: before CONNECT no frame may exceed `HANDSHAKE_BYTES`; afterwards the `FrameBudget` counts a
large frame that is partly received. Time: a turn handles a limited number of commands, then yields
the loop to other work. A frame that has not arrived within two keep-alive intervals, although the
broker was reading, closes the connection.
"""

import asyncio
from collections.abc import Callable
from enum import Enum
from typing import Final

from pybroker.base.runtime import do_nothing
from pybroker.server.connections.frame_budget import FREE_BYTES, FrameBudget, machine_at
from pybroker.wire.frames import Event, FrameDecoder, ProtocolError

HANDSHAKE_BYTES: Final = 64 * 1024
EVENTS_A_TURN: Final = 64
COMMAND_BYTES_A_TURN: Final = 8 * 1024


class Pause(Enum):
    """Why the socket is not being read."""

    BUDGET = "too many published bytes not yet durable"
    FRAMES = "too many large frames partly received"
    OUTBOX = "the peer does not read"
    TASKS = "too many requests at once"
    LONG = "a long command"
    BEHIND = "more than one turn's work"
    RATE = "faster than a publish rate allows"
    FAULT = "messages wait at a fault point"
    STOPPING = "the broker shuts down"


# For these reasons, commands that were already received are not handled either.
_HOLDING: Final = frozenset({Pause.OUTBOX, Pause.TASKS, Pause.LONG})
_OF_PEER: Final = frozenset({Pause.OUTBOX, Pause.BEHIND})
_THROTTLING: Final = frozenset({Pause.BUDGET, Pause.RATE})


class Inbox:
    def __init__(
        self,
        handle: Callable[[Event], None],
        refuse: Callable[[ProtocolError], None],
        frames: FrameBudget,
    ) -> None:
        """`refuse` ends a connection whose input cannot be decoded any further."""
        self._handle = handle
        self._refuse = refuse
        self._frames = frames
        # One command at a time until CONNECT is accepted.
        self._decoder = FrameDecoder(HANDSHAKE_BYTES, events_a_turn=1)
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._paused: set[Pause] = set()
        self._waiting: list[Event] = []  # received, not yet handled
        self._going_on = False  # `_go_on` is scheduled
        # For a caller waiting until the queue is empty.
        self._caught_up: asyncio.Future[None] | None = None
        self._frame_bytes = 0  # taken from the budget, or requested
        self._machine = ""  # known with the first large frame
        self._checks_of_frame = 0
        self._closed = False

    def open(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def connected(self, max_message_bytes: int) -> None:
        self._decoder.allow(max_message_bytes)
        self._decoder.events_a_turn = EVENTS_A_TURN
        self._decoder.command_bytes_a_turn = COMMAND_BYTES_A_TURN

    def receive(self, data: bytes | memoryview) -> None:
        try:
            self._handle_all(self._decoder.receive(data))
        except ProtocolError as error:
            self._refuse(error)
        if self._decoder.held_bytes or self._frame_bytes:
            self._account_frame()

    def _handle_all(self, events: list[Event]) -> None:
        if events:
            self._checks_of_frame = 0
        for index, event in enumerate(events):
            self._handle(event)
            if self._paused and not self._paused.isdisjoint(_HOLDING):
                self._waiting = events[index + 1 :]
                break
        if self._waiting or self._decoder.has_more:
            self.pause(Pause.BEHIND)
            self._go_on_soon()
        elif self._paused and Pause.BEHIND in self._paused:
            self._discard_waiting()

    def _go_on_soon(self) -> None:
        if not self._going_on and self._paused.isdisjoint(_HOLDING):
            self._going_on = True
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """Handles what was received but not handled yet."""
        self._going_on = False
        if self._closed or not self._paused.isdisjoint(_HOLDING):
            return
        events, self._waiting = self._waiting, []
        if not events:
            self.receive(b"")
            return
        try:
            self._handle_all(events)
        except ProtocolError as error:
            self._refuse(error)

    def _discard_waiting(self) -> None:
        self._waiting = []
        self.resume(Pause.BEHIND)
        if self._caught_up is not None:
            self._caught_up.set_result(None)
            self._caught_up = None

    async def caught_up(self) -> None:
        """Returns when everything received is handled, or never will be."""
        while Pause.BEHIND in self._paused:
            self._caught_up = self._caught_up or self._loop.create_future()
            await asyncio.shield(self._caught_up)

    @property
    def behind(self) -> bool:
        return Pause.BEHIND in self._paused

    # -- pausing

    @property
    def throttled(self) -> bool:
        """Whether this connection publishes too fast."""
        return not self._paused.isdisjoint(_THROTTLING)

    def pause(self, why: Pause) -> None:
        if not self._paused and self._transport is not None:
            self._transport.pause_reading()
        self._paused.add(why)

    def resume(self, why: Pause) -> None:
        if why not in self._paused:
            return
        self._paused.remove(why)
        if Pause.BEHIND in self._paused:
            self._go_on_soon()
        elif not self._paused and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    # -- partly received frames

    def _account_frame(self) -> None:
        size = self._decoder.wanted_bytes
        if size <= FREE_BYTES or self._closed:
            size = 0
        if size == self._frame_bytes:
            return
        if not self._machine:
            self._machine = machine_at(self._transport)
        if self._frame_bytes:
            self._frames.give_back(self._frame_bytes, self._frame_granted, self._machine)
        self._frame_bytes = size
        if size and not self._frames.take(size, self._frame_granted, self._machine):
            self.pause(Pause.FRAMES)

    def _frame_granted(self) -> None:
        self.resume(Pause.FRAMES)

    @property
    def deaf(self) -> bool:
        """Whether reading is paused for reasons outside the peer's control, unlike commands that
        wait until the peer reads.
        """
        of_peer = _OF_PEER if Pause.OUTBOX in self._paused else frozenset()
        return not self._paused <= of_peer

    def is_stuck(self) -> bool:
        """Call once per keep-alive interval. Whether the same frame was already incomplete at the
        last two checks, although nothing prevented the peer from sending it.
        """
        if self._decoder.held_bytes and not self._paused:
            self._checks_of_frame += 1
        return self._checks_of_frame > 2

    def close(self) -> None:
        """Handles nothing more."""
        self._closed = True
        self._discard_waiting()
        self._account_frame()
        # Breaks a cycle, so that the session is freed without a garbage collection.
        self._handle = self._refuse = do_nothing
