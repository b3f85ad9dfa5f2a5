"""All topics of this broker: found by name, loaded at first use, listed, created, deleted.

Requests for one topic share one load. A persistent topic exists if its managed ledger does, a
non-persistent one while it is loaded; a partition, created on first use, with its topic.
"""

import asyncio
import logging
from collections.abc import Collection, Coroutine, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

from managed_ledger.deletion import all_done
from managed_ledger.errors import ManagedLedgerError
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.shared_task import shared_task
from managed_ledger.storage.backend import KeyAt, MetadataStore
from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.errors import NotAllowed, PulsarError, TopicNotFound
from pybroker.base.names import COORDINATOR_ASSIGN, SEGMENT, TopicName
from pybroker.base.runtime import Clock
from pybroker.broker.brokers.ownership import ALONE, Ownership, check_owned, take_all
from pybroker.broker.client_topics import ServedTopic, persistent
from pybroker.broker.deletion.deletions import Deletions, Doomed, not_deleted_twice
from pybroker.broker.deletion.inactive_topics import InactiveTopics
from pybroker.broker.namespaces.permissions import Permissions
from pybroker.broker.namespaces.tenants import Conflict, InUse, MadeScalable, Tenants
from pybroker.broker.namespaces.usable_names import check_free, refuse_internal
from pybroker.broker.nonpersistent.topic import NonPersistentTopic
from pybroker.broker.partitioned_topics import PartitionedTopics
from pybroker.broker.persistent.entry_metadata import check_interceptors
from pybroker.broker.persistent.topic import Topic
from pybroker.broker.persistent.topic_measures import TopicMeasures
from pybroker.broker.persistent.topic_services import TopicServices
from pybroker.broker.policies.actors import acting
from pybroker.broker.policies.following import Following
from pybroker.broker.policies.policies import Policies
from pybroker.broker.policies.policy import Record
from pybroker.broker.policies.table import AUTO_TOPIC_CREATION
from pybroker.broker.schemas.registry import SchemaRules, Schemas
from pybroker.broker.schemas.rules import of_system_topics, schema_rules
from pybroker.broker.topic_lists.lists import TopicLists
from pybroker.broker.topic_lists.room import Room
from pybroker.broker.topic_lists.watches import TopicWatches
from pybroker.broker.with_scalable import WithScalable
from pybroker.logs import audit
from pybroker.transaction.buffer.open_contents import OpenContents
from pybroker.transaction.txn_status import TransactionOutcomes

log = logging.getLogger(__name__)

_CLOSED_AT_ONCE: Final = 64  # topics per commit; meanwhile messages to the others are still written


