"""An event loop on its own thread, and the ways into it from other threads.

`call` runs a coroutine there and waits for it. `post` hands over a function without waiting;
functions run in the order of posting, and a burst of them wakes the loop once.

The thread refers to its `_Running`, not to the `LoopThread`. So it shuts down automatically once
nothing refers to the `LoopThread` any more, because nobody can close it then. However the loop
ends, every waiting call raises AlreadyClosed, and everything posted before has run.
"""

import asyncio
import concurrent.futures
import os
import threading
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Protocol, TypeVar

from pybroker.client.errors import AlreadyClosed, ClientError

T = TypeVar("T")


class Space:
    """Limits the messages in flight; threads wait for room.

    They wait until half of the room is free: waking a thread for each message would cost more than
    the message.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._awaited: list[int] = []  # how much may be in use when each waiter continues
        self._closed = False
        self._changed = threading.Condition()

    def take(self, count: int) -> None:
        """Waits for room, unless closed. A request above the limit passes alone."""
        with self._changed:
            if self._used + count > self._limit:
                self._wait_for(max(0, min(self._limit // 2, self._limit - count)))
            self._used += count

    def _wait_for(self, used: int) -> None:
        """Waits until no more than `used` is in use."""
        self._awaited.append(used)
        try:
            self._changed.wait_for(lambda: self._closed or self._used <= used)
        finally:
            self._awaited.remove(used)

    def take_now(self, count: int) -> None:
        """Exceeds the limit if necessary; for the thread that frees room, which must not wait."""
        with self._changed:
            self._used += count

    def give_back(self, count: int) -> None:
        with self._changed:
            before, self._used = self._used, self._used - count
            if any(self._used <= awaited < before for awaited in self._awaited):
                self._changed.notify_all()

    def close(self) -> None:
        """No more room will be freed."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def forked(self, error: Exception) -> None:
        self._closed = True
        self._changed = threading.Condition()


class WaitedOn(Protocol):
    def close(self) -> None: ...

    def forked(self, error: Exception) -> None:
        """Called in a forked process: a thread that does not exist there may hold the locks.
        `error` says why nothing works any more."""
        ...


_FORKED: Final = (
    "A Client does not survive a fork: create one in the new process "
    "(to continue a transaction there, pass its txn_id to attach_transaction)"
)


class _Running:
    """The part that belongs to the thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.lock = threading.Lock()
        self.ending = False
        self.posted: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self.woken = False
        # Objects on which threads wait without a call into this thread: closed when it ends.
        self.waited_on: weakref.WeakSet[WaitedOn] = weakref.WeakSet()
        _all_running.add(self)

    def forked(self) -> None:
        self.lock = threading.Lock()
        for waited_on in list(self.waited_on):
            waited_on.forked(ClientError(_FORKED))

    def run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            # Also if the loop was ended unexpectedly, for example by a callback's SystemExit.
            self._wind_up()

    def _wind_up(self) -> None:
        with self.lock:
            self.ending = True
        for waited_on in list(self.waited_on):
            waited_on.close()
        self.run_posted()
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        # Waiters on other threads are notified while the loop still runs.
        self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()

    def run_posted(self) -> None:
        # First clear the flag: a post after the last look below must wake the loop again.
        self.woken = False
        for _ in range(len(self.posted)):
            function, arguments = self.posted.popleft()
            try:
                function(*arguments)
            except Exception as error:
                self.loop.call_exception_handler(
                    {"message": f"{function} failed", "exception": error}
                )

    def stop(self) -> None:
        with self.lock:
            if self.ending:
                return
            self.ending = True
        self.loop.call_soon_threadsafe(self.loop.stop)

    def abandoned(self, goodbye: Callable[[], Awaitable[None]], process_id: int) -> None:
        """Called by the garbage collector, on any thread: takes no lock and waits for nothing."""
        if process_id == os.getpid() and not self.ending and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._end_alone, goodbye)

    def _end_alone(self, goodbye: Callable[[], Awaitable[None]]) -> None:
        task = self.loop.create_task(_run(goodbye))
        task.add_done_callback(lambda _: self.loop.stop())


async def _run(goodbye: Callable[[], Awaitable[None]]) -> None:
    await goodbye()


_all_running: "weakref.WeakSet[_Running]" = weakref.WeakSet()


def _in_forked_process() -> None:
    for running in list(_all_running):
        running.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_forked_process)


class LoopThread:
    def __init__(self, name: str) -> None:
        self._running = _Running()
        self._process_id = os.getpid()
        self._thread = threading.Thread(target=self._running.run, name=name, daemon=True)
        self._thread.start()

    def on_abandonment(self, goodbye: Callable[[], Awaitable[None]]) -> None:
        """Sets what runs before the shutdown that starts once nothing refers to this object."""
        end = weakref.finalize(self, self._running.abandoned, goodbye, self._process_id)
        end.atexit = False

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Returns the result of `work`. An interrupt (Ctrl-C) cancels it. Raises AlreadyClosed."""
        try:
            self.refuse_on_own_thread()
            with self._running.lock:
                self._refuse_if_gone()
                future = asyncio.run_coroutine_threadsafe(work, self._running.loop)
        except ClientError:
            work.close()
            raise
        try:
            return future.result()
        except concurrent.futures.CancelledError as error:
            raise AlreadyClosed("The client was closed before the call completed") from error
        except BaseException:
            future.cancel()
            raise

    def post(self, function: Callable[..., object], *arguments: Any) -> None:
        running = self._running
        with running.lock:
            self._refuse_if_gone()
            running.posted.append((function, arguments))
            if running.woken:
                return
            running.woken = True
            running.loop.call_soon_threadsafe(running.run_posted)

    def space(self, limit: int) -> Space:
        """A limit that is closed when this thread ends."""
        space = Space(limit)
        self.ends(space)
        return space

    def ends(self, waited_on: WaitedOn) -> None:
        """Closes `waited_on` when this thread ends."""
        self._running.waited_on.add(waited_on)

    @property
    def is_current(self) -> bool:
        return threading.current_thread() is self._thread

    def _refuse_if_gone(self) -> None:
        if self._process_id != os.getpid():
            raise ClientError(_FORKED)
        if self._running.ending:
            raise AlreadyClosed("The client is closed")

    def refuse_to_wait(self) -> None:
        """Checks that waiting for this thread is allowed, for waits other than `call`."""
        self.refuse_on_own_thread()
        self._refuse_if_gone()

    def refuse_on_own_thread(self) -> None:
        if self.is_current:
            raise ClientError(
                "A callback runs on the client's own thread and must not wait for the client: "
                "use send_async there, or hand the work to another thread"
            )

    def stop(self) -> None:
        if self._process_id == os.getpid():
            self._running.stop()
            self._thread.join()
