"""Runs the handler of each command, on the spot or in a task, and answers its errors.

Commands about the same producer or consumer (`Handler.ordered_by`) are handled one after another,
in order of arrival. `hold` is called when later commands must wait for the rest of a long one, and
`release` when that is done.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

from pybroker.base.errors import PulsarError
from pybroker.server.connections.connection import Connection
from pybroker.server.connections.requests import Requests, as_answer
from pybroker.server.handler import Handler
from pybroker.wire import commands
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.connection_state import ACCEPTED, ConnectionState
from pybroker.wire.frames import ProtocolError

_MAX_PRODUCERS_AND_CONSUMERS: Final = 20_000
_WITHOUT_TEXT: Final = frozenset({pb.BaseCommand.ACK, pb.BaseCommand.FLOW})  # the frequent ones


class CommandRunner:
    """Of one connection, which is handed in: no cycle keeps it in memory."""

    def __init__(
        self,
        handlers: Mapping[int, Handler],
        requests: Requests,
        hold: Callable[[], None],
        release: Callable[[], None],
    ) -> None:
        self._handlers = handlers
        self._requests = requests
        self._hold = hold
        self._release = release
        self._last_of: dict[tuple[str, int], asyncio.Task[Any]] = {}  # by what orders them

    def run(
        self, to: Connection, state: ConnectionState, command: pb.BaseCommand, size_bytes: int
    ) -> None:
        """Raises ProtocolError for a command that is malformed, or not legal in `state`."""
        kind = command.type
        if kind not in ACCEPTED[state]:
            raise ProtocolError(
                f"command type {kind} is not accepted while the connection is {state.name}"
            )
        handler = self._handlers[kind]
        if not command.HasField(handler.field):
            raise ProtocolError(f"command type {kind} came without its body")
        body = getattr(command, handler.field)
        if kind not in _WITHOUT_TEXT:
            try:
                invalid = commands.has_invalid_text(body)
            except PulsarError as error:
                handler.answer_error(to, body, error)
                return
            if invalid:
                raise ProtocolError(f"{handler.field} contains text that is not UTF-8")
        if handler.immediate is not None:
            self._run_now(to, handler, body)
        elif handler.begun is not None:
            self._begin(to, handler, body, size_bytes)
        else:
            self._start(to, handler, body, size_bytes)

    def _run_now(self, to: Connection, handler: Handler, body: Any) -> None:
        assert handler.immediate is not None
        try:
            rest = handler.immediate(to, body)
        except PulsarError as error:
            handler.answer_error(to, body, error)
        else:
            if rest is not None:
                self._hold()
                task = self._requests.start(_guarded(to, handler, body, rest), handler.field)
                task.add_done_callback(lambda _: self._release())

    def _begin(self, to: Connection, handler: Handler, body: Any, size_bytes: int) -> None:
        assert handler.begun is not None
        try:
            work = handler.begun(to, body)
        except PulsarError as error:
            handler.answer_error(to, body, error)
        else:
            self._requests.answer_later(
                work,
                partial(handler.answer, to, body),
                partial(handler.answer_error, to, body),
                size_bytes,
            )

    def _start(self, to: Connection, handler: Handler, body: Any, size_bytes: int) -> None:
        if len(to.producers) + len(to.consumers) > _MAX_PRODUCERS_AND_CONSUMERS:
            raise ProtocolError("too many producers and consumers on one connection")
        key = handler.ordered_by(body) if handler.ordered_by else None
        before = self._last_of.get(key) if key else None
        work = _after(before, to, handler, body)
        task = self._requests.start(work, handler.field, size_bytes)
        if key is not None:
            self._last_of[key] = task
            task.add_done_callback(lambda ended: self._forget_order(key, ended))

    def _forget_order(self, key: tuple[str, int], task: asyncio.Task[Any]) -> None:
        if self._last_of.get(key) is task:
            del self._last_of[key]


async def _after(
    before: asyncio.Task[Any] | None, to: Connection, handler: Handler, body: Any
) -> None:
    if before is not None and not before.done():
        await asyncio.wait([before])
    assert handler.deferred is not None
    await _guarded(to, handler, body, handler.deferred(to, body))


async def _guarded(to: Connection, handler: Handler, body: Any, work: Awaitable[None]) -> None:
    """Answers with the error if `work` fails."""
    try:
        await work
    except Exception as error:
        handler.answer_error(to, body, as_answer(error))
