"""Ends of transactions that wait until something is known about their topic, or until it is loaded,
and begin in the order in which they came: a topic in commit order shows the transactions in that
order.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Generic, TypeVar

from managed_ledger.prompt import Prompt, fail, prompt, when_done
from managed_ledger.shared_task import shared_task
from pybroker.base.errors import ServiceNotReady
from pybroker.base.names import TopicName
from pybroker.base.runtime import Tasks, is_a_sentence

R = TypeVar("R")

# Begins an end. Receives what the topic's ends waited for.
End = Callable[[R], Awaitable[object] | None]


class WaitingEnds(Generic[R]):
    """The topics with ends that wait. A later end on one of these topics must wait, too."""

    def __init__(self, owner: str, get_ready: Callable[[TopicName], Awaitable[R]]) -> None:
        """`get_ready` is called for the first end on a topic; if it fails, all that wait fail."""
        self._get_ready = get_ready
        self._waiting: dict[TopicName, list[tuple[End[R], Prompt[object]]]] = {}
        self._tasks = Tasks(owner)
        self._closed = False

    async def close(self) -> None:
        """Fail the ends that wait; their coordinators repeat them. No end can wait any more."""
        self._closed = True
        await self._tasks.close()
        for name in list(self._waiting):
            self._fail(name, _stopping(name))

    def __contains__(self, name: TopicName) -> bool:
        """Whether ends on the topic wait."""
        return name in self._waiting

    def add(self, name: TopicName, end: End[R]) -> Prompt[object]:
        """The future has the outcome of the end. Cancelling it does not cancel the end."""
        ended: Prompt[object] = prompt()
        if self._closed:
            fail(ended, _stopping(name))
            return ended
        waiting = self._waiting.get(name)
        if waiting is None:
            waiting = self._waiting[name] = []
            self._tasks.start(self._begin_when_ready(name), f"ends on {name}")
        waiting.append((end, ended))
        return ended

    async def _begin_when_ready(self, name: TopicName) -> None:
        try:
            ready = await self._get_ready(name)
        except asyncio.CancelledError:
            self._fail(name, _stopping(name))
            raise
        except Exception as failure:
            self._fail(name, failure)
        else:
            _begin_all(self._waiting.pop(name), ready)

    def _fail(self, name: TopicName, failure: Exception) -> None:
        for _, ended in self._waiting.pop(name):
            fail(ended, failure)


def _stopping(name: TopicName) -> ServiceNotReady:
    return ServiceNotReady(f"{name}: the broker is stopping; try again")


def _begin_all(ends: list[tuple[End[R], Prompt[object]]], ready: R) -> None:
    for end, ended in ends:
        _begin(end, ready, ended)


def _begin(end: End[R], ready: R, ended: Prompt[object]) -> None:
    try:
        ending = end(ready)
    except Exception as error:
        if is_a_sentence(error):
            error = error.with_traceback(None)  # its frames refer to the topic, and to `ended`
        fail(ended, error)
        return
    if ending is None:
        _succeed(ended, None)
        return
    # Cancelling `ended` does not cancel it: others may wait for the same result.
    started = shared_task(ending) if isinstance(ending, Coroutine) else ending
    assert isinstance(started, asyncio.Future), "an end is a coroutine or a future"
    when_done(started, partial(_pass_on, ended))


def _pass_on(ended: Prompt[object], ending: "asyncio.Future[object]") -> None:
    if ending.cancelled():
        fail(ended, ServiceNotReady("the end was interrupted; try again"))
    elif (error := ending.exception()) is not None:
        fail(ended, error)
    else:
        _succeed(ended, ending.result())


def _succeed(ended: Prompt[object], result: object) -> None:
    if not ended.done():  # otherwise the request was cancelled
        ended.set_result(result)
