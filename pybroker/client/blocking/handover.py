"""What threads did with messages, on its way to the loop's thread: together, not one by one.

A thread that wakes the loop for each message, and the loop that does little each time, would cost
more than the messages. So the first acknowledgement wakes the loop, and those of the next moment
wait until it is over; taken messages are told when they are worth permits.
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
    """The loop holds this one, so it holds nothing of the application's side."""

    def __init__(self, core: Consumer) -> None:
        assert isinstance(core.queue, ThreadQueue)
        self.queue = core.queue
        self.acknowledged: deque[Acknowledgeable] = deque()
        # Somebody will look here soon: no need to say that there is something.
        self.watched = False
        self._core = core
        core.settle = self.settle

    def settle(self) -> None:
        """On the loop's thread. What was acknowledged had been taken before."""
        acknowledged = [self.acknowledged.popleft() for _ in range(len(self.acknowledged))]
        self.queue.settle()
        if acknowledged:
            # Of a consumer that has ended, the broker delivers them again.
            with contextlib.suppress(PulsarException):
                self._core.acknowledge_now(acknowledged)
        if self.queue.awaited:
            # Behind what writes to the connections at the end of this turn.
            asyncio.get_running_loop().call_soon(self.queue.told)

    def watch(self) -> None:
        """On the loop's thread: settles what there is, and goes on until a moment brings nothing.

        First the flag, then the last look: what is added behind that look finds the flag down.
        """
        while not (self.acknowledged or self.queue.taken):
            self.watched = False
            if not (self.acknowledged or self.queue.taken):
                return
            self.watched = True
        self.settle()
        asyncio.get_running_loop().call_later(_MOMENT_S, self.watch)
