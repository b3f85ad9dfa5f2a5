"""A namespace with an unreadable record: other namespaces work, and known policies are kept."""

import asyncio
import json

import pytest

from managed_ledger.errors import CorruptStorage
from managed_ledger.storage.memory import MemoryBackend
from pybroker.base.configuration.config import BrokerConfig
from pybroker.broker.namespaces.permissions import Permissions
from pybroker.broker.namespaces.tenants import NAMESPACES, Tenants
from pybroker.broker.policies.policies import Policies
from pybroker.broker.policies.table import MESSAGE_TTL
from pybroker.security.authorization import Grants

BROKEN, WHOLE = "public/broken", "public/whole"


class World:
    def __init__(self, backend, monkeypatch):
        self.metadata = backend.metadata
        self.tenants = Tenants(self.metadata, BrokerConfig())
        self.permissions = Permissions(self.metadata, self.tenants)
        self.policies = Policies(self.metadata, self.tenants, BrokerConfig(), lambda topic: None)
        self.told = []
        self.policies.tell(lambda namespace, topic: self.told.append(namespace))
        self._monkeypatch = monkeypatch

    async def damage(self):
        """Another program overwrites the record with text that is not JSON."""
        read = self.metadata.get

        def get(key):
            if key.endswith(BROKEN):
                raise CorruptStorage(f"the node of {key!r} is not JSON; correct that node")
            return read(key)

        self._monkeypatch.setattr(self.metadata, "get", get)
        value = json.dumps({"message_ttl_in_seconds": 9}).encode()
        await self.metadata.put(NAMESPACES + BROKEN, value)


@pytest.fixture
def run(monkeypatch):
    def run_(scenario):
        async def scene():
            backend = MemoryBackend()
            await backend.open()
            world = World(backend, monkeypatch)
            for namespace in (BROKEN, WHOLE):
                await world.tenants.create_namespace(namespace, {"message_ttl_in_seconds": 5})
                await world.permissions.grant(namespace, "bob", ["produce"])
            await scenario(world)
            await backend.close()

        asyncio.run(scene())

    return run_


def test_it_grants_nothing_and_others_grant_what_they_did(run):
    async def scenario(world):
        assert world.permissions.grants(BROKEN).namespace
        await world.damage()
        assert world.permissions.grants(BROKEN) == Grants()
        assert world.permissions.grants(WHOLE).namespace == {"bob": ["produce"]}

    run(scenario)


def test_it_is_still_there_for_a_later_repair(run):
    async def scenario(world):
        await world.damage()
        assert world.tenants.has_namespace(BROKEN)
        assert BROKEN in world.tenants.namespaces("public")

    run(scenario)


def test_policies_that_were_known_stay_in_force(run):
    async def scenario(world):
        assert world.policies.of_namespace(BROKEN)[MESSAGE_TTL] == 5
        world.told.clear()
        await world.damage()
        assert world.policies.of_namespace(BROKEN)[MESSAGE_TTL] == 5
        assert world.policies.namespace_values(BROKEN)[MESSAGE_TTL.name] == 5
        assert world.told == []

    run(scenario)


def test_policies_that_nobody_has_read_are_not_made_up(run):
    """Default policies might delete what a policy keeps."""

    async def scenario(world):
        await world.damage()
        with pytest.raises(CorruptStorage, match="correct that node"):
            world.policies.of_namespace(BROKEN)
        assert world.policies.of_namespace(WHOLE)[MESSAGE_TTL] == 5

    run(scenario)