class Topics(WithScalable):
    def __init__(
        self,
        factory: ManagedLedgerFactory,
        metadata: MetadataStore,
        tenants: Tenants,
        outcomes: TransactionOutcomes,
        clock: Clock,
        config: BrokerConfig,
    ) -> None:
        check_interceptors(config)
        self.tenants = tenants
        self.ownership: Ownership = ALONE
        self.permissions = Permissions(metadata, tenants)
        self.permissions.namesake = self.namesake
        self.permissions.caught_up = self.migrations_heard_of
        self.deletions = Deletions(factory, metadata, self.permissions)
        self.policies = Policies(metadata, tenants, config, self.check_there)
        self.schemas = Schemas(
            metadata, clock, self._is_going, self._schema_rules, lambda: self.ownership.refreshed()
        )
        self.lists = TopicLists(factory, metadata, tenants)
        self.watches = TopicWatches(self.lists)
        self._factory = factory
        self.measures = TopicMeasures(factory.commit_stats)
        self._services = TopicServices(
            factory, metadata, self.deletions, outcomes, clock, config, self.measures
        )
        self.open_contents = OpenContents()
        self._clock = clock
        self._config = config
        self._inactive = InactiveTopics(config, factory.housekeeper, self._delete_inactive)
        actors = acting(factory.housekeeper, clock, config, self.measures, factory.entry_limit)
        self.following = Following(self, (*actors, self._inactive))
        factory.entry_limit.on_change = self.following.all_again
        self.partitioned = PartitionedTopics(self, factory, config)
        self.room = Room(self.policies, self.tenants, self.lists, lambda: self._loading)
        self._loaded: dict[TopicName, ServedTopic] = {}
        self._loading: dict[TopicName, asyncio.Future[ServedTopic]] = {}
        self._changing: dict[TopicName, asyncio.Task[None]] = {}  # requests wait, then look again

    def loaded(self) -> list[Topic]:
        """Persistent topics in memory."""
        return [topic for topic in self._loaded.values() if isinstance(topic, Topic)]

    def loaded_names(self) -> list[TopicName]:
        return list(self._loaded)

    def loaded_nonpersistent(self) -> list[NonPersistentTopic]:
        return [t for t in self._loaded.values() if isinstance(t, NonPersistentTopic)]

    def serving(self, name: TopicName) -> Topic | None:
        """The topic if it is loaded, persistent and not closing."""
        if name in self._changing or self.deletions.concerns(name):
            return None
        topic = self._loaded.get(name)
        return topic if isinstance(topic, Topic) else None

    def unloading(self, name: TopicName) -> bool:
        """Whether the topic is loaded and is being closed or changed."""
        return name in self._changing and name in self._loaded

    # -- find and load

    def exists(self, name: TopicName) -> bool:
        """True for a topic, or a partition of a partitioned topic, that was created."""
        if name in self._loaded or name in self._loading:
            return True
        if self._factory.exists(name.ledger_name):
            return True
        if self.is_segment(name):
            return self.scalable.segment(name) is not None
        return 0 <= name.partition < self.tenants.partitions(name.partitioned_name)

    async def get(self, name: TopicName | str, create: bool = False) -> Topic | None:
        """Like `served`, for persistent topics only: raises NotAllowed for others."""
        topic = await self.served(name, create)
        return None if topic is None else persistent(topic)

    async def served(self, name: TopicName | str, create: bool = False) -> ServedTopic | None:
        """The topic, loaded. None if it does not exist and `create` is false.

        Raises NotAllowed if the name cannot be a topic's, NotFound for a missing namespace,
        NotServedHere.
        """
        if isinstance(name, str):
            name = TopicName.parse(name)
        await self._learn_of(name)
        if create and not self.exists(name):
            async with self.room.for_more(name, 1):
                return await self._found(name, create)
        return await self._found(name, create)

    async def _learn_of(self, name: TopicName) -> None:
        """Nothing may be concluded from the absence of a topic before this: another broker may have
        just created its partitions or its namespace. Raises NotAllowed, NotServedHere.
        """
        refuse_internal(name)
        if not self.exists(name):
            check_owned(self.ownership, name)
            await self.ownership.refreshed()

    async def _found(self, name: TopicName, create: bool) -> ServedTopic | None:
        check_owned(self.ownership, name)  # otherwise this could finish a deletion of the owner's
        await self.settled(name)
        check_owned(self.ownership, name)
        if (topic := self._loaded.get(name)) is not None:
            return topic
        if name not in self._loading:
            if not self.exists(name):
                if not create:
                    return None
                self.check_creatable(name)
            self._start_loading(name)
        return await asyncio.shield(self._loading[name])

    def check_usable(self, name: TopicName) -> None:
        """Raises NotAllowed or NotFound unless the topic exists or could be created."""
        refuse_internal(name)
        if not self.exists(name):
            self.check_creatable(name)

    def check_there(self, name: TopicName) -> None:
        """Raises TopicNotFound if the topic (partitioned or not) is missing or being deleted."""
        there = self.exists(name) or self.tenants.partitions(name)
        if not there or self.deletions.concerns(name):
            raise TopicNotFound(f"{name} does not exist")

    async def settled(self, name: TopicName) -> None:
        """Return when the topic is neither being changed nor deleted. Raises ServiceNotReady."""
        while True:
            if (changing := self._changing.get(name)) is not None:
                await asyncio.wait([changing])
            elif self.deletions.concerns(name):
                await self.deletions.settled(name)
            else:
                return

    def _start_loading(self, name: TopicName) -> None:
        """A failure is not cached, so the next use tries again."""
        is_new = not self._factory.exists(name.ledger_name)
        loading = self._loading[name] = asyncio.ensure_future(self._load(name))

        def ended(loading: asyncio.Future[ServedTopic]) -> None:
            del self._loading[name]
            if not loading.cancelled() and loading.exception() is None:
                self._loaded[name] = loading.result()
                if is_new:
                    audit.done("create topic", name)
                self.following.loaded(loading.result())
                if not name.persistent:
                    self.lists.nonpersistent_came(name)

        loading.add_done_callback(ended)

    async def require(self, name: TopicName) -> ServedTopic:
        """The topic that a client asked for, created if that is allowed. Raises TopicNotFound."""
        await self._learn_of(name)
        topic = await self.served(name, create=self.auto_creation(name))
        if topic is None:
            raise TopicNotFound(f"{name} does not exist and topic auto-creation is off")
        return topic

    def auto_creation(self, name: TopicName) -> bool:
        """Whether clients create the topic by using it. Raises NotFound."""
        self.tenants.check_namespace(name.namespace_name)
        allowed = self._creation_of(name)["allowAutoTopicCreation"]
        return bool(allowed) or name.system

    def _creation_of(self, name: TopicName) -> Record:
        return self.policies.of_namespace(name.namespace_name)[AUTO_TOPIC_CREATION]

    async def _load(self, name: TopicName) -> ServedTopic:
        if not name.persistent:
            return NonPersistentTopic(name, self._clock, self.policies.of(name))
        await self.deletions.subscriptions_settled(name)
        if is_segment := self.is_segment(name):
            self.scalable.check_segment(name)
            if name.domain != SEGMENT:
                await self.scalable.parts.freed(name.scalable_name)
        opening = Topic.open(name, self._services, self.policies.of(name))
        topic = await self.measures.of_load(opening)
        topic.buffer.contents.join(self.open_contents, name.namespace_name)
        if is_segment:
            await self.scalable.loaded(topic)
        return topic

    def _schema_rules(self, name: TopicName) -> SchemaRules:
        if name.system:
            return of_system_topics(self._config)
        return self.policies.of(name).made(schema_rules)

    # -- partitions

    async def partitions_for_client(self, name: TopicName, auto_create: bool) -> int:
        """The number of partitions for a client; creates the topic if that is configured."""
        await self.settled(name)
        if not self.tenants.partitions(name):
            await self.ownership.refreshed()  # another broker may have just created it
        partitions = self.tenants.partitions(name)
        if partitions or name == COORDINATOR_ASSIGN:
            return partitions
        self.tenants.check_namespace(name.namespace_name)
        if self.exists(name):
            return 0
        if not auto_create or not self.auto_creation(name):
            raise TopicNotFound(f"{name} does not exist and topic auto-creation is off")
        if name.partition >= 0:
            return 0  # its use then fails because it cannot be created
        creation = self._creation_of(name)
        if creation.get("topicType") != "partitioned":
            return 0
        with suppress(Conflict):  # a concurrent request may have created it
            await self.create_partitioned(name, creation["defaultNumPartitions"])
        return self.tenants.partitions(name)

    async def create(self, name: TopicName) -> ServedTopic:
        """Raises Conflict if the topic exists."""
        await self.settled(name)
        await self._check_free(name)
        topic = await self.served(name, create=True)
        assert topic is not None
        return topic

    async def create_partitioned(
        self, name: TopicName, partitions: int, properties: Mapping[str, str] | None = None
    ) -> None:
        """One record, so all partitions exist or none. Raises Conflict if the topic exists."""
        refuse_internal(name)
        self.tenants.check_namespace(name.namespace_name)
        if name.partition >= 0:
            raise NotAllowed(f"{name} is named like a partition; it cannot have partitions")
        async with self.room.for_more(name, partitions):
            await self.settled(name)
            await self._check_free(name)
            await self.partitioned.create(name, partitions, properties or {})
        audit.done(f"create topic of {partitions} partitions", name)

    async def _check_free(self, name: TopicName) -> None:
        self.check_not_migrated(name)
        with suppress(Conflict):
            return check_free(self.tenants, name, self.exists(name))
        await self.ownership.refreshed()  # another broker may just have deleted it
        await self.settled(name)
        return check_free(self.tenants, name, self.exists(name))

    def _parts(self, name: TopicName) -> list[TopicName]:
        return [name.partition_at(index) for index in range(self.tenants.partitions(name))]

    # -- delete and unload

    async def delete(self, name: TopicName, force: bool = False) -> None:
        """Raises TopicNotFound; InUse if it is in use and `force` is not set."""
        refuse_internal(name)
        check_owned(self.ownership, name)
        with not_deleted_twice(name):
            await self.settled(name)
        check_owned(self.ownership, name)
        self.check_not_migrated(name)
        if not self.exists(name):
            raise TopicNotFound(f"{name} does not exist")
        await self.unless_migrated(name, lambda at: self.delete_all_of(Doomed(name), force, at))

    async def delete_partitioned(self, name: TopicName, force: bool = False) -> None:
        """Raises TopicNotFound, Conflict (unpartitioned), InUse, BadVersion (deleted elsewhere)."""
        with not_deleted_twice(name):
            await self.settled(name)
        while loading := self._loading_of(self._parts(name)):
            await asyncio.wait(loading)
            await self.settled(name)  # it may have grown meanwhile
        self.check_not_migrated(name)
        doom = self.tenants.doom_of(name)
        partitions = self.tenants.partitions(name) or self.tenants.doomed_partitions(name)
        parts = [name.partition_at(index) for index in range(partitions)]
        if doom is None or any(self._factory.exists(part.ledger_name) for part in parts):
            await take_all(self.ownership, parts)
        if not partitions and self.exists(name):
            raise Conflict(f"{name} is not a partitioned topic: delete it as a topic")
        if not partitions:
            raise TopicNotFound(f"{name} is not a partitioned topic")
        await self.delete_all_of(Doomed(name, partitions), force, doom)

    async def delete_all_of(
        self, doomed: Doomed, force: bool, only_while: KeyAt | None = None
    ) -> None:
        names = dict.fromkeys(doomed.topics())
        await self._loads_of(names)
        if not force and any(topic.in_use for topic in self.loaded_of(names)):
            raise InUse(
                f"{doomed.topic} has connected producers or consumers; close them or use force"
            )
        await self.deletions.delete(doomed, partial(self._vacate, names), only_while)

    async def _delete_inactive(self, topic: ServedTopic) -> None:
        """The topic must be inactive at the time of the call."""
        name = topic.name
        if name in self._changing or self.deletions.concerns(name) or self.was_migrated(name):
            return
        topic.retire("it was unused and is being deleted")
        vacate = partial(self._vacate, {name})
        try:
            await self.unless_migrated(
                name, lambda at: self.deletions.delete(Doomed(name), vacate, at)
            )
        except (ManagedLedgerError, PulsarError) as error:
            log.warning("%s could not be deleted and is unloaded instead: %s", name, error)
            await self.unload(name)
            return
        if self._config.broker_delete_inactive_partitioned_topic_metadata_enabled:
            await self._delete_empty_partitioned(name.partitioned_name)

    async def _delete_empty_partitioned(self, name: TopicName) -> None:
        """Deletes a partitioned topic if none of its partitions is left."""
        await self.ownership.refreshed()  # another broker may have just created a partition
        partitions = self._parts(name)
        there = (p in self._loading or self._factory.exists(p.ledger_name) for p in partitions)
        changes = name in self._changing or self.deletions.concerns(name)
        if partitions and not any(there) and not changes:
            doomed = Doomed(name, len(partitions))
            with suppress(MadeScalable):
                await self.unless_migrated(name, lambda at: self.delete_all_of(doomed, False, at))

    async def _vacate(self, names: Collection[TopicName]) -> None:
        """Discards the loaded topics. None is loaded again: `settled` prevents that."""
        for name in names:
            if (changing := self._changing.get(name)) is not None:
                await asyncio.wait([changing])
        await self._loads_of(names)
        for topic in self.loaded_of(names):
            self._forget(topic.name)
            await topic.discard()
        for whole in dict.fromkeys(name.partitioned_name for name in names):
            await self.schemas.settled(whole)

    def _forget(self, name: TopicName) -> None:
        if (topic := self._loaded.pop(name, None)) is not None:
            self._inactive.forget(topic)
            if not name.persistent:
                self.lists.nonpersistent_went(name)

    def loaded_of(self, names: Iterable[TopicName]) -> list[ServedTopic]:
        return [self._loaded[name] for name in names if name in self._loaded]

    async def _loads_of(self, names: Collection[TopicName]) -> None:
        """Waits for loads in progress: their requests are served before the topics change."""
        if loading := self._loading_of(names):
            await asyncio.wait(loading)

    def _loading_of(self, names: Iterable[TopicName]) -> list[asyncio.Future[ServedTopic]]:
        return [self._loading[name] for name in names if name in self._loading]

    def _is_going(self, name: TopicName) -> bool:
        return self.deletions.concerns(name) or not self.tenants.takes_topics(name.namespace_name)

    async def at_rest(self, namespace: str) -> None:
        """Waits for loads, partitioning and unloads in the namespace."""
        at_work: list[tuple[TopicName, asyncio.Future[Any]]]
        at_work = [*self._loading.items(), *self._changing.items()]
        if found := [work for name, work in at_work if name.namespace_name == namespace]:
            await asyncio.wait(found)

    async def unload(self, name: TopicName, why: str = "unloaded by the administrator") -> None:
        """Close the topic; its next use loads it again. Clients reconnect automatically."""
        await self.settled(name)
        if name in self._loaded or name in self._loading:
            await self.change(name, self._close(name, why))

    async def _close(self, name: TopicName, why: str) -> None:
        await self._loads_of([name])
        if (topic := self._loaded.get(name)) is None:
            return
        try:
            await topic.close(why)
        finally:
            self._forget(name)

    async def change(self, name: TopicName, work: Coroutine[Any, Any, None]) -> None:
        """Runs work during which requests for the topic wait, after other such work."""
        try:
            while (changing := self._changing.get(name)) is not None:
                await asyncio.wait([changing])
        except asyncio.CancelledError:
            work.close()
            raise
        task = self._changing[name] = shared_task(work)
        task.add_done_callback(lambda _: self._changing.pop(name))
        await asyncio.shield(task)

    async def close(self) -> None:
        """Unload all topics. None may be requested any more."""
        if self.has_scalable:
            await self.scalable.close()
        await self.watches.close()
        await self.following.close()
        await self._inactive.close()
        await self.deletions.close()
        working: list[asyncio.Future[Any]] = [*self._loading.values(), *self._changing.values()]
        if working:
            await asyncio.wait(working)
        for at in range(0, len(topics := list(self._loaded.values())), _CLOSED_AT_ONCE):
            some = topics[at : at + _CLOSED_AT_ONCE]
            await all_done(topic.close("the broker shuts down") for topic in some)
        self._loaded.clear()
