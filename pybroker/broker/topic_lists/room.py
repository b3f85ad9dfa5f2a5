"""Room for more topics in a namespace that has a limit."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

from pybroker.base.errors import TooManyTopics
from pybroker.base.names import SEGMENT, TopicName
from pybroker.broker.namespaces.tenants import Tenants
from pybroker.broker.policies.policies import Policies
from pybroker.broker.policies.table import MAX_TOPICS
from pybroker.broker.topic_lists.lists import TopicLists


class Room:
    def __init__(
        self,
        policies: Policies,
        tenants: Tenants,
        lists: TopicLists,
        loading: Callable[[], Iterable[TopicName]],
    ) -> None:
        self._policies = policies
        self._tenants = tenants
        self._lists = lists
        self._loading = loading
        self._taken: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def for_more(self, name: TopicName, topics: int) -> AsyncIterator[None]:
        """Reserves room in a namespace for more topics, created within the block. With a limit, the
        blocks run one at a time, so that two cannot use the same room. A scalable topic is one,
        however many segments it has. Raises TooManyTopics, NotFound.
        """
        namespace = name.namespace_name
        limit = self._policies.of_namespace(namespace)[MAX_TOPICS]
        if limit <= 0 or name.system:
            yield
            return
        async with self._taken.setdefault(namespace, asyncio.Lock()):
            there = {*(await self._lists.get(namespace)).names}
            loading = (n for n in self._loading() if n.domain != SEGMENT)
            there.update(str(n) for n in loading if n.namespace_name == namespace)
            there.update(map(str, self._tenants.scalable_topics(namespace)))
            is_there = str(name) in there or self._tenants.partitions(name)
            if not is_there and len(there) + topics > limit:
                raise TooManyTopics("Exceed maximum number of topics in namespace.")
            yield
