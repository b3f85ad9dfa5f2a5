"""Tells clients which scalable topics a namespace has, and what comes and goes.

Changes within a moment are told together. A topic whose properties change may enter or leave what a
client asked for. Ordinary topics never count.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

from managed_ledger.errors import CorruptStorage
from pybroker.base.errors import PulsarError, TooManyRequests
from pybroker.base.names import TopicName
from pybroker.base.runtime import Pace, Tasks
from pybroker.broker.namespaces.tenants import Tenants
from pybroker.broker.scalable.topics import ScalableTopics
from pybroker.broker.topic_lists.lists import TopicList

TOGETHER_S: Final = 0.05
MAX_FILTERS: Final = 100  # of one watch
MAX_NAMES: Final = 10_000_000  # of all watches together
_NAMES_A_TURN: Final = 500

log = logging.getLogger(__name__)


class Change(Protocol):
    def __call__(self, added: Sequence[str], removed: Sequence[str]) -> None: ...


Wanted = Mapping[str, str]


@dataclass(slots=True)
class _Watch:
    namespace: str
    wanted: Wanted
    told: Change
    seen: TopicList


class ScalableTopicWatches:
    def __init__(self, tenants: Tenants, scalable: ScalableTopics) -> None:
        self._tenants = tenants
        self._scalable = scalable
        self._watches: dict[Change, _Watch] = {}
        self._changed_in: dict[str, None] = {}
        self._looking = False
        self._tasks = Tasks("watches of scalable topics")
        scalable.on_change(self._changed)

    async def begin(self, namespace: str, wanted: Wanted, told: Change) -> TopicList:
        """The topics now; `told` is called with later changes, until `end`. Raises NotFound,
        TooManyRequests.
        """
        self._tenants.check_namespace(namespace)
        if len(wanted) > MAX_FILTERS or self._names() > MAX_NAMES:
            raise TooManyRequests(
                f"A watch may ask for {MAX_FILTERS} properties, and all watches together may have "
                f"{MAX_NAMES} topics: close some, or ask for less"
            )
        watch = _Watch(namespace, wanted, told, TopicList(()))
        watch.seen = await self._now(watch)
        self._watches[told] = watch
        self._look_again(namespace)  # it may have changed meanwhile
        return watch.seen

    def end(self, told: Change) -> None:
        """Idempotent."""
        self._watches.pop(told, None)

    @property
    def count(self) -> int:
        return len(self._watches)

    async def close(self) -> None:
        self._watches.clear()
        await self._tasks.close()

    def _names(self) -> int:
        return sum(len(each.seen.names) for each in self._watches.values())

    def _changed(self, name: TopicName) -> None:
        self._look_again(name.namespace_name)

    def _look_again(self, namespace: str) -> None:
        if all(each.namespace != namespace for each in self._watches.values()):
            return
        self._changed_in[namespace] = None
        if not self._looking:
            self._looking = True
            self._tasks.start(self._look(), "look")

    async def _look(self) -> None:
        try:
            while self._changed_in:
                await asyncio.sleep(TOGETHER_S)
                changed, self._changed_in = self._changed_in, {}
                for watch in list(self._watches.values()):
                    if watch.namespace in changed:
                        await self._tell(watch)
        finally:
            self._looking = False

    async def _tell(self, watch: _Watch) -> None:
        try:
            now = await self._now(watch)
        except PulsarError as error:
            log.warning("a watch of %s: %s", watch.namespace, error)
            return
        before, watch.seen = watch.seen, now
        there, remaining = set(before.names), set(now.names)
        added = [name for name in now.names if name not in there]
        removed = [name for name in before.names if name not in remaining]
        if (added or removed) and self._watches.get(watch.told) is watch:
            watch.told(added, removed)

    async def _now(self, watch: _Watch) -> TopicList:
        found, pace = [], Pace(_NAMES_A_TURN)
        for name in self._tenants.scalable_topics(watch.namespace):
            record = None
            with suppress(CorruptStorage):  # of one record: the others are told all the same
                record = self._scalable.find(name)
            if record is not None and watch.wanted.items() <= record.properties.items():
                found.append(str(name))
            await pace.step()
        return TopicList(found)
