"""Hands what threads did with messages to the loop's thread in batches, not one by one.

Waking the loop for each message, and letting it do little each time, would cost more than the
messages. So the first acknowledgement wakes the loop, and those of the next moment wait until it
has run; taken messages are reported once they are worth permits.
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
        # The loop will look here soon and needs no wake-up.
        self.watched = False
        self._core = core
        core.settle = self.settle

    def settle(self) -> None:
        """Runs on the loop's thread. What was acknowledged had been taken before."""
        acknowledged = [self.acknowledged.popleft() for _ in range(len(self.acknowledged))]
        self.queue.settle()
        if acknowledged:
            # The consumer has ended: the broker redelivers them.
            with contextlib.suppress(PulsarException):
                self._core.acknowledge_now(acknowledged)
        if self.queue.awaited:
            # After the callbacks that write to the connections at the end of this turn.
            asyncio.get_running_loop().call_soon(self.queue.told)

    def watch(self) -> None:
        """Runs on the loop's thread: settles what there is, until nothing new comes in a turn.

        First clear the flag, then look a last time: what is added after that finds it cleared.
        """
        while not (self.acknowledged or self.queue.taken):
            self.watched = False
            if not (self.acknowledged or self.queue.taken):
                return
            self.watched = True
        self.settle()
        asyncio.get_running_loop().call_later(_MOMENT_S, self.watch)
