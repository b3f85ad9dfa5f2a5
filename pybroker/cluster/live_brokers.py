"""The live brokers of the cluster. Each has an ephemeral node, which also contains its promises."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from managed_ledger.errors import DirectoryInUse, ManagedLedgerError
from managed_ledger.storage.bookkeeper.move_lock import refuse_during_move
from managed_ledger.storage.zookeeper.client import ZooKeeper
from managed_ledger.storage.zookeeper.errors import (
    BadVersionError,
    ConnectionLoss,
    NodeExists,
    NoNode,
)
from managed_ledger.storage.zookeeper.operations import Node
from pybroker.broker.brokers.ownership import BrokerAddress
from pybroker.cluster.node_values import (
    Place,
    Promise,
    broker_of,
    common_of,
    is_of_pybroker,
    promises_of,
    with_promises,
)
from pybroker.cluster.tree_mirror import TreeMirror

log = logging.getLogger(__name__)
ROOT: Final = "/loadbalance/brokers"
_LOOK_AGAIN_S: Final = 0.2


class NameTaken(ManagedLedgerError):
    """Another broker has this broker's address; the message says what to do."""


class DifferentSettings(ManagedLedgerError):
    """Brokers of a cluster differ in a setting that must be the same on all of them."""

    def __init__(self, key: str, own: str, other: str, said: str) -> None:
        super().__init__(
            f"{key}={own} here, but {key}={said} on broker {other}: it must be the same on all "
            "brokers of a cluster. Correct the configuration; to change it, stop all brokers first"
        )


class LiveBrokers:
    def __init__(self, zookeeper: ZooKeeper) -> None:
        self._zookeeper = zookeeper
        self._mirror = TreeMirror(zookeeper, ROOT, self._changed)
        self._places: dict[str, Place] = {}
        self._promises: dict[str, dict[str, Promise]] = {}  # by broker id, then by bundle
        self.own_id = ""  # host:port; empty unless this broker has joined

    async def open(self) -> None:
        """Loads the list of brokers. Raises ZooKeeperError if ZooKeeper does not answer."""
        await self._mirror.open()

    async def close(self) -> None:
        await self._mirror.close()

    def all(self) -> dict[str, Place]:
        """The live brokers by id, sorted; includes this broker while it has joined."""
        return dict(sorted(self._places.items()))

    async def current(self) -> dict[str, Place | None]:
        """All brokers that are alive at a time after the call; None if a broker's node cannot be
        read. Raises ZooKeeperError.
        """
        await self._zookeeper.sync(ROOT)
        found: dict[str, Place | None] = {}
        for broker_id in sorted(await self._zookeeper.children(ROOT)):
            if (node := await self._mirror.look(f"{ROOT}/{broker_id}")) is not None:
                found[broker_id] = broker_of(node.value)
        return found

    async def require_common(self, broker_id: str, common: Mapping[str, str]) -> None:
        """Call after `join`: of two brokers that differ, at least the later one notices. Raises
        DifferentSettings, ZooKeeperError.
        """
        for other in await self.current():
            node = self._mirror.nodes.get(f"{ROOT}/{other}")
            if other == broker_id or node is None:
                continue
            for key, said in common_of(node.value).items():
                if key in common and common[key] != said:
                    raise DifferentSettings(key, common[key], other, said)

    def id_of(self, address: BrokerAddress) -> str | None:
        """The id of the live broker with this address."""
        found = (each for each, place in self._places.items() if place.address == address)
        return next(found, None)

    def place(self, broker_id: str) -> Place | None:
        return self._places.get(broker_id)

    def is_foreign(self, broker_id: str) -> bool:
        """Whether the broker is Apache Pulsar's."""
        node = self._mirror.nodes.get(f"{ROOT}/{broker_id}")
        return node is not None and not is_of_pybroker(node.value)

    def told(self, bundle: str) -> list[Promise]:
        """The promises of other brokers for the bundle, as far as this broker knows."""
        return [
            promises[bundle]
            for broker_id, promises in self._promises.items()
            if broker_id != self.own_id and bundle in promises
        ]

    async def tell(self, promised: Callable[[], Mapping[str, Promise]]) -> None:
        """Write this broker's promises, by bundle, into its node. When this returns, the other
        brokers know them, or will before they learn of this broker's later writes. Does nothing if
        this broker's node is gone. Raises ZooKeeperError.
        """
        path = f"{ROOT}/{self.own_id}"
        while self.own_id and (node := self._mirror.nodes.get(path)) is not None:
            value = with_promises(node.value, promised())
            if node.ephemeral_owner != self._zookeeper.session_id or value == node.value:
                return
            try:
                version = await self._zookeeper.set(path, value, node.version)
            except (BadVersionError, ConnectionLoss, NoNode):
                await self._mirror.look(path)
                continue
            self._mirror.put(path, Node(value, version, node.ephemeral_owner))
            return

    async def join(self, broker_id: str, value: bytes, patience_s: float) -> None:
        """Create this broker's node. An earlier process of this broker keeps the address until its
        session ends: waits for that up to `patience_s`, then raises NameTaken. Raises
        DirectoryInUse while `pybroker move` copies the cluster's data, ZooKeeperError.
        """
        path = f"{ROOT}/{broker_id}"
        try:
            async with asyncio.timeout(patience_s):
                while not await self._created(path, value):
                    log.info("waiting until the earlier session of %s has ended", broker_id)
                    await asyncio.sleep(_LOOK_AGAIN_S)
        except TimeoutError:
            raise NameTaken(
                f"another broker of this cluster has the address {broker_id}; stop it, or give "
                "this one a different address with advertisedAddress and webServicePort"
            ) from None
        try:
            await refuse_during_move(self._zookeeper)
        except DirectoryInUse:
            await delete(self._zookeeper, path)
            raise
        self.own_id = broker_id
        self._mirror.put(path, Node(value, 0, self._zookeeper.session_id))

    async def leave(self) -> None:
        """Delete this broker's node, so that other brokers no longer choose it. Raises
        ZooKeeperError.
        """
        own_id, self.own_id = self.own_id, ""
        if own_id:
            await delete(self._zookeeper, f"{ROOT}/{own_id}")
            self._mirror.forget(f"{ROOT}/{own_id}")

    async def _created(self, path: str, value: bytes) -> bool:
        try:
            await self._zookeeper.create(path, value, ephemeral=True)
        except (NodeExists, ConnectionLoss):
            node = await self._mirror.look(path)
            return node is not None and node.ephemeral_owner == self._zookeeper.session_id
        return True

    def _changed(self, path: str) -> None:
        broker_id = path.removeprefix(f"{ROOT}/")
        node = self._mirror.nodes.get(path)
        place = None if node is None else broker_of(node.value)
        promises = {} if node is None else promises_of(node.value)
        if promises:
            self._promises[broker_id] = promises
        else:
            self._promises.pop(broker_id, None)
        if place is None:
            if self._places.pop(broker_id, None) is not None:
                log.info("broker %s has left the cluster", broker_id)
        else:
            if broker_id not in self._places:
                log.info("broker %s is in the cluster", broker_id)
            self._places[broker_id] = place


async def delete(zookeeper: ZooKeeper, path: str) -> None:
    """Delete a node. Idempotent. Raises ZooKeeperError."""
    while True:
        try:
            await zookeeper.delete(path)
        except NoNode:
            return
        except ConnectionLoss:
            continue
        return
