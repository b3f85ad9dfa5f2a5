"""A receive queue from which threads take messages without the loop's thread.

Taken messages are recorded, and reported to the TopicConsumers together when the loop's thread
calls `settle`. Taking and recording are one step under the lock, so no message is forgotten that is
discarded or counted in the meantime.

A thread that keeps taking messages holds the interpreter, so the loop's thread would report to the
broker only once the queue is empty: broker and application would work in turn, each waiting for the
other. So a thread that took half of the queue waits until the report is sent, and then works on the
other half.
"""

import threading
import time
from collections.abc import Sequence
from typing import Final

from pybroker.client.consuming.message_set import MessageSet
from pybroker.client.consuming.receive_queue import ReceiveQueue, tell_taken
from pybroker.client.errors import AlreadyClosed, Timeout
from pybroker.client.messages import Message

_PATIENCE_S: Final = 0.002  # how long to wait for a busy loop


class ThreadQueue(ReceiveQueue):
    def __init__(self) -> None:
        super().__init__()
        self._make_locks()
        self._waiting_threads = 0
        self.taken: list[Message] = []  # by threads, not yet settled
        self.telling = False  # enough was taken: the loop's thread will settle it
        self.awaited = False  # a thread waits until the report is sent

    def _make_locks(self) -> None:
        self._lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)
        self._told = threading.Condition(self._lock)

    # --- for threads ------------------------------------------------------------------------

    def take(self) -> Message | None:
        """Returns a message if one is queued."""
        with self._lock:
            if not self._messages:
                return None
            message = self._messages.popleft()
            self.taken.append(message)
            return message

    def take_within(self, timeout_s: float | None) -> Message:
        """Waits for a message. Raises Timeout, or the error that ended the consumer."""
        give_up_at = None if timeout_s is None else time.monotonic() + timeout_s
        with self._lock:
            while not self._messages:
                if self._failure is not None:
                    raise self._failure
                self._wait_in_thread(timeout_s, give_up_at)
            message = self._messages.popleft()
            self.taken.append(message)
            return message

    def _wait_in_thread(self, timeout_s: float | None, give_up_at: float | None) -> None:
        left_s = None if give_up_at is None else give_up_at - time.monotonic()
        if left_s is not None and left_s <= 0:
            raise Timeout(f"No message within {timeout_s} s")
        self._waiting_threads += 1
        try:
            self._arrived.wait(left_s)
        finally:
            self._waiting_threads -= 1

    def wait_until_told(self) -> None:
        """Waits only while there are more messages: a thread that finds none waits anyway."""
        with self._lock:
            if self.awaited and self._messages:
                self._told.wait(_PATIENCE_S)

    # --- for the loop's thread --------------------------------------------------------------

    def put(self, messages: Sequence[Message]) -> None:
        with self._lock:
            super().put(messages)
            if self._waiting_threads:
                self._arrived.notify(len(messages))

    def put_back(self, messages: Sequence[Message]) -> None:
        with self._lock:
            super().put_back(messages)
            self._arrived.notify(len(messages))

    def poll(self) -> Message | None:
        with self._lock:
            return super().poll()

    def settle(self) -> None:
        with self._lock:
            taken, self.taken = self.taken, []
            self.telling = False
        tell_taken(taken)

    def told(self) -> None:
        """Called when the report of settled messages has been sent to the broker."""
        with self._lock:
            self.awaited = False
            self._told.notify_all()

    def waiting(self, receiver: object) -> list[Message]:
        with self._lock:
            return super().waiting(receiver)

    def discard(self, receiver: object, among: MessageSet | None = None) -> list[Message]:
        with self._lock:
            taken, self.taken = self.taken, []
            dropped = super().discard(receiver, among)
        tell_taken(taken)
        return dropped

    def fail(self, error: Exception) -> None:
        with self._lock:
            super().fail(error)
            self._arrived.notify_all()

    def close(self) -> None:
        """The loop has ended: no more messages will come."""
        self.fail(AlreadyClosed("The client is closed"))

    def forked(self, error: Exception) -> None:
        """After a fork: the queued messages belong to the parent process."""
        self._make_locks()
        self._messages.clear()
        self.taken.clear()
        self._failure = error
