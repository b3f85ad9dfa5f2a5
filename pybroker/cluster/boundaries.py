"""The division of each namespace's topics into bundles, which ZooKeeper keeps for all brokers.

The first broker that is asked for a topic of a namespace writes the division: according to the
namespace's policies, or with its own defaultNumberOfNamespaceBundles. Later, splits and
administrators change it. The node's version identifies the division that a broker knows, so that no
broker acquires a bundle of an earlier division.
"""

import json
import logging
from bisect import bisect_right
from collections.abc import Callable
from itertools import pairwise
from typing import Final

from managed_ledger.errors import BadVersion
from managed_ledger.storage.backend import KeyAt
from managed_ledger.storage.zookeeper.client import ZooKeeper
from managed_ledger.storage.zookeeper.errors import (
    BadVersionError,
    ConnectionLoss,
    NodeExists,
    NoNode,
)
from managed_ledger.storage.zookeeper.operations import Check, Create, Delete, Node, SetData
from pybroker.base.errors import MetadataError
from pybroker.base.names import TopicName
from pybroker.broker.brokers.ownership import Bundle, hash_of
from pybroker.broker.namespaces.tenants import BUILT_IN, NotFound
from pybroker.cluster.node_values import boundaries_of, boundaries_value, equal_boundaries
from pybroker.cluster.tree_mirror import TreeMirror, make_parents

log = logging.getLogger(__name__)
ROOT: Final = "/admin/local-policies"
POLICIES: Final = "/admin/policies"


