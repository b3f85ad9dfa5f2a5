"""A topic list that a connection watches."""

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

from pybroker.broker.topic_lists.lists import TopicList
from pybroker.broker.topic_lists.watches import Change, TopicWatches
from pybroker.wire import commands

if TYPE_CHECKING:
    from pybroker.broker.topic_lists.pattern import TopicPattern


class Watcher:
    """A watcher of one connection; updates are sent at once."""

    def __init__(
        self,
        watches: TopicWatches,
        write: Callable[[bytes], None],
        watcher_id: int,
        namespace: str,
        pattern: "TopicPattern",
    ) -> None:
        self._watches = watches
        self._write = write
        self._id = watcher_id
        self.namespace = namespace
        self._pattern = pattern
        self._told = self._tell  # one object, which identifies the watcher

    async def begin(self) -> TopicList:
        return await self._watches.begin(self.namespace, self._pattern, self._told)

    def end(self) -> None:
        self._watches.end(self.namespace, self._pattern, self._told)

    def _tell(self, change: Change) -> None:
        self._write(commands.topic_update(self._id, _encoded(change)))


@lru_cache(maxsize=8)
def _encoded(change: Change) -> bytes:
    """The same for every watcher."""
    return commands.encode_topic_change(change.came, change.went, change.hash)
