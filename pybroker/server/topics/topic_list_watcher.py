"""A topic list that a connection watches."""

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

from pybroker.base.runtime import Pace
from pybroker.broker.topic_lists.lists import TopicList
from pybroker.broker.topic_lists.watches import Change, TopicWatches
from pybroker.security.authorization import Need, Target
from pybroker.server.connections.watching import May
from pybroker.wire import commands

if TYPE_CHECKING:
    from pybroker.broker.topic_lists.pattern import TopicPattern


class Watcher:
    """Of one connection; updates are sent at once. Implements Watching."""

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
        self._namespace = namespace
        self._pattern = pattern
        self._told = self._tell  # one object, which identifies the watcher

    async def begin(self) -> TopicList:
        return await self._watches.begin(self._namespace, self._pattern, self._told)

    def end(self) -> None:
        self._watches.end(self._namespace, self._pattern, self._told)

    async def end_unpermitted(self, may: May, pace: Pace) -> bool:
        """The watcher goes silent: the protocol has no command to end it."""
        permitted = may(Need.USE_NAMESPACE, Target.of_namespace(self._namespace))
        if not permitted:
            self.end()
        return not permitted

    def _tell(self, change: Change) -> None:
        self._write(commands.topic_update(self._id, _encoded(change)))


@lru_cache(maxsize=8)
def _encoded(change: Change) -> bytes:
    """The same for every watcher."""
    return commands.encode_topic_change(change.added, change.removed, change.hash)
