"""Records all HTTP answers of brokers, from any client."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from unittest.mock import patch

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pybroker.admin import application


@dataclass(slots=True)
class Answer:
    method: str
    path: str
    status: int = 0
    body: bytearray = field(default_factory=bytearray)

    def __str__(self) -> str:
        return f"{self.method} {self.path}: {self.status}"


@contextmanager
def watched_answers() -> Iterator[list[Answer]]:
    """The answers of every broker with its first request meanwhile, in the order of requests."""
    answers: list[Answer] = []
    make = application.create_app
    with patch.object(application, "create_app", lambda *parts: _watched(make(*parts), answers)):
        yield answers


def _watched(app: ASGIApp, answers: list[Answer]) -> ASGIApp:
    async def watched(scope: Scope, receive: Receive, send: Send) -> None:
        answer = Answer(scope["method"], scope["raw_path"].decode())
        answers.append(answer)

        async def heard(message: Message) -> None:
            answer.status = message.get("status", answer.status)
            answer.body += message.get("body", b"")
            await send(message)

        await app(scope, receive, heard)

    return watched
