"""Promises tell all brokers, for a short time, the destination of a bundle that is being moved.

An administrator has named the destination, but clients that reconnect ask any broker, and may be
faster. So before the former owner gives the bundle back, it writes the promise into its own node
among the live brokers. A broker that sees the bundle without an owner also sees the promise, or
will see it in a moment. A promise only suggests: the node of the bundle decides.

    make ──▶ told to all ──▶ the bundle is given back, begin ──▶ another broker has it, or PROMISE_S
                                                                 passed, or it is taken back: end

If a bundle moves faster than the brokers learn of it, several brokers may have promised it. Each
promise has a turn, one more than the latest that its maker knows, and the highest turn holds.
"""

import asyncio
from dataclasses import dataclass
from itertools import islice
from typing import Final

from managed_ledger.storage.zookeeper.refresh import Refresh
from pybroker.broker.brokers.ownership import Bundle
from pybroker.cluster.live_brokers import LiveBrokers
from pybroker.cluster.node_values import Promise

PROMISE_S: Final = 10.0  # time for the destination to take the bundle
MOST_TOLD: Final = 1000  # the latest promises: a node's value is limited


@dataclass(frozen=True, slots=True)
class _Own:
    promise: Promise
    over: asyncio.TimerHandle


class Promises:
    def __init__(self, brokers: LiveBrokers) -> None:
        self._brokers = brokers
        self._own: dict[Bundle, _Own] = {}
        self._telling = Refresh(self.tell)

    async def close(self) -> None:
        """Idempotent."""
        for each in self._own.values():
            each.over.cancel()
        self._own.clear()
        await self._telling.close()

    def heir(self, bundle: Bundle) -> str | None:
        """The id of the live broker to which any broker has promised the bundle."""
        promise = self._latest(bundle)
        alive = promise is not None and self._brokers.place(promise.broker_id) is not None
        return promise.broker_id if promise is not None and alive else None

    def make(self, bundle: Bundle, broker_id: str, within_s: float) -> None:
        """Promise the bundle, in place of an earlier promise. `within_s`: the longest time until
        the bundle is given back.
        """
        known = self._latest(bundle)
        self._forget(bundle)
        promise = Promise(broker_id, 1 if known is None else known.turn + 1)
        self._keep(bundle, promise, within_s + PROMISE_S)

    def begin(self, bundle: Bundle) -> None:
        """The bundle was given back: from now on the destination may take it."""
        if (own := self._own.get(bundle)) is not None:
            self._forget(bundle)
            self._keep(bundle, own.promise, PROMISE_S)
            self._telling.request()  # in case the promise was made after the others were told

    def end(self, bundle: Bundle) -> None:
        """End this broker's promise of the bundle, if there is one."""
        if self._forget(bundle):
            self._telling.request()

    def withdraw(self, bundle: Bundle, broker_id: str) -> None:
        """The broker `broker_id` does not take the bundle. A promise to another broker stands."""
        if (own := self._own.get(bundle)) is not None and own.promise.broker_id == broker_id:
            self.end(bundle)

    def has(self, bundle: Bundle) -> bool:
        """Whether this broker has promised the bundle."""
        return bundle in self._own

    async def tell(self) -> None:
        """Tell all brokers this broker's promises; see `LiveBrokers.tell`."""
        await self._brokers.tell(self._told)

    def _told(self) -> dict[str, Promise]:
        latest = islice(reversed(self._own.items()), MOST_TOLD)
        return {str(bundle): own.promise for bundle, own in latest}

    def _latest(self, bundle: Bundle) -> Promise | None:
        found = self._brokers.told(str(bundle))
        if (own := self._own.get(bundle)) is not None:
            found.append(own.promise)
        return max(found, key=lambda promise: promise.turn, default=None)

    def _keep(self, bundle: Bundle, promise: Promise, seconds: float) -> None:
        over = asyncio.get_running_loop().call_later(seconds, self.end, bundle)
        self._own[bundle] = _Own(promise, over)

    def _forget(self, bundle: Bundle) -> bool:
        own = self._own.pop(bundle, None)
        if own is not None:
            own.over.cancel()
        return own is not None
