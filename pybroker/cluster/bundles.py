"""The cluster's bundles, for the admin API and for balancing."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from managed_ledger.storage.backend import KeyAt
from managed_ledger.storage.zookeeper.errors import ZooKeeperError
from pybroker.base.errors import ServiceNotReady
from pybroker.broker.brokers.ownership import BrokerAddress, Bundle, OtherOwner
from pybroker.cluster.boundaries import Boundaries
from pybroker.cluster.bundle_ownership import BundleOwnership

_PATIENCE_S: Final = 60.0  # closing a bundle's topics takes up to 30 s


class ClusterBundles:
    """Implements Bundles."""

    def __init__(self, boundaries: Boundaries, ownership: BundleOwnership) -> None:
        self._boundaries = boundaries
        self._ownership = ownership

    async def of_namespace(self, namespace: str) -> tuple[Bundle, ...]:
        with _as_not_ready(namespace):
            async with asyncio.timeout(_PATIENCE_S):
                return await self._boundaries.of_namespace(namespace)

    async def current(self, namespace: str) -> tuple[Bundle, ...]:
        with _as_not_ready(namespace):
            async with asyncio.timeout(_PATIENCE_S):
                return await self._boundaries.current(namespace)

    async def served_of(self, namespace: str) -> list[Bundle]:
        with _as_not_ready(namespace):
            async with asyncio.timeout(_PATIENCE_S):
                bundles = await self._boundaries.current(namespace)
                while True:
                    are = await asyncio.gather(*map(self._ownership.is_served, bundles))
                    before, bundles = bundles, await self._boundaries.current(namespace)
                    if bundles == before:
                        break  # otherwise a split may have replaced a node by those of the halves
                return [bundle for bundle, is_served in zip(bundles, are, strict=True) if is_served]

    async def divide(self, namespace: str, bundles: int) -> None:
        with _as_not_ready(namespace):
            async with asyncio.timeout(_PATIENCE_S):
                await self._boundaries.divide(namespace, bundles)

    async def forget(self, namespace: str, only_while: KeyAt) -> None:
        with _as_not_ready(namespace):
            async with asyncio.timeout(_PATIENCE_S):
                await self._boundaries.forget(namespace, only_while)

    def owns_bundle(self, bundle: Bundle) -> bool:
        return self._ownership.owns_bundle(bundle)

    def owned(self) -> list[Bundle]:
        return self._ownership.owned()

    def remote_owner(self, bundle: Bundle) -> BrokerAddress | None:
        place = self._ownership.remote_place(bundle)
        return None if place is None else place.address

    async def lookup_bundle(self, bundle: Bundle, authoritative: bool) -> OtherOwner | None:
        return await self._ownership.lookup_bundle(bundle, authoritative)

    async def release(self, bundle: Bundle, destination: str = "") -> None:
        with _as_not_ready(str(bundle)):
            async with asyncio.timeout(_PATIENCE_S):
                await self._ownership.release(bundle, destination)

    def withdraw(self, bundle: Bundle, destination: str) -> None:
        self._ownership.withdraw(bundle, destination)

    async def split(self, bundle: Bundle, at: int) -> None:
        with _as_not_ready(str(bundle)):
            async with asyncio.timeout(_PATIENCE_S):
                await self._ownership.split(bundle, at)


@contextmanager
def _as_not_ready(what: str) -> Iterator[None]:
    try:
        yield
    except TimeoutError:
        raise ServiceNotReady(f"{what}: not done within {_PATIENCE_S:g} s; look again") from None
    except ZooKeeperError as error:
        raise ServiceNotReady(
            f"{what}: ZooKeeper cannot store it now; try again: {error}"
        ) from error
