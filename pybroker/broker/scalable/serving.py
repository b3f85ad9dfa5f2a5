"""What scalable topics need of the topics of a broker."""

from collections.abc import Coroutine
from typing import Any, Protocol

from managed_ledger.storage.backend import KeyAt
from pybroker.base.names import TopicName
from pybroker.broker.brokers.ownership import Ownership
from pybroker.broker.brokers.parts_elsewhere import OtherBrokersOfParts
from pybroker.broker.deletion.deletions import Deletions, Doomed
from pybroker.broker.namespaces.permissions import Permissions
from pybroker.broker.namespaces.tenants import Tenants
from pybroker.broker.persistent.topic import Topic
from pybroker.broker.policies.policies import Policies
from pybroker.broker.topic_lists.room import Room


class ServesTopics(Protocol):
    """`Topics`, which imports this package late."""

    tenants: Tenants
    permissions: Permissions
    ownership: Ownership
    others_of_parts: OtherBrokersOfParts | None
    deletions: Deletions
    room: Room
    policies: Policies

    def exists(self, name: TopicName) -> bool: ...
    def serving(self, name: TopicName) -> Topic | None: ...
    async def settled(self, name: TopicName) -> None: ...
    async def get(self, name: TopicName | str, create: bool = False) -> Topic | None: ...
    async def change(self, name: TopicName, work: Coroutine[Any, Any, None]) -> None: ...
    async def delete_all_of(
        self, doomed: Doomed, force: bool, only_while: KeyAt | None = None
    ) -> None: ...
