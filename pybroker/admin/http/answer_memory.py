"""Limits the memory that answers over HTTP take, all together.

An answer of up to `FREE_BYTES` is not counted. A larger one takes its whole size before it is made,
or, if its size was not known before, before it is sent. It waits until it fits, first come, first
served; a single one always fits. While others wait, an answer that was begun `TAKE_S` ago is given
up and its connection closed: its peer reads too slowly. So every wait ends; one that lasts longer
than `WAIT_S` is refused.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from starlette.types import Scope

from pybroker.base.errors import PulsarError, ServiceNotReady

FREE_BYTES: Final = 1024 * 1024
TAKE_S: Final = 10.0
WAIT_S: Final = 30.0
ROOM: Final = "pybroker.room"  # key in the scope; absent without a connection


class AnswerTooLarge(PulsarError):
    http_status = 413


class AnswerMemory:
    """The answers of all connections."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self.taken_bytes = 0
        self._holding: dict[Room, float] = {}  # when it took, in seconds; in that order
        self._waiting: dict[asyncio.Future[None], tuple[Room, int]] = {}  # in order of arrival
        self._unsent_bytes = 0  # of answers that wait although they are made
        self._due: asyncio.TimerHandle | None = None

    def take_now(self, room: "Room", size_bytes: int) -> bool:
        """Whether it fits; False while others wait."""
        if self._waiting or not self._fits(size_bytes):
            return False
        self._hold(room, size_bytes)
        return True

    async def take(self, room: "Room", size_bytes: int, made: bool) -> None:
        """Raises ServiceNotReady. `made` says that the answer is in memory already."""
        if self.take_now(room, size_bytes):
            return
        unsent_bytes = size_bytes if made else 0
        if unsent_bytes and self._unsent_bytes + unsent_bytes > self._limit_bytes:
            raise _busy()
        self._unsent_bytes += unsent_bytes
        granted = asyncio.get_running_loop().create_future()
        self._waiting[granted] = room, size_bytes
        self._look_at_the_oldest()
        try:
            async with asyncio.timeout(WAIT_S):
                await granted
        except TimeoutError:
            raise _busy() from None
        finally:
            self._unsent_bytes -= unsent_bytes
            self._waiting.pop(granted, None)
            if not granted.done() or granted.cancelled():
                self._grant()  # what waited behind a large one may fit

    def give_back(self, room: "Room") -> None:
        if self._holding.pop(room, None) is not None:
            self.taken_bytes -= room.held_bytes
            room.held_bytes = 0
            self._grant()

    def _grant(self) -> None:
        while self._waiting:
            granted, (room, size_bytes) = next(iter(self._waiting.items()))
            if not self._fits(size_bytes):
                break
            del self._waiting[granted]
            if not granted.done():
                self._hold(room, size_bytes)
                granted.set_result(None)
        self._look_at_the_oldest()

    def _hold(self, room: "Room", size_bytes: int) -> None:
        self._holding[room] = asyncio.get_running_loop().time()
        room.held_bytes = size_bytes
        self.taken_bytes += size_bytes

    def _fits(self, size_bytes: int) -> bool:
        return not self.taken_bytes or self.taken_bytes + size_bytes <= self._limit_bytes

    def _look_at_the_oldest(self) -> None:
        """Ends the oldest answer in time, while others wait."""
        if self._due is not None:
            self._due.cancel()
            self._due = None
        if self._waiting and self._holding:
            due_s = next(iter(self._holding.values())) + TAKE_S
            self._due = asyncio.get_running_loop().call_at(due_s, self._end_the_oldest)

    def _end_the_oldest(self) -> None:
        self._due = None
        if self._waiting and self._holding:
            room = next(iter(self._holding))
            # Whoever serves it notices, and frees it; until then the others are looked at.
            del self._holding[room]
            self._holding[room] = asyncio.get_running_loop().time()
            room.hang_up()
            self._look_at_the_oldest()


class Room:
    """The memory of one request's answer."""

    def __init__(self, memory: AnswerMemory, hang_up: Callable[[], None]) -> None:
        self._memory = memory
        self.hang_up = hang_up
        self.held_bytes = 0

    def another(self, hang_up: Callable[[], None]) -> "Room":
        """A room in the same memory, for what comes after this answer."""
        return Room(self._memory, hang_up)

    def take_now(self, size_bytes: int) -> bool:
        """Like `take`; False instead of waiting."""
        self._memory.give_back(self)
        return size_bytes <= FREE_BYTES or self._memory.take_now(self, size_bytes)

    async def take(self, size_bytes: int, made: bool = False) -> None:
        """Takes so much in place of what the request has held. Raises ServiceNotReady."""
        if not self.take_now(size_bytes):
            await self._memory.take(self, size_bytes, made)

    def give_back(self) -> None:
        self._memory.give_back(self)


class PartOfRoom:
    """A room in which at most `most_bytes` can be taken at a time."""

    def __init__(self, whole: "AnyRoom | None", most_bytes: int) -> None:
        self._whole = whole
        self._most_bytes = most_bytes

    def take_now(self, size_bytes: int) -> bool:
        """False if it must wait for memory. Raises AnswerTooLarge if the page may never have so
        much.
        """
        if size_bytes > self._most_bytes:
            raise AnswerTooLarge(
                f"This takes {size_bytes:,} bytes, more than the {self._most_bytes:,} that this "
                "page may still look at: look at fewer messages at once, or ask the admin API"
            )
        return self._whole is None or self._whole.take_now(size_bytes)

    async def take(self, size_bytes: int, made: bool = False) -> None:
        """Waits for memory. Raises AnswerTooLarge if the page may never have so much,
        ServiceNotReady after waiting too long.
        """
        if not self.take_now(size_bytes) and self._whole is not None:
            await self._whole.take(size_bytes, made)


AnyRoom = Room | PartOfRoom


def room_of(scope: Scope) -> AnyRoom:
    """The request's room; one without an end if nothing counts, as in a test of one route."""
    found: AnyRoom | None = scope.get(ROOM)
    return PartOfRoom(None, 2**63) if found is None else found


def _busy() -> PulsarError:
    return ServiceNotReady(
        "Too many large answers are being read slowly: try again, or ask for less at once"
    )
