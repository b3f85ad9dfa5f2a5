"""Where each transaction coordinator is, for clients that want to hear of every change.

A broker that is alone has all of them, and only their number can change. With several brokers the
places are looked up again every second, while anybody wants to know.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from pybroker.base.errors import PulsarError
from pybroker.base.names import COORDINATOR_ASSIGN, TopicName
from pybroker.base.runtime import Tasks
from pybroker.broker.brokers.ownership import ALONE, OtherOwner
from pybroker.broker.topics import Topics

_LOOK_EVERY_S: Final = 1.0


class CoordinatorPlace(NamedTuple):
    id: int
    owner: OtherOwner | None  # None: this broker


Places = Sequence[CoordinatorPlace]
Told = Callable[[Places], None]


class CoordinatorPlaces:
    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._told: dict[Told, None] = {}
        self._places: Places = ()
        self._looking = False
        self._tasks = Tasks("places of coordinators")
        topics.tenants.on_partitions(self._partitions_changed)

    @property
    def count(self) -> int:
        return self._topics.tenants.partitions(COORDINATOR_ASSIGN)

    async def begin(self, told: Told) -> None:
        """`told` is called with the places, and again after each change, until `end`."""
        await self._tell_changes()
        self._told[told] = None
        told(self._places)
        if self._topics.ownership is not ALONE and not self._looking:
            self._looking = True
            self._tasks.start(self._look(), "look")

    def end(self, told: Told) -> None:
        """Idempotent."""
        self._told.pop(told, None)

    async def close(self) -> None:
        self._told.clear()
        await self._tasks.close()

    def _partitions_changed(self, name: TopicName) -> None:
        if name == COORDINATOR_ASSIGN and self._told:
            self._tasks.start(self._tell_changes(), "count again")

    async def _look(self) -> None:
        try:
            while self._told:
                await asyncio.sleep(_LOOK_EVERY_S)
                await self._tell_changes()
        finally:
            self._looking = False

    async def _tell_changes(self) -> None:
        places = await self._look_up()
        if places != self._places:
            self._places = places
            for told in list(self._told):
                told(places)

    async def _look_up(self) -> Places:
        """Without those whose broker cannot be known now."""
        found = []
        for coordinator_id in range(self.count):
            partition = COORDINATOR_ASSIGN.partition_at(coordinator_id)
            try:
                owner = await self._topics.ownership.lookup(partition, False)
            except PulsarError:
                continue
            found.append(CoordinatorPlace(coordinator_id, owner))
        return found
