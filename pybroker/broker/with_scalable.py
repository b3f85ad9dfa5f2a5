"""What topics have of scalable ones: nothing of these is loaded before the first is used.

An ordinary topic that was made scalable (migrated) has become the first segments of that topic,
each sealed, under the names that it had. Once these are pruned, nobody can create the ordinary
topic again: clients of 4.x would publish to a topic that the others do not know.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Final, cast

from managed_ledger.errors import BadVersion, CorruptStorage
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.storage.backend import ABSENT, KeyAt
from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.errors import TopicTerminated
from pybroker.base.names import SEGMENT, TopicName
from pybroker.base.runtime import Clock
from pybroker.broker.brokers.ownership import Ownership
from pybroker.broker.namespaces.tenants import (
    MadeScalable,
    Tenants,
    migration_key,
    scalable_key,
)
from pybroker.broker.namespaces.usable_names import check_creatable
from pybroker.broker.persistent.topic_services import TopicServices

if TYPE_CHECKING:
    from pybroker.broker.brokers.parts_elsewhere import OtherBrokersOfParts
    from pybroker.broker.scalable.serving import ServesTopics
    from pybroker.broker.scalable.topics import ScalableTopics


# A decision about an ordinary topic; the condition must hold when it is written.
Decide = Callable[[KeyAt | None], Awaitable[None]]
_RETRIES: Final = 3


@lru_cache(maxsize=10_000)
def _key_of(name: TopicName) -> str:
    """The key of the record of the scalable topic of its name."""
    return scalable_key(name.scalable_name)


class WithScalable:
    """A part of `Topics`."""

    others_of_parts: "OtherBrokersOfParts | None" = None  # None: the broker is alone
    tenants: Tenants
    ownership: Ownership
    _factory: ManagedLedgerFactory
    _services: TopicServices
    _clock: Clock
    _config: BrokerConfig

    @cached_property
    def scalable(self) -> "ScalableTopics":
        """Loaded at its first use."""
        from pybroker.broker.scalable.topics import ScalableTopics

        metadata, config = self._services.metadata, self._config
        interval_s = config.scalable_topic_auto_scale_interval_seconds
        topics = cast("ServesTopics", self)
        return ScalableTopics(topics, self._factory, metadata, self._clock, interval_s)

    @property
    def has_scalable(self) -> bool:
        return "scalable" in self.__dict__

    def is_segment(self, name: TopicName) -> bool:
        """Whether it is, or was, a segment of a scalable topic."""
        return name.domain == SEGMENT or self.was_migrated(name)

    def was_migrated(self, name: TopicName) -> bool:
        """Whether the ordinary topic, or the one of this partition, was made scalable."""
        if name.domain != "persistent":
            return False
        whole = name.scalable_name
        return self.tenants.has_scalable_topic(whole) and self.scalable.was_ordinary(whole)

    def place_of(self, name: TopicName) -> TopicName:
        """The name whose hash decides in which bundle a topic is: what was migrated is served by
        the broker of the scalable topic.
        """
        # Kept fast: every question who serves a topic of a cluster comes here.
        if self._services.metadata.get(_key_of(name)) is not None:
            with suppress(CorruptStorage):  # of the record: then nobody can use either
                return name.scalable_name if self.was_migrated(name) else name
        return name

    def namesake(self, name: TopicName) -> TopicName | None:
        """The other name of a topic that was made scalable, if this is one of its two."""
        whole = name.scalable_name
        former = whole._replace(domain="persistent")
        if name not in (whole, former) or self._services.metadata.get(_key_of(name)) is None:
            return None
        with suppress(CorruptStorage):
            if self.was_migrated(former):
                return whole if name == former else former
        return None

    async def migrations_heard_of(self) -> None:
        """Returns when this broker knows of all that were decided. Raises ServiceNotReady."""
        if self.others_of_parts is not None:
            await self.ownership.refreshed()

    def check_not_migrated(self, name: TopicName) -> None:
        """Raises MadeScalable for a topic that was migrated."""
        if self.was_migrated(name):
            raise MadeScalable(
                f"{name} was made scalable: it is a part of {name.scalable_name} now",
                f"use {name.scalable_name} instead",
            )

    async def unless_migrated(self, name: TopicName, decide: Decide) -> None:
        """Decides what must not happen to a topic that another broker makes scalable meanwhile,
        such as its deletion: either this is decided or the migration, on whichever brokers. Raises
        MadeScalable, what `decide` raises.
        """
        if self.others_of_parts is None or name.domain != "persistent":
            await decide(None)
            return
        not_announced = KeyAt(migration_key(name.partitioned_name), ABSENT)
        for _ in range(_RETRIES):
            try:
                await self.refuse_migration(name)
                await decide(not_announced)
            except BadVersion:
                await self.ownership.refreshed()
            else:
                return
        await decide(not_announced)

    async def refuse_migration(self, name: TopicName) -> None:
        """A migration that was announced, and is not decided, cannot be decided any more. Raises
        MadeScalable, BadVersion.
        """
        key, record = migration_key(name.partitioned_name), _key_of(name)
        metadata = self._services.metadata
        if metadata.get(key) is None:
            return
        await self.ownership.refreshed()
        self.check_not_migrated(name)
        found = metadata.get(record)
        version = ABSENT if found is None else found.version
        await metadata.delete(key, only_while=KeyAt(record, version))

    def check_creatable(self, name: TopicName) -> None:
        """Raises NotAllowed, NotFound, TopicNotFound; TopicTerminated for what was migrated."""
        if self.was_migrated(name):
            raise TopicTerminated(
                f"{name} was made scalable, and takes no more messages: open "
                f"{name.scalable_name} with a client of the V5 SDK"
            )
        check_creatable(self._config, self.tenants, name)
