"""The handler of one kind of command."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from pybroker.base.errors import PulsarError
from pybroker.server.connections.connection import Connection, Rest
from pybroker.wire import commands

# What later commands of the same kind wait for; None: nothing.
OrderedBy = Callable[[Any], tuple[str, int] | None]
AnswerError = Callable[[Connection, Any, PulsarError], None]


def error_in(response: Callable[..., Any], /, *same: str, **fields: object) -> AnswerError:
    """Answers errors with a `response` that has these `fields`, and the command's fields `same`."""
    is_long = "error_code" in response.DESCRIPTOR.fields_by_name  # type: ignore[attr-defined]
    code, message = ("error_code", "error_message") if is_long else ("error", "message")

    def answer_error(session: Connection, body: Any, error: PulsarError) -> None:
        told = {each: getattr(body, each) for each in same or ("request_id",)}
        told |= {code: error.code, message: error.on_the_wire}
        session.send_command(response(**told, **fields))

    return answer_error


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
    answer_error: AnswerError = _answer_error
    ordered_by: OrderedBy | None = None
