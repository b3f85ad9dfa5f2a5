"""The handler of one kind of command."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from pybroker.base.errors import PulsarError
from pybroker.server.connections.connection import Connection, Rest
from pybroker.wire import commands


def _answer_error(session: Connection, body: Any, error: PulsarError) -> None:
    session.write(commands.error(body.request_id, error))


def _no_answer(session: Connection, body: Any, result: object) -> None:
    """The handler writes its own answer."""


@dataclass(frozen=True, slots=True)
class Handler:
    """`immediate` runs while the chunk is parsed, `deferred` in a task. `begun` starts at once, and
    `answer` gets its result. Each handler has exactly one of the three.

    `immediate` returns the rest of its work if that would block the loop for long; later commands
    on the connection wait for the rest.
    """

    field: str  # the body's field in BaseCommand
    immediate: Callable[[Connection, Any], Rest | None] | None = None
    deferred: Callable[[Connection, Any], Awaitable[None]] | None = None
    begun: Callable[[Connection, Any], Awaitable[Any]] | None = None
    answer: Callable[[Connection, Any, Any], None] = _no_answer
    answer_error: Callable[[Connection, Any, PulsarError], None] = _answer_error
    ordered_by: Callable[[Any], tuple[str, int] | None] | None = None
