"""Which broker shall take a bundle that an administrator moves: known to all brokers, for a short
time.

Clients that reconnect ask any broker, and may be faster than the one that was named. So the former
owner writes into its own node of the live brokers whom it has promised the bundle to, before it
gives the bundle back. A broker that sees the bundle without an owner then sees the promise, too, or
will within a moment: the node of a bundle decides, promises suggest.

    make ──▶ told to all ──▶ the bundle is given back, begin ──▶ another broker has it, or PROMISE_S
                                                                 passed, or it is taken back: end

Several brokers may have promised the same bundle, if it moves faster than they learn of that. Each
promise has a turn, one more than the latest that its maker knows, and the highest one holds.
"""

import asyncio
from dataclasses import dataclass
from itertools import islice
from typing import Final

from managed_ledger.storage.zookeeper.refresh import Refresh
from pybroker.broker.ownership import Bundle
from pybroker.cluster.live_brokers import LiveBrokers
from pybroker.cluster.node_values import Promise

PROMISE_S: Final = 10.0  # within which the broker that an administrator named takes the bundle
MOST_TOLD: Final = 1000  # the value of a node has a limit; of more, the latest


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
        """The id of the live broker to which the bundle is promised, by whichever broker."""
        promise = self._latest(bundle)
        alive = promise is not None and self._brokers.place(promise.broker_id) is not None
        return promise.broker_id if promise is not None and alive else None

    def make(self, bundle: Bundle, broker_id: str, within_s: float) -> None:
        """In place of an earlier one. `within_s`: until the bundle is given back, at most."""
        known = self._latest(bundle)
        self._forget(bundle)
        promise = Promise(broker_id, 1 if known is None else known.turn + 1)
        self._keep(bundle, promise, within_s + PROMISE_S)

    def begin(self, bundle: Bundle) -> None:
        """The bundle was given back: from now on the broker that was named may take it."""
        if (own := self._own.get(bundle)) is not None:
            self._forget(bundle)
            self._keep(bundle, own.promise, PROMISE_S)
            self._telling.request()  # in case it was made after the others were told

    def end(self, bundle: Bundle) -> None:
        """Does nothing if this broker has not promised it."""
        if self._forget(bundle):
            self._telling.request()

    def withdraw(self, bundle: Bundle, broker_id: str) -> None:
        """That broker does not take it; a promise to another one stands."""
        if (own := self._own.get(bundle)) is not None and own.promise.broker_id == broker_id:
            self.end(bundle)

    def has(self, bundle: Bundle) -> bool:
        """Whether this broker has promised it."""
        return bundle in self._own

    async def tell(self) -> None:
        """What is promised here to all brokers, as `LiveBrokers.tell`."""
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
