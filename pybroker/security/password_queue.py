"""Passwords waiting to be checked: one at a time, in a thread, because hashing is slow.

Turns go by address, and within an address by user name. Addresses without recent failures come
first; the others get at least every fourth comparison. The queue is bounded, and the address with
the most entries makes room. A client that disconnects gives up its place.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from pybroker.base.errors import TooManyRequests
from pybroker.base.runtime import Clock

MOST_WAITING: Final = 50  # in each of the two lanes
MOST_OF_ADDRESS: Final = 10
_FAILED_LATELY_S: Final = 60.0
_MOST_FAILED: Final = 10_000  # addresses
_TURNS: Final = 4

Compare = Callable[[], bool]


@dataclass(eq=False, slots=True)
class _Waiting:
    address: str
    user: str
    compare: Compare
    answer: asyncio.Future[bool]


class _Lane:
    """By address, then by user; an address or user whose turn is over goes to the end."""

    def __init__(self) -> None:
        self._by_address: OrderedDict[str, OrderedDict[str, deque[_Waiting]]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(self.of_address, self._by_address))

    def of_address(self, address: str) -> int:
        return sum(map(len, self._by_address.get(address, {}).values()))

    def add(self, waiting: _Waiting) -> None:
        by_user = self._by_address.setdefault(waiting.address, OrderedDict())
        by_user.setdefault(waiting.user, deque()).append(waiting)

    def next(self) -> _Waiting:
        address, by_user = next(iter(self._by_address.items()))
        user, queue = next(iter(by_user.items()))
        self._by_address.move_to_end(address)
        by_user.move_to_end(user)
        first = queue[0]
        self.remove(first)
        return first

    def remove(self, waiting: _Waiting) -> None:
        by_user = self._by_address.get(waiting.address, OrderedDict())
        queue = by_user.get(waiting.user, deque())
        if waiting in queue:
            queue.remove(waiting)
            if not queue:
                del by_user[waiting.user]
            if not by_user:
                del self._by_address[waiting.address]

    def make_room(self, address: str, user: str) -> None:
        """Makes room at the cost of the user with the most waiting passwords. Raises
        TooManyRequests if that is `user` itself.
        """
        if self.of_address(address) >= MOST_OF_ADDRESS:
            by_user = self._by_address[address]
            longest = max(by_user.values(), key=len)
            if len(longest) <= len(by_user.get(user, ())) + 1:
                raise too_many()
            self._displace(longest[-1])
        elif len(self) >= MOST_WAITING:
            most = max(self._by_address, key=self.of_address)
            if self.of_address(most) <= self.of_address(address) + 1:
                raise too_many()
            self._displace(max(self._by_address[most].values(), key=len)[-1])

    def _displace(self, waiting: _Waiting) -> None:
        self.remove(waiting)
        if not waiting.answer.done():
            waiting.answer.set_exception(too_many())


def too_many() -> TooManyRequests:
    return TooManyRequests("Too many passwords are being checked; try again in a second")


class PasswordQueue:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, "passwords")
        self._clean, self._suspect = _Lane(), _Lane()
        self._failed_s: OrderedDict[str, float] = OrderedDict()
        self._turn = 0
        self._working = False

    async def compare(self, address: str, user: str, compare: Compare) -> bool:
        """The result of `compare`, in turn. Raises TooManyRequests."""
        lane = self._suspect if self._has_failed(address) else self._clean
        lane.make_room(address, user)
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        waiting = _Waiting(address, user, compare, answer)
        lane.add(waiting)
        if not self._working:
            self._work()
        try:
            return await answer
        finally:
            lane.remove(waiting)  # in case it was cancelled while waiting

    def failed(self, address: str) -> None:
        self._failed_s[address] = self._clock.monotonic_s()
        self._failed_s.move_to_end(address)
        if len(self._failed_s) > _MOST_FAILED:
            self._failed_s.popitem(last=False)

    def _has_failed(self, address: str) -> bool:
        at_s = self._failed_s.get(address)
        return at_s is not None and self._clock.monotonic_s() < at_s + _FAILED_LATELY_S

    def _work(self) -> None:
        self._turn += 1
        preferred = self._clean if self._turn % _TURNS else self._suspect
        lane = preferred or self._clean or self._suspect
        if not lane:
            self._working = False
            return
        self._working = True
        waiting = lane.next()
        comparing = asyncio.get_running_loop().run_in_executor(self._thread, waiting.compare)
        comparing.add_done_callback(lambda done: self._compared(waiting, done))

    def _compared(self, waiting: _Waiting, done: asyncio.Future[bool]) -> None:
        if not done.cancelled() and not waiting.answer.done():
            error = done.exception()
            if error is not None:
                waiting.answer.set_exception(error)
            else:
                waiting.answer.set_result(done.result())
        self._work()
