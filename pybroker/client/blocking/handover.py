"""Tells the loop's thread in batches which messages other threads took and acknowledged.

Waking the loop for each message would cost more than the message. So the first acknowledgement
wakes the loop, and those of the next _MOMENT_S wait until it runs again; taken messages are
reported once there are enough of them to request permits.
"""

import asyncio
import contextlib
from collections import deque
from typing import Final

from pybroker.client.blocking.thread_queue import ThreadQueue
from pybroker.client.consuming.consumer import Acknowledgeable, Consumer
from pybroker.client.errors import PulsarException

_MOMENT_S: Final = 0.005


class Handover:
    """The loop refers to this object, so it must not refer to the application's objects."""

    def __init__(self, core: Consumer) -> None:
        assert isinstance(core.queue, ThreadQueue)
        self.queue = core.queue
        self.acknowledged: deque[Acknowledgeable] = deque()
        # Whether the loop will look here soon and needs no wake-up.
        self.watched = False
        self._core = core
        core.settle = self.settle

    def settle(self) -> None:
        """Runs on the loop's thread. Collects acknowledgements before it settles taken messages, so
        that every acknowledged message counts as taken.
        """
        acknowledged = [self.acknowledged.popleft() for _ in range(len(self.acknowledged))]
        self.queue.settle()
        if acknowledged:
            # If the consumer has ended, the broker redelivers the messages.
            with contextlib.suppress(PulsarException):
                self._core.acknowledge_now(acknowledged)
        if self.queue.awaited:
            # Runs after the callbacks that write to the connections at the end of this turn.
            asyncio.get_running_loop().call_soon(self.queue.told)

    def watch(self) -> None:
        """Runs on the loop's thread: settles what is pending, until nothing new came for a moment.

        Clears the flag before it looks a last time: a later message finds the flag cleared.
        """
        while not (self.acknowledged or self.queue.taken):
            self.watched = False
            if not (self.acknowledged or self.queue.taken):
                return
            self.watched = True
        self.settle()
        asyncio.get_running_loop().call_later(_MOMENT_S, self.watch)
