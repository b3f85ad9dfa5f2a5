"""A future that calls back in the turn in which it is done.

A callback of an asyncio future runs in the next turn of the loop, after the loop has polled the
sockets. The waiters for a durable write need not wait that long. If only coroutines wait, a plain
future is as prompt: coroutines continue in the next turn anyway.
"""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


_set_result = asyncio.Future.set_result  # cheaper than super(): called for each durable record


class Prompt(asyncio.Future[T]):
    """A future with callbacks that run at once, those of `then`; `prompt` makes one. Coroutines and
    callbacks of `add_done_callback` continue in the next turn, as ever.
    """

    __slots__ = ("_then",)

    _then: tuple[Callable[["Prompt[T]"], object], ...]

    def then(self, callback: Callable[["Prompt[T]"], object]) -> None:
        """Call `callback` with this future within the call that sets the outcome, in the order of
        the calls of `then`. If there is already an outcome, call `callback` in the next turn, never
        within `then`.
        """
        if self.done():
            self.add_done_callback(callback)
        else:
            self._then += (callback,)

    def set_result(self, result: T, /) -> None:
        _set_result(self, result)
        then, self._then = self._then, ()
        for callback in then:
            try:
                callback(self)
            except Exception as mistake:
                self._report(mistake)

    def set_exception(self, exception: type | BaseException, /) -> None:
        super().set_exception(exception)
        self._tell()

    def cancel(self, msg: Any | None = None) -> bool:
        cancelled = super().cancel(msg)
        self._tell()
        return cancelled

    def _tell(self) -> None:
        then, self._then = self._then, ()
        for callback in then:
            try:
                callback(self)
            except Exception as mistake:
                self._report(mistake)

    def _report(self, mistake: Exception) -> None:
        """It must not stop other callbacks or the caller."""
        context = {"message": "a callback failed", "exception": mistake, "future": self}
        self.get_loop().call_exception_handler(context)


def prompt() -> "Prompt[Any]":
    """A Prompt of the running loop."""
    made: Prompt[Any] = Prompt()
    made._then = ()
    return made


def when_done(
    future: "asyncio.Future[T]", callback: Callable[["asyncio.Future[T]"], object]
) -> None:
    """Call `callback` as `then` does if `future` is a Prompt, else in the next turn."""
    if isinstance(future, Prompt) and not future.done():
        future._then += (callback,)
    else:
        future.add_done_callback(callback)


def fail(waiting: "asyncio.Future[Any]", error: BaseException) -> None:
    """Fail the future, unless it is already done, for instance cancelled."""
    if not waiting.done():
        waiting.set_exception(error)
        waiting.exception()  # marks the error as retrieved: there may be no waiter