class Boundaries:
    def __init__(self, zookeeper: ZooKeeper, bundles: int, path_of: Callable[[str], str]) -> None:
        """`bundles`: the number of bundles for a namespace that is not divided yet. `path_of`
        returns the node of a key of the metadata.
        """
        self._zookeeper = zookeeper
        self._path_of = path_of
        self._default = boundaries_value(equal_boundaries(bundles))
        self._mirror = TreeMirror(zookeeper, ROOT, self._changed)
        self._known: dict[str, tuple[int, ...]] = {}
        # Called with a namespace whose division was changed or deleted.
        self.on_change: Callable[[str], None] = _do_nothing
        # The name whose hash decides where a topic is; see Topics.place_of.
        self.place_of: Callable[[TopicName], TopicName] = lambda name: name

    async def open(self) -> None:
        """Loads all boundaries. Raises ZooKeeperError if ZooKeeper does not answer."""
        await self._mirror.open()

    async def close(self) -> None:
        await self._mirror.close()

    def known(self, namespace: str) -> tuple[int, ...]:
        """The boundaries of the namespace's bundles; empty if no division is known here."""
        return self._known.get(namespace, ())

    def bundle_of(self, name: TopicName) -> Bundle | None:
        """The bundle of the topic; None if `of` would have to ask ZooKeeper."""
        bounds = self._known.get(name.namespace_name)
        if bounds is None:
            return None
        at = min(bisect_right(bounds, hash_of(self.place_of(name))), len(bounds) - 1)
        return Bundle(name.namespace_name, bounds[at - 1], bounds[at])

    def is_current(self, bundle: Bundle) -> bool:
        """Whether the bundle belongs to the division that is known here."""
        bounds = self.known(bundle.namespace)
        return (bundle.low, bundle.high) in pairwise(bounds)

    def node(self, namespace: str) -> Node | None:
        """The node of the division that is known here."""
        return self._mirror.nodes.get(f"{ROOT}/{namespace}")

    async def of(self, name: TopicName) -> Bundle:
        """The bundle of the topic. Divides the namespace if no broker has done so. Raises
        ZooKeeperError, MetadataError, NotFound.
        """
        await self._divided(name.namespace_name)
        found = self.bundle_of(name)
        assert found is not None
        return found

    async def of_namespace(self, namespace: str) -> tuple[Bundle, ...]:
        """The bundles in order. Divides the namespace if no broker has done so. Raises
        ZooKeeperError, MetadataError, NotFound.
        """
        return _between(namespace, await self._divided(namespace))

    async def divide(self, namespace: str, bundles: int) -> None:
        """Divide the namespace into `bundles` bundles of equal size, even if it is divided
        differently. Raises ZooKeeperError, NotFound.
        """
        path, wanted = f"{ROOT}/{namespace}", equal_boundaries(bundles)
        value = boundaries_value(wanted)
        while True:
            exists, _ = await self._existing(namespace)
            node = await self._mirror.look(path)
            if node is not None and boundaries_of(node.value) == wanted:
                return
            if node is None:
                await make_parents(self._zookeeper, path)
            change = Create(path, value) if node is None else SetData(path, value, node.version)
            try:
                await self._zookeeper.multi([*exists, change])
            except (NodeExists, BadVersionError, ConnectionLoss, NoNode):
                continue  # look at the nodes again
            await self._mirror.look(path)
            return

    async def forget(self, namespace: str, only_while: KeyAt) -> None:
        """Delete the division of a deleted namespace; brokers release its bundles when they learn
        of this. Raises ZooKeeperError; BadVersion if there is a division, but the condition does
        not hold: it may be the division of a new namespace.
        """
        path = f"{ROOT}/{namespace}"
        decided = Check(self._path_of(only_while.key), only_while.version)
        while await self._mirror.look(path) is not None:
            try:
                await self._zookeeper.multi([decided, Delete(path)])
            except (NoNode, BadVersionError, ConnectionLoss):
                await self._require(decided)

    async def _require(self, condition: Check) -> None:
        """Raises BadVersion if the node has another version or is gone."""
        try:
            node = await self._zookeeper.get(condition.path)
        except NoNode as why:
            raise BadVersion(f"{why}: it is gone") from None
        if node.version != condition.version:
            raise BadVersion(f"{condition.path} has changed")

    async def current(self, namespace: str) -> tuple[Bundle, ...]:
        """The bundles in order, as ZooKeeper says now; none if the namespace is not divided. Raises
        ZooKeeperError.
        """
        path = f"{ROOT}/{namespace}"
        await self._zookeeper.sync(path)
        await self._mirror.look(path)
        return _between(namespace, self.known(namespace))

    async def look(self, namespace: str, insist: bool = False) -> None:
        """Read the division from ZooKeeper. Raises ZooKeeperError; with `insist`, only
        SessionExpired.
        """
        await self._mirror.look(f"{ROOT}/{namespace}", insist)

    def was_set(self, namespace: str, value: bytes, version: int) -> None:
        """Note a division that this broker has written."""
        self._mirror.put(f"{ROOT}/{namespace}", Node(value, version, 0))

    async def _divided(self, namespace: str) -> tuple[int, ...]:
        if namespace not in self._known:
            await self._divide(namespace)
        if namespace not in self._known:
            raise MetadataError(
                f"{ROOT}/{namespace} does not contain valid bundle boundaries; "
                "correct or delete that node in ZooKeeper"
            )
        return self._known[namespace]

    async def _divide(self, namespace: str) -> None:
        path = f"{ROOT}/{namespace}"
        while True:
            node = await self._mirror.look(path)
            try:
                if node is None:
                    await self._divide_first(namespace)
                elif (completed := self._completed(node.value)) is not None:
                    version = await self._zookeeper.set(path, completed, node.version)
                    self._mirror.put(path, Node(completed, version, 0))
                return
            except (NodeExists, BadVersionError, ConnectionLoss, NoNode):
                continue  # look at the node again

    async def _divide_first(self, namespace: str) -> None:
        """Create the division that was requested when the namespace was created, or the default.
        Raises ZooKeeperError, NotFound.
        """
        path = f"{ROOT}/{namespace}"
        exists, policies = await self._existing(namespace)
        found = boundaries_of(policies)
        value = self._default if found is None else boundaries_value(found)
        await make_parents(self._zookeeper, path)
        await self._zookeeper.multi([*exists, Create(path, value)])
        self._mirror.put(path, Node(value, 0, 0))

    async def _existing(self, namespace: str) -> tuple[list[Check], bytes]:
        """The condition that the namespace exists, and its policies. A broker may learn late that
        it was deleted: then raises NotFound.
        """
        path = f"{POLICIES}/{namespace}"
        await self._zookeeper.sync(path)  # another broker may have just created it
        try:
            policies = await self._zookeeper.get(path)
        except NoNode:
            if namespace not in BUILT_IN:  # these need no policies
                raise NotFound("Namespace does not exist") from None
            return [], b""
        return [Check(path, policies.version)], policies.value

    def _completed(self, value: bytes) -> bytes | None:
        """The node's value with the default boundaries, if it has none; None if the node must stay
        as it is.
        """
        if not value:
            return self._default
        try:
            fields = json.loads(value)
        except (ValueError, RecursionError):
            return None
        if not isinstance(fields, dict) or fields.get("bundles") is not None:
            return None
        return json.dumps({**fields, **json.loads(self._default)}).encode()

    def _changed(self, path: str) -> None:
        namespace = path.removeprefix(f"{ROOT}/")
        if namespace.count("/") != 1:
            return
        node = self._mirror.nodes.get(path)
        found = None if node is None else boundaries_of(node.value)
        if found is None:
            before = self._known.pop(namespace, None)
            if node is None and before is not None:
                self.on_change(namespace)
            return
        before = self._known.get(namespace, found)
        self._known[namespace] = found
        if before != found:
            log.info("%s has %d bundles now", namespace, len(found) - 1)
            self.on_change(namespace)


def _between(namespace: str, bounds: tuple[int, ...]) -> tuple[Bundle, ...]:
    return tuple(Bundle(namespace, low, high) for low, high in pairwise(bounds))


def _do_nothing(namespace: str) -> None:
    """Nothing depends on divisions yet."""
