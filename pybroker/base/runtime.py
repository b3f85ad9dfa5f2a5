"""The broker's view of its environment: time, and tasks with an owner.

The event loop is the seam for waiting and for the network: `asyncio.sleep`, `loop.call_later` and
transports run on virtual time in a simulated loop. `Clock` is the seam for the current time.
"""

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Coroutine
from datetime import UTC, datetime
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary

from managed_ledger.errors import ManagedLedgerError
from pybroker.base.errors import PulsarError

_SAY_AGAIN_S: Final = 10.0

log = logging.getLogger("pybroker")


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall time in milliseconds since 1970: for publish times, and for deadlines that outlive
        restarts.
        """
        ...

    def monotonic_s(self) -> float:
        """Seconds that never go back: for durations."""
        ...


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return time.monotonic()


def iso_time(at_ms: int) -> str:
    """Formats `now_ms` like Apache Pulsar."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")


class _Turns:
    """The long-running work of one event loop: one piece continues per loop turn."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._handing_out = False

    def next(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        mine: asyncio.Future[None] = loop.create_future()
        self._waiting.append(mine)
        if not self._handing_out:
            self._handing_out = True
            loop.call_soon(self._hand_out, loop)
        return mine

    def _hand_out(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._waiting:
            first = self._waiting.popleft()
            if not first.done():  # otherwise it was cancelled meanwhile
                first.set_result(None)
                loop.call_soon(self._hand_out, loop)
                return
        self._handing_out = False


# The values must not refer to the loop, or it would never be freed.
_turns_of: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, _Turns]] = WeakKeyDictionary()


async def own_turn() -> None:
    """Returns in a turn of the loop that no other caller shares."""
    loop = asyncio.get_running_loop()
    turns = _turns_of.get(loop)
    if turns is None:
        turns = _turns_of[loop] = _Turns()
    await turns.next(loop)


class _Look:
    """The owner of a timer that runs in real time."""

    in_real_time = True  # even if a test advances the time of the loop

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.done: asyncio.Future[None] = loop.create_future()

    def wake(self) -> None:
        if not self.done.done():
            self.done.set_result(None)


async def sleep_in_real_time(delay_s: float) -> None:
    """Like `asyncio.sleep`, but a test does not shorten it by advancing its broker's clock: for
    tasks that watch other programs, whose time does not move with that clock.
    """
    loop = asyncio.get_running_loop()
    look = _Look(loop)
    timer = loop.call_later(delay_s, look.wake)
    try:
        await look.done
    finally:
        timer.cancel()


class Pace:
    """Paces long work: call `step` after each piece, so that other tasks get the loop regularly.

    Of all paced work, only one piece continues in each turn of the loop.
    """

    def __init__(self, steps_a_turn: int) -> None:
        self._steps_a_turn = steps_a_turn
        self._left = steps_a_turn

    async def step(self, steps: int = 1) -> None:
        self._left -= steps
        if self._left <= 0:
            await self.turn()

    async def turn(self) -> None:
        """Wait for a new turn now, even if this turn is not used up."""
        self._left = self._steps_a_turn
        await own_turn()


class Seldom:
    """Logs a repeated message only once in a while, with the number of suppressed repetitions."""

    def __init__(self, logger: logging.Logger, text: str, *args: object) -> None:
        self._logger = logger
        self._message = text % args
        self._next_s = -math.inf
        self._unsaid = 0

    def say(self, of: str = "") -> None:
        """`of` is appended as an example."""
        now_s = asyncio.get_running_loop().time()
        if now_s < self._next_s:
            self._unsaid += 1
            return
        more = f" ({self._unsaid} more since the last line)" if self._unsaid else ""
        self._logger.warning("%s%s%s", self._message, f": {of}" if of else "", more)
        self._next_s, self._unsaid = now_s + _SAY_AGAIN_S, 0


def is_a_sentence(error: BaseException) -> bool:
    """Whether the error was raised on purpose and says what to do; other errors need a
    traceback.
    """
    return isinstance(error, ManagedLedgerError | PulsarError)


def do_nothing(*news: object) -> None:
    pass


def break_cycles_of(transport: object) -> None:
    """Call it when a protocol has lost its connection: asyncio's transports refer to their own
    bound methods, and would wait for the garbage collector.
    """
    attributes = getattr(transport, "__dict__", {})
    for name, value in list(attributes.items()):
        if getattr(value, "__self__", None) is transport:
            del attributes[name]


class Tasks:
    """Owns background tasks. Each failure is logged once; `close` cancels and awaits all tasks."""

    __slots__ = ("_owner", "_tasks")

    def __init__(self, owner: object) -> None:
        """`str(owner)` appears in the log when a task fails."""
        self._owner = owner
        # In order of starting; None while there are none.
        self._tasks: dict[asyncio.Task[Any], None] | None = None

    def __len__(self) -> int:
        return len(self._tasks) if self._tasks is not None else 0

    def start(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        if self._tasks is None:
            self._tasks = {}
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if self._tasks is not None:
            self._tasks.pop(task, None)
            self._tasks = self._tasks or None
        if task.cancelled() or (error := task.exception()) is None:
            return
        if is_a_sentence(error):
            log.error("%s: %s failed: %s", self._owner, task.get_name(), error)
        else:
            log.error("%s: %s failed", self._owner, task.get_name(), exc_info=error)

    async def ended(self) -> None:
        """Returns when no task is running."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def close(self) -> None:
        current = asyncio.current_task()
        waiting = [task for task in self._tasks or () if task is not current]
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        self._owner = str(self._owner)  # breaks a cycle that only a garbage collection would free
