"""An event loop on a thread of its own, and the ways into it from other threads.

`call` runs a coroutine there and waits for it. `post` hands a function over without waiting;
functions run in the order of posting, and a burst of them wakes the loop once.
"""

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from pybroker.client.errors import AlreadyClosed, ClientError

T = TypeVar("T")


class Space:
    """Room for so many messages on their way; threads wait for it.

    They wait until half of it is free: a thread woken for each single message would cost more than
    the message.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._changed = threading.Condition()

    def take(self, count: int) -> None:
        """Waits. More than the limit passes alone."""
        with self._changed:
            if self._used + count > self._limit:
                self._changed.wait_for(lambda: self._half_is_free(count))
            self._used += count

    def _half_is_free(self, count: int) -> bool:
        return self._used <= max(0, min(self._limit // 2, self._limit - count))

    def give_back(self, count: int) -> None:
        with self._changed:
            before, self._used = self._used, self._used - count
            if self._used <= self._limit // 2 < before or self._used == 0:
                self._changed.notify_all()


class LoopThread:
    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._process_id = os.getpid()
        self._posted: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._woken = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`. An interrupt (Ctrl-C) cancels it."""
        try:
            self._refuse_if_gone()
            self._refuse_on_own_thread()
        except ClientError:
            work.close()
            raise
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def post(self, function: Callable[..., object], *arguments: Any) -> None:
        self._refuse_if_gone()
        self._posted.append((function, arguments))
        if not self._woken:
            self._woken = True
            self._loop.call_soon_threadsafe(self._run_posted)

    def _run_posted(self) -> None:
        # First the flag: whoever posts after the last look below must wake the loop again.
        self._woken = False
        for _ in range(len(self._posted)):
            function, arguments = self._posted.popleft()
            try:
                function(*arguments)
            except Exception as error:
                self._loop.call_exception_handler(
                    {"message": f"{function} failed", "exception": error}
                )

    def _refuse_if_gone(self) -> None:
        if self._process_id != os.getpid():
            raise ClientError(
                "A Client does not survive a fork: create one in the new process "
                "(to go on with a transaction there, pass its txn_id to attach_transaction)"
            )
        if self._loop.is_closed():
            raise AlreadyClosed("The client is closed")

    def _refuse_on_own_thread(self) -> None:
        if threading.current_thread() is self._thread:
            raise ClientError(
                "A callback runs on the client's own thread and must not wait for the client: "
                "use send_async there, or hand the work to another thread"
            )

    def stop(self) -> None:
        if self._thread.is_alive() and self._process_id == os.getpid():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
