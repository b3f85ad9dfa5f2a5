"""A connection's unanswered requests: tasks, and futures, which cost less."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Final, TypeVar

from managed_ledger.prompt import when_done
from pybroker.base.errors import ChecksumError, NotAllowed, PulsarError, ServiceNotReady
from pybroker.base.runtime import Tasks, is_a_sentence

# How the version of a client begins that reconnects when the broker closes a waiting producer.
# After an error it reconnects only in the first seconds; other clients accept only an error.
COMES_BACK: Final = "Pulsar-Java"
# How the version of a client begins (C++, and Python and Node.js, which use it) that, after any
# error for a message except ChecksumError, reconnects and sends the message again, without end.
_FAILS_ONLY_DAMAGED: Final = "Pulsar-CPP"
MAX_AT_HAND: Final = 1000
_MAX_BYTES_AT_HAND: Final = 2 * 1024 * 1024  # of the commands themselves

T = TypeVar("T")
Refuse = Callable[[PulsarError], None]

log = logging.getLogger("pybroker.session")


class Requests:
    """`busy` is called when no more should be read, `idle` when at most half as many are left. A
    request's `size_bytes` is the memory that its command uses until it is answered.
    """

    def __init__(self, busy: Callable[[], None], idle: Callable[[], None]) -> None:
        self._tasks = Tasks("session")
        self._begun: dict[asyncio.Future[Any], None] = {}
        self._busy = busy
        self._idle = idle
        self._is_busy = False
        self._at_hand = 0  # tasks and futures
        self._size_bytes = 0

    def start(
        self, work: Coroutine[Any, Any, None], name: str, size_bytes: int = 0
    ) -> asyncio.Task[None]:
        """Runs a handler, or the rest of an immediate one; `work` answers its own errors."""
        task = self._tasks.start(work, name)
        self._at_hand += 1
        self._size_bytes += size_bytes
        if self._at_hand >= MAX_AT_HAND or self._size_bytes > _MAX_BYTES_AT_HAND:
            self._be_busy()
        task.add_done_callback(lambda _: self._ended(size_bytes))
        return task

    def answer_later(
        self,
        work: Awaitable[T],
        answer: Callable[[T], None],
        refuse: Refuse,
        size_bytes: int = 0,
    ) -> None:
        """Answers with the result of `work`, which belongs to this request alone."""
        if not isinstance(work, asyncio.Future):
            self.start(_answered(work, answer, refuse), "answer later", size_bytes)
            return
        self._begun[work] = None
        self._at_hand += 1
        self._size_bytes += size_bytes
        if self._at_hand >= MAX_AT_HAND or self._size_bytes > _MAX_BYTES_AT_HAND:
            self._be_busy()
        when_done(work, partial(self._answer, answer, refuse, size_bytes))

    def _answer(
        self,
        answer: Callable[[T], None],
        refuse: Refuse,
        size_bytes: int,
        work: "asyncio.Future[T]",
    ) -> None:
        del self._begun[work]
        self._at_hand -= 1
        if not work.cancelled():
            error = work.exception()
            if error is None:
                answer(work.result())
            else:
                refuse(as_answer(error))
        self._size_bytes -= size_bytes
        if self._is_busy:
            self._look_whether_idle()

    def _be_busy(self) -> None:
        self._is_busy = True
        self._busy()

    def _ended(self, size_bytes: int) -> None:
        self._at_hand -= 1
        self._size_bytes -= size_bytes
        if self._is_busy:
            self._look_whether_idle()

    def _look_whether_idle(self) -> None:
        if self._at_hand <= MAX_AT_HAND // 2 and self._size_bytes <= _MAX_BYTES_AT_HAND:
            self._is_busy = False
            self._idle()

    async def close(self) -> None:
        """The peer is gone: answer nothing more."""
        await self._tasks.close()

    async def ended(self) -> None:
        """Returns when all are answered."""
        while len(self._tasks) or self._begun:
            await self._tasks.ended()
            if self._begun:
                await asyncio.wait(self._begun)


async def _answered(work: Awaitable[T], answer: Callable[[T], None], refuse: Refuse) -> None:
    try:
        result = await work
    except Exception as error:
        refuse(as_answer(error))
    else:
        answer(result)


def though_closed(work: Awaitable[T]) -> Awaitable[T]:
    """To await in a request's task: work that has begun continues when the connection closes."""
    return asyncio.shield(work) if isinstance(work, asyncio.Future) else work


def as_answer(error: BaseException) -> PulsarError:
    """The error for the client; unexpected errors are also logged.

    Drops the tracebacks: several requests may have waited for the same, which keeps its error, and
    its frames refer to their connections.
    """
    try:
        return _as_answer(error)
    finally:
        at: BaseException | None = error
        while at is not None and at.__traceback__ is not None:  # a chain may be a circle
            at.__traceback__ = None
            at = at.__cause__ or at.__context__


def _as_answer(error: BaseException) -> PulsarError:
    if isinstance(error, PulsarError):
        return error
    if is_a_sentence(error):
        log.warning("a request failed: %s", error)
        return ServiceNotReady(str(error))
    log.error("a request failed", exc_info=error)
    return ServiceNotReady(f"The broker failed to handle the request: {error!r}; try again")


def as_final(client_version: str, error: PulsarError) -> PulsarError:
    """The error for a message that must not be stored, in terms that its client takes as final."""
    if isinstance(error, NotAllowed) and client_version.startswith(_FAILS_ONLY_DAMAGED):
        return ChecksumError(error.on_the_wire)
    return error
