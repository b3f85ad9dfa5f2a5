"""This broker's bundles, and the owners of all other bundles.

A bundle belongs to the session that created its ephemeral node. Nothing else decides ownership: the
knowledge of other brokers may be out of date, and then ZooKeeper refuses the second node.

    unowned ──create──▶ ACQUIRING ──caught up──▶ OWNED ──unload, stop──▶ RELEASING ──delete──▶

While a bundle is ACQUIRING, the metadata in memory catches up with the writes of the last owner.
While it is RELEASING, its topics and coordinators are closed. A SUSPENDED session may have expired:
the broker acquires no bundle and loads no topic. Loaded topics continue, because the next owner
fences their ledgers when it opens them. When the session has expired, `lost` is called and the
process ends: see docs/internals/cluster.md.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Final

from managed_ledger.shared_task import shared_task
from managed_ledger.storage.zookeeper.client import ZooKeeper
from managed_ledger.storage.zookeeper.errors import (
    BadVersionError,
    ConnectionLoss,
    NodeExists,
    NoNode,
    ZooKeeperError,
)
from managed_ledger.storage.zookeeper.operations import Check, Create, Delete, Node, SetData
from managed_ledger.storage.zookeeper.session import SessionState
from pybroker.base.errors import ServiceNotReady
from pybroker.base.names import TopicName
from pybroker.broker.brokers.ownership import (
    BeingReleased,
    BrokerAddress,
    Bundle,
    OnAcquired,
    OnReleased,
    OtherOwner,
)
from pybroker.cluster.boundaries import ROOT as DIVISIONS
from pybroker.cluster.boundaries import Boundaries
from pybroker.cluster.live_brokers import LiveBrokers, delete
from pybroker.cluster.node_values import Place, boundaries_value, owner_of, owner_value
from pybroker.cluster.placement import chosen
from pybroker.cluster.promises import Promises
from pybroker.cluster.shared_rounds import SharedRounds
from pybroker.cluster.tree_mirror import TreeMirror, make_parents

log = logging.getLogger(__name__)
ROOT: Final = "/namespace"
ANSWER_S: Final = 20.0  # clients wait 30 s for a lookup
RELEASE_S: Final = 30.0  # for closing the topics of one bundle


class BundleState(Enum):
    ACQUIRING = "acquiring"
    OWNED = "owned"
    HALF = "half"  # owned as soon as the split of its bundle is known to have succeeded
    RELEASING = "releasing"


# Nobody asks for a half before the split is known to have succeeded.
_SERVED: Final = (BundleState.OWNED, BundleState.HALF)


class BundleOwnership:
    """Implements Ownership."""

    def __init__(
        self,
        zookeeper: ZooKeeper,
        boundaries: Boundaries,
        brokers: LiveBrokers,
        caught_up: Callable[[], Awaitable[None]],
    ) -> None:
        """`caught_up` returns when the metadata in memory includes all writes before its call."""
        self.brokers = brokers
        self._zookeeper = zookeeper
        self._boundaries = boundaries
        self._caught_up = caught_up
        self._owners = TreeMirror(zookeeper, ROOT, self._owner_changed)
        self._states: dict[Bundle, BundleState] = {}
        self._acquiring: dict[Bundle, asyncio.Task[Place | None]] = {}
        self._releasing: dict[Bundle, asyncio.Task[None]] = {}
        self._closing: dict[Bundle, asyncio.Task[None]] = {}  # of the topics of released bundles
        self._splitting: dict[Bundle, asyncio.Task[None]] = {}
        self._promises = Promises(brokers)
        self._refreshing = SharedRounds(self._refresh)
        self._on_acquired: list[OnAcquired] = []
        self._on_released: list[OnReleased] = []
        self._value = b""  # of the nodes of this broker's bundles; empty: it takes no bundle
        boundaries.on_change = self._divided_anew

    # --- life

    async def open(self) -> None:
        """Learn the owners of all bundles; this broker takes none yet. Raises ZooKeeperError."""
        await self._owners.open()

    def serve(self, place: Place) -> None:
        """Take bundles from now on; clients reach this broker at `place`."""
        self._value = owner_value(place)

    async def give_all_back(self) -> None:
        """Take no more bundles, and release all. When this returns, other brokers may take them."""
        self._value = b""
        under_way = (*self._acquiring.values(), *self._splitting.values())
        await asyncio.gather(*under_way, return_exceptions=True)
        await asyncio.gather(*map(self.release, self.owned()), return_exceptions=True)

    async def close(self) -> None:
        await self._promises.close()
        await self._owners.close()

    # --- Ownership

    def owns(self, name: TopicName) -> bool:
        if self._zookeeper.state is not SessionState.CONNECTED:
            return False
        bundle = self._boundaries.bundle_of(name)
        return bundle is not None and self._states.get(bundle) in _SERVED

    async def owner_of(self, name: TopicName) -> BrokerAddress | None:
        found = await self.lookup(name, False)
        return None if found is None else found.address

    async def lookup(self, name: TopicName, authoritative: bool) -> OtherOwner | None:
        with as_not_ready(f"the broker of {name}"):
            async with asyncio.timeout(ANSWER_S):
                while True:
                    bundle = await self._boundaries.of(name)
                    try:
                        return await self._lookup(bundle, authoritative)
                    except FormerBundle:  # split meanwhile, and this broker knows that now
                        continue

    async def lookup_bundle(self, bundle: Bundle, authoritative: bool) -> OtherOwner | None:
        """Like `lookup`, for a bundle. Raises ServiceNotReady."""
        with as_not_ready(f"the broker of {bundle}"):
            async with asyncio.timeout(ANSWER_S):
                return await self._lookup(bundle, authoritative)

    async def range_of(self, name: TopicName) -> str:
        with as_not_ready(f"the bundle of {name}"):
            async with asyncio.timeout(ANSWER_S):
                return (await self._boundaries.of(name)).range

    async def refreshed(self) -> None:
        with as_not_ready("the metadata written by other brokers"):
            async with asyncio.timeout(ANSWER_S):
                await self._refreshing.one()

    async def _refresh(self) -> None:
        async with asyncio.timeout(ANSWER_S):
            await self._zookeeper.sync(ROOT)
            await self._caught_up()

    def on_change(self, acquired: OnAcquired, released: OnReleased) -> None:
        self._on_acquired.append(acquired)
        self._on_released.append(released)

    # --- requests of administrators

    def owned(self) -> list[Bundle]:
        return [each for each, state in self._states.items() if state is BundleState.OWNED]

    def owns_bundle(self, bundle: Bundle) -> bool:
        is_connected = self._zookeeper.state is SessionState.CONNECTED
        return is_connected and self._states.get(bundle) is BundleState.OWNED

    async def is_served(self, bundle: Bundle) -> bool:
        """Whether any broker serves the bundle, according to ZooKeeper now. Raises
        ZooKeeperError.
        """
        return await self._owners.look(path_of(bundle)) is not None

    def remote_place(self, bundle: Bundle) -> Place | None:
        """The other broker that has the bundle, as far as this broker knows."""
        node = self._owners.nodes.get(path_of(bundle))
        if node is None or node.ephemeral_owner in (0, self._zookeeper.session_id):
            return None
        return owner_of(node.value)

    def counts(self) -> dict[str, int]:
        """The number of bundles of each live broker, by broker id, as far as this broker knows."""
        places = self.brokers.all()
        ids = {place.address: broker_id for broker_id, place in places.items()}
        counts = dict.fromkeys(places, 0)
        for node in self._owners.nodes.values():
            place = owner_of(node.value) if node.ephemeral_owner else None
            if place is not None and (broker_id := ids.get(place.address)) is not None:
                counts[broker_id] += 1
        return counts

    async def release(self, bundle: Bundle, destination: str = "") -> None:
        """Close the bundle's topics and give the bundle back. Does nothing if this broker does not
        have it. `destination`: the id of the broker that should take it. For a short time all
        brokers then send lookups there, because a client that reconnects is faster than an
        administrator. Raises ZooKeeperError; FormerBundle if the bundle was split meanwhile.
        """
        if (splitting := self._splitting.get(bundle)) is not None:
            await asyncio.wait([splitting])
            if not self._boundaries.is_current(bundle):
                raise FormerBundle(bundle)
        if self._states.get(bundle) is BundleState.OWNED:
            self._begin_release(bundle)
        if (releasing := self._releasing.get(bundle)) is not None:
            if destination:
                self._promises.make(bundle, destination, RELEASE_S)
            else:
                self._promises.end(bundle)  # the last request counts
            await asyncio.shield(releasing)
            self._promises.begin(bundle)  # in case the request came when this was almost done

    def withdraw(self, bundle: Bundle, destination: str) -> None:
        """The broker `destination` does not take the bundle: any broker may."""
        self._promises.withdraw(bundle, destination)

    def _begin_release(self, bundle: Bundle) -> None:
        self._states[bundle] = BundleState.RELEASING
        task = self._releasing[bundle] = shared_task(self._release(bundle))
        task.add_done_callback(lambda _: self._releasing.pop(bundle))

    def _divided_anew(self, namespace: str) -> None:
        """A client has deleted the division, with the namespace, or replaced it. Release the former
        bundles: nobody looks them up, so their topics would stay here forever.
        """
        for bundle in self.owned():
            is_former = bundle.namespace == namespace and not self._boundaries.is_current(bundle)
            if is_former and bundle not in self._splitting:
                log.info("the bundles of %s have changed: releasing %s", namespace, bundle)
                self._begin_release(bundle)

    # --- looking up

    async def _lookup(self, bundle: Bundle, authoritative: bool) -> OtherOwner | None:
        if self._zookeeper.state is not SessionState.CONNECTED:
            raise ServiceNotReady(
                f"{bundle}: this broker is not connected to ZooKeeper; try again, or ask "
                "another broker"
            )
        state = self._states.get(bundle)
        if state in _SERVED:
            return None
        if state is BundleState.RELEASING:
            if (place := self.remote_place(bundle)) is not None:
                return OtherOwner(place.address, place.listeners, True)
            raise BeingReleased(bundle)
        if state is None:
            if (place := self.remote_place(bundle)) is not None:
                return OtherOwner(place.address, place.listeners, True)
            # If an earlier attempt created the node and then failed, continue it.
            other = None if self._is_noted(bundle) else self._better_placed(bundle, authoritative)
            if other is not None:
                return OtherOwner(other.address, other.listeners, False)
            if not self._value:
                raise ServiceNotReady(f"{bundle}: this broker is stopping; ask another one")
            self._states[bundle] = BundleState.ACQUIRING  # other callers wait for this attempt
            self._acquiring[bundle] = shared_task(self._acquire(bundle))
        place = await asyncio.shield(self._acquiring[bundle])
        return None if place is None else OtherOwner(place.address, place.listeners, True)

    def _is_noted(self, bundle: Bundle) -> bool:
        node = self._owners.nodes.get(path_of(bundle))
        return node is not None and node.ephemeral_owner == self._zookeeper.session_id

    def _better_placed(self, bundle: Bundle, authoritative: bool) -> Place | None:
        """The broker that should take the bundle; None: this broker."""
        broker_id = self._promises.heir(bundle)
        if broker_id is None:
            if authoritative and self._value:
                return None
            broker_id = chosen(str(bundle), self.counts())
        if broker_id is None or (broker_id == self.brokers.own_id and self._value):
            return None
        return self.brokers.place(broker_id)

    # --- acquiring and releasing

    async def _acquire(self, bundle: Bundle) -> Place | None:
        """None if this broker owns the bundle now; otherwise the broker that has it. Raises
        ZooKeeperError, ServiceNotReady.
        """
        try:
            if (place := await self._create(bundle)) is not None:
                return place
            await self._caught_up()
            if not self._value:
                await delete(self._zookeeper, path_of(bundle))
                raise ServiceNotReady(f"{bundle}: this broker is stopping; ask another one")
            self._states[bundle] = BundleState.OWNED
            self._promises.end(bundle)
        finally:
            del self._acquiring[bundle]
            if self._states.get(bundle) is BundleState.ACQUIRING:
                del self._states[bundle]
        log.info("serves %s", bundle)
        for acquired in self._on_acquired:
            acquired(bundle)
        if not self._boundaries.is_current(bundle):  # changed since the node was created
            self._divided_anew(bundle.namespace)
        return None

    async def _create(self, bundle: Bundle) -> Place | None:
        """Create the bundle's node. None if it belongs to this session now; otherwise the broker
        that has the bundle. Raises ZooKeeperError, FormerBundle, ServiceNotReady.
        """
        value, path = self._value, path_of(bundle)
        while True:
            division = self._boundaries.node(bundle.namespace)
            if division is None or not self._boundaries.is_current(bundle):
                raise FormerBundle(bundle)
            check = Check(path_of_division(bundle.namespace), division.version)
            try:
                await self._zookeeper.multi([check, Create(path, value, ephemeral=True)])
            except BadVersionError:
                await self._boundaries.look(bundle.namespace)
            except NoNode:
                await make_parents(self._zookeeper, path)
                await self._boundaries.look(bundle.namespace)
            except (NodeExists, ConnectionLoss):  # ConnectionLoss: it may have been created
                node = await self._owners.look(path)
                if node is not None and node.ephemeral_owner == self._zookeeper.session_id:
                    return None
                if node is not None:
                    if (place := owner_of(node.value)) is not None:
                        return place
                    raise ServiceNotReady(f"{path} does not name a broker; try again") from None
            else:
                self._owners.put(path, Node(value, 0, self._zookeeper.session_id))
                return None

    # --- splitting

    async def split(self, bundle: Bundle, at: int) -> None:
        """Split the bundle. This broker owns both halves when this returns; topics and coordinators
        stay open. Raises ZooKeeperError, FormerBundle, ServiceNotReady.
        """
        if (splitting := self._splitting.get(bundle)) is None:
            if not self.owns_bundle(bundle) or not self._boundaries.is_current(bundle):
                raise FormerBundle(bundle)
            splitting = self._splitting[bundle] = shared_task(self._split(bundle, at))
            splitting.add_done_callback(lambda _: self._split_ended(bundle))
        await asyncio.shield(splitting)

    def _split_ended(self, bundle: Bundle) -> None:
        del self._splitting[bundle]
        # Changes that came meanwhile were not handled for these bundles.
        self._divided_anew(bundle.namespace)
        self._owner_changed(path_of(bundle))

    async def _split(self, bundle: Bundle, at: int) -> None:
        division = self._boundaries.node(bundle.namespace)
        if division is None:
            raise FormerBundle(bundle)
        halves, own = (bundle._replace(high=at), bundle._replace(low=at)), self._value
        if not own:
            raise ServiceNotReady(f"{bundle}: this broker is stopping; ask another one")
        bounds = sorted({*self._boundaries.known(bundle.namespace), at})
        value = boundaries_value(bounds, json.loads(division.value))
        self._states.update(dict.fromkeys(halves, BundleState.HALF))
        try:
            versions = await self._zookeeper.multi(
                [
                    SetData(path_of_division(bundle.namespace), value, division.version),
                    Delete(path_of(bundle)),
                    *(Create(path_of(half), own, ephemeral=True) for half in halves),
                ]
            )
        except ConnectionLoss:
            # Do not look at the division: another client may have changed it after the split.
            made = await self._owners.look(path_of(halves[0]), insist=True)
            if made is None or made.ephemeral_owner != self._zookeeper.session_id:
                self._forget(halves)
                raise
            await self._boundaries.look(bundle.namespace, insist=True)
        except ZooKeeperError:
            self._forget(halves)
            await self._boundaries.look(bundle.namespace)
            raise
        else:
            self._boundaries.was_set(bundle.namespace, value, versions[0])
        self._states.pop(bundle, None)
        self._states.update(dict.fromkeys(halves, BundleState.OWNED))
        for half in halves:
            self._owners.put(path_of(half), Node(own, 0, self._zookeeper.session_id))
        self._owners.forget(path_of(bundle))
        log.info("split %s at 0x%08x", bundle, at)

    def _forget(self, bundles: Iterable[Bundle]) -> None:
        for each in bundles:
            self._states.pop(each, None)

    async def _release(self, bundle: Bundle) -> None:
        log.info("releases %s", bundle)
        await self._close_topics(bundle)
        try:
            await self._tell_promise(bundle)
            await delete(self._zookeeper, path_of(bundle))
        finally:
            self._released(bundle)
        self._owners.forget(path_of(bundle))

    async def _tell_promise(self, bundle: Bundle) -> None:
        """Tell other brokers the destination. If this fails, the bundle is given back all the same,
        and any broker may take it.
        """
        if self._promises.has(bundle):
            try:
                await self._promises.tell()
            except ZooKeeperError as error:
                log.warning("%s: cannot tell other brokers its destination: %s", bundle, error)

    async def _close_topics(self, bundle: Bundle) -> None:
        """Wait until the topics are closed, but not longer than a time limit, so that the bundle
        does not stay without a broker. Closing then continues, and this broker takes the bundle
        again only when it is complete: topics that are still loaded would be out of date.
        """
        closing = self._closing[bundle] = shared_task(self._close_all(bundle))
        done, _ = await asyncio.wait([closing], timeout=RELEASE_S)
        if not done:
            log.warning("%s: topics did not close within %g s", bundle, RELEASE_S)

    async def _close_all(self, bundle: Bundle) -> None:
        for released in self._on_released:
            try:
                await released(bundle)
            except Exception:  # after any error, the rest must still be closed
                log.exception("%s did not close cleanly", bundle)

    def _released(self, bundle: Bundle) -> None:
        self._promises.begin(bundle)
        closing = self._closing.pop(bundle)
        if closing.done():
            del self._states[bundle]
        else:
            closing.add_done_callback(lambda _: self._states.pop(bundle))

    def _owner_changed(self, path: str) -> None:
        """A node has changed. If another client has deleted a node of this session, another broker
        may own the bundle already: release it.
        """
        bundle = bundle_at(path)
        if bundle is None or bundle in self._splitting:
            return  # a split replaces the node by those of the halves
        node, state = self._owners.nodes.get(path), self._states.get(bundle)
        if node is not None and state is not BundleState.RELEASING:
            self._promises.end(bundle)  # a broker has taken it
        if state is not BundleState.OWNED:
            return
        if node is None or node.ephemeral_owner != self._zookeeper.session_id:
            log.warning("another client deleted the node of %s: releasing the bundle", bundle)
            self._states[bundle] = BundleState.RELEASING
            task = self._releasing[bundle] = shared_task(self._close_lost(bundle))
            task.add_done_callback(lambda _: self._releasing.pop(bundle))

    async def _close_lost(self, bundle: Bundle) -> None:
        """Close the topics without deleting the node: if it exists, it belongs to another
        broker.
        """
        await self._close_topics(bundle)
        self._released(bundle)


class FormerBundle(ServiceNotReady):
    """The namespace is divided differently now."""

    def __init__(self, bundle: Bundle) -> None:
        super().__init__(f"{bundle} is no longer a bundle of {bundle.namespace}; look it up again")


def path_of_division(namespace: str) -> str:
    return f"{DIVISIONS}/{namespace}"


def path_of(bundle: Bundle) -> str:
    return f"{ROOT}/{bundle}"


def bundle_at(path: str) -> Bundle | None:
    parts = path.removeprefix(f"{ROOT}/").split("/")
    if len(parts) != 3:
        return None
    low, _, high = parts[2].partition("_")
    try:
        return Bundle("/".join(parts[:2]), int(low, 16), int(high, 16))
    except ValueError:
        return None


@contextmanager
def as_not_ready(what: str) -> Iterator[None]:
    """Turns timeouts and ZooKeeper's errors into ServiceNotReady: the client tries again."""
    try:
        yield
    except TimeoutError:
        raise ServiceNotReady(f"{what}: not known within {ANSWER_S:g} s; try again") from None
    except ZooKeeperError as error:
        raise ServiceNotReady(f"{what}: not known now; try again: {error}") from error
