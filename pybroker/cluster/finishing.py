"""Finishes deletions that a broker has begun and does not finish, because it died or got an error.

    begun by                                     finished by
    the mark of a namespace, see Tenants         a request for the same deletion
    `deleted` in a partitioned topic's record    a request for the same deletion
    the tombstone of a topic or subscription     the topic's broker, which a lookup finds if need be

Nobody records who works at a deletion. A broker finishes one that has not ended for a while, even
if another still works at it: each step requires the record of the decision, so neither can delete
what is created later. The first broker in the list waits `PATIENCE_S`, the second twice as long,
and so on: nearly always one broker does it, and none depends on another. After a failure it waits
longer.
"""

import asyncio
import logging
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from managed_ledger.errors import CorruptStorage, ManagedLedgerError
from managed_ledger.storage.backend import MetadataStore
from pybroker.base.errors import PulsarError
from pybroker.base.names import TopicName
from pybroker.base.runtime import Tasks
from pybroker.broker.brokers.other_brokers import ONLY_DOOMED
from pybroker.broker.deletion.deletions import PREFIX as TOMBSTONES
from pybroker.broker.namespaces.tenants import GOING, PARTITIONED_PREFIX
from pybroker.broker.topics import Topics
from pybroker.cluster.admin_client import AdminClient
from pybroker.cluster.live_brokers import LiveBrokers

log = logging.getLogger(__name__)
PATIENCE_S: Final = 10.0
_LOOK_S: Final = 5.0
_DOUBLINGS: Final = 5  # of the patience, one after each attempt
_NOT_FOUND: Final = 404


@dataclass(slots=True)
class _Waiting:
    since_s: float
    attempts: int = 0


class Finishing:
    def __init__(
        self, topics: Topics, metadata: MetadataStore, brokers: LiveBrokers, admin: AdminClient
    ) -> None:
        self._topics = topics
        self._metadata = metadata
        self._brokers = brokers
        self._admin = admin
        self._waiting: dict[str, _Waiting] = {}  # by the key of the deletion's record
        self._works = False
        self._closed = False
        self._tasks = Tasks("finishing of deletions")

    def start(self) -> None:
        """Look at what is there, and at each change from now on."""
        for prefix in (GOING, PARTITIONED_PREFIX, TOMBSTONES):
            self._metadata.watch(prefix, self._look_at)
            for key in self._metadata.keys(prefix):
                self._look_at(key)

    async def close(self) -> None:
        """Idempotent."""
        self._closed = True
        self._waiting.clear()
        await self._tasks.close()

    def _look_at(self, key: str) -> None:
        if self._closed or not self._is_begun(key):
            self._waiting.pop(key, None)
        elif key not in self._waiting:
            self._waiting[key] = _Waiting(_now_s())
            if not self._works:
                self._works = True
                self._tasks.start(self._finish_all(), "look")

    def _is_begun(self, key: str) -> bool:
        try:
            if key.startswith(PARTITIONED_PREFIX):
                return self._topics.tenants.doomed_partitions(_partitioned(key)) > 0
            return self._metadata.get(key) is not None
        except CorruptStorage:
            return False

    async def _finish_all(self) -> None:
        """Ends when nothing is left to finish."""
        while self._waiting:
            await asyncio.sleep(_LOOK_S)
            for key in [key for key, each in self._waiting.items() if self._is_due(each)]:
                if (waiting := self._waiting.get(key)) is None:
                    continue  # finished meanwhile
                try:
                    await self._finish(key)
                except (PulsarError, ManagedLedgerError) as error:
                    log.warning("a deletion is not finished now, %s: %s", key, error)
                except Exception:  # it must not stop the others
                    log.exception("a deletion is not finished now, %s", key)
                waiting.since_s, waiting.attempts = _now_s(), waiting.attempts + 1
        self._works = False

    def _is_due(self, waiting: _Waiting) -> bool:
        ids = [*self._brokers.all()]
        place = ids.index(self._brokers.own_id) if self._brokers.own_id in ids else len(ids)
        patience_s = PATIENCE_S * (1 + place) * (1 << min(waiting.attempts, _DOUBLINGS))
        return _now_s() >= waiting.since_s + patience_s

    async def _finish(self, key: str) -> None:
        """Raises PulsarError or ManagedLedgerError if the deletion must be repeated."""
        if key.startswith(GOING):
            namespace = "/".join(key.removeprefix(GOING).split("/")[:2])
            await self._ask(f"namespace {namespace}", f"namespaces/{namespace}")
        elif key.startswith(PARTITIONED_PREFIX):
            if self._is_free(name := _partitioned(key)):
                local = quote(name.local, safe="")
                path = f"{name.domain}/{name.namespace_name}/{local}/partitions"
                await self._ask(str(name), path)
        else:
            await self._finish_tombstone(key)

    async def _finish_tombstone(self, key: str) -> None:
        name = self._topics.deletions.topic_of(key)
        has_namespace = self._topics.tenants.has_namespace(name.namespace_name)
        if self._topics.ownership.owns(name) or not has_namespace:
            self._topics.deletions.finish(key)
        elif self._is_free(name):  # a broker that takes the topic's bundle finishes it
            await self._topics.ownership.owner_of(name)

    def _is_free(self, name: TopicName) -> bool:
        """Whether it is not deleted with its namespace."""
        return self._topics.tenants.takes_topics(name.namespace_name)

    async def _ask(self, what: str, path: str) -> None:
        log.warning("the deletion of %s was interrupted; finishing it", what)
        target = f"/admin/v2/{path}?{ONLY_DOOMED}=true"
        reply = await self._admin.ask_as_a_client("DELETE", target)
        if reply.is_done or reply.status == _NOT_FOUND:
            log.info("the deletion of %s is finished", what)
        else:
            log.warning("the deletion of %s is not finished now: %s", what, reply.body.decode())


def _partitioned(key: str) -> TopicName:
    return TopicName.of_ledger(key.removeprefix(PARTITIONED_PREFIX))


def _now_s() -> float:
    return asyncio.get_running_loop().time()
