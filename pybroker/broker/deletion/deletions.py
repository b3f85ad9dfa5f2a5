"""Deleting topics, partitioned topics and subscriptions: decided by one record, then carried out.

    tombstone      one metadata write, durable: this is the decision
    vacate         disconnects clients and releases memory
    removal        of everything that belongs to the topic or subscription, see TopicStorage
    tombstone      is removed last

A crash in between leaves the tombstone, and `finish_all` continues from there before clients are
served. While there is a tombstone, its name can be neither opened nor created.

    /deletions/<topic>                   a topic
    /deletions/<topic>/<subscription>    a subscription
    the same and @<random>               in a cluster

So in a cluster the key of a tombstone is never used again: whoever requires it cannot take a later
deletion of the same name for his own, and several brokers may carry out the same deletion at once.

The last step of a removal is to forget the offsets that Kafka's groups have committed, and that
needs room. On a full disk nobody waits for it: the topic is deleted, only its name is not free yet.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from random import Random
from typing import Any, Final
from urllib.parse import quote, unquote

from managed_ledger.deletion import all_done
from managed_ledger.errors import BadVersion, CorruptStorage, ManagedLedgerError, StorageFull
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.storage.backend import KeyAt, MetadataStore
from pybroker.base.errors import ServiceNotReady, TopicNotFound
from pybroker.base.names import SCALABLE, SEGMENT, TopicName
from pybroker.base.runtime import Tasks
from pybroker.broker.deletion.topic_storage import TopicStorage
from pybroker.broker.namespaces.permissions import Permissions
from pybroker.logs import audit

log = logging.getLogger(__name__)

PREFIX: Final = "/deletions/"
_SCALABLE: Final = quote(f"/{SCALABLE}/", safe="")  # in the keys of their tombstones
_AT_ONCE: Final = 64  # partitions
_NAMES: Final = 20_000  # whose keys are kept; a scalable topic may have 10,000 segments
_RETRY_S: Final = 1.0
_RETRY_OFFSETS_S: Final = 5.0  # requests for the name try it, too


@dataclass(frozen=True, slots=True)
class Doomed:
    """A topic; with `partitions` a partitioned one, with `segments` a scalable one; with
    `subscription` only that subscription.

    `ordinary`: the local names of the topics, or partitions, of which the scalable one was made.
    """

    topic: TopicName
    partitions: int = 0
    subscription: str | None = None
    segments: tuple[str, ...] = ()  # the local names of the segments' topics
    ordinary: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """What the keys of its tombstones begin with."""
        part = "" if self.subscription is None else "/" + quote(self.subscription, safe="")
        return tombstone_key(self.topic) + part

    def topics(self) -> list[TopicName]:
        """The topics that contain messages."""
        if self.segments:
            segments = [self.topic._replace(domain=SEGMENT, local=each) for each in self.segments]
            former = self.topic._replace(domain="persistent")
            return segments + [former._replace(local=each) for each in self.ordinary]
        return [self.topic.partition_at(i) for i in range(self.partitions)] or [self.topic]

    def encode(self) -> bytes:
        fields = [self.topic, self.partitions, self.subscription]
        segments = [self.segments, self.ordinary] if self.ordinary else [self.segments]
        return json.dumps([*fields, *segments] if self.segments else fields).encode()

    @classmethod
    def decode(cls, value: bytes) -> "Doomed":
        """Raises ValueError or TypeError for other JSON, or none."""
        topic, partitions, subscription, *rest = json.loads(value)
        return cls(TopicName(*topic), partitions, subscription, *map(tuple, rest))

    def __str__(self) -> str:
        if self.subscription is not None:
            return f"subscription {self.subscription} of {self.topic}"
        return f"{self.topic}" + (f" with {self.partitions} partitions" if self.partitions else "")


def tombstone_key(topic: TopicName) -> str:
    return PREFIX + quote(topic.ledger_name, safe="")


class OffsetsRemain(StorageFull):
    """Everything of a topic is removed, except for what Kafka's groups have committed."""


class NameNotFree(ServiceNotReady):
    """The topic is deleted, and another one cannot have its name yet."""


@contextmanager
def not_deleted_twice(name: TopicName) -> Iterator[None]:
    """Around `settled`, before a deletion. Raises TopicNotFound if only the name is not free."""
    try:
        yield
    except NameNotFree:
        raise TopicNotFound(f"{name} does not exist") from None


class Deletions:
    def __init__(
        self, factory: ManagedLedgerFactory, metadata: MetadataStore, permissions: Permissions
    ) -> None:
        self._metadata = metadata
        self._topic_storage = TopicStorage(factory, metadata, permissions)
        self.rng: Random | None = None  # None: the broker is alone
        self._tombstones: dict[str, list[str]] = {}  # their keys, by Doomed.key
        self._running: dict[str, asyncio.Task[None]] = {}  # by Doomed.key
        self._concerned: dict[str, TopicName] = {}  # the topics of running deletions
        self._taking_along: set[str] = set()  # what takes ordinary topics along, by Doomed.key
        self._later: set[str] = set()  # by Doomed.key: only the name is not free
        self._tasks = Tasks("deletions")
        metadata.watch(PREFIX, self._changed)
        self._look()

    def also_forget(self, offsets_of: Callable[[TopicName], Awaitable[None]]) -> None:
        """`offsets_of` forgets what Kafka's groups have committed of a topic or partition."""
        self._topic_storage.forget_offsets = offsets_of

    def _look(self) -> None:
        for key in self._metadata.keys(PREFIX):
            self._changed(key)

    def _changed(self, key: str) -> None:
        what = key.partition("@")[0]
        keys = {*self._tombstones.pop(what, ()), key}
        if self._metadata.get(key) is None:
            keys.remove(key)
        self._taking_along.discard(what)
        if keys:
            self._tombstones[what] = sorted(keys)
            if _SCALABLE in what and any(map(self._takes_along, keys)):
                self._taking_along.add(what)

    def _takes_along(self, key: str) -> bool:
        """Whether it is a scalable topic's that was made of ordinary ones."""
        try:
            return self._metadata.get(key) is not None and bool(self._stored(key).ordinary)
        except CorruptStorage:  # whoever wants to finish it says so
            return False

    async def finish_all(self) -> None:
        """Finish interrupted deletions, at start, before anything is opened. Raises
        ManagedLedgerError.
        """
        await self._topic_storage.remove_strays()
        self._look()  # what a backend reads at its start is not reported
        for keys in list(self._tombstones.values()):
            doomed = self._stored(keys[0])
            log.warning("the deletion of %s was interrupted; resuming it", doomed)
            try:
                await self._remove(doomed)
            except OffsetsRemain as error:
                log.warning("%s", error)
                self._try_later(doomed)

    def finish_of(self, serves: Callable[[TopicName], bool]) -> None:
        """Finish interrupted deletions in the background, for topics that this broker serves from
        now on. Until then the topics can be neither opened nor created, and requests for them wait.
        """
        for what, keys in list(self._tombstones.items()):
            try:
                if serves(self.topic_of(what)):
                    self.finish(keys[0])
            except CorruptStorage as error:  # it must not stop the others
                log.error("%s", error)

    def finish(self, key: str) -> None:
        """Finish an interrupted deletion in the background; `key` is that of its tombstone. Raises
        CorruptStorage.
        """
        if key.partition("@")[0] not in self._running:
            doomed = self._stored(key)
            log.warning("the deletion of %s was interrupted; resuming it", doomed)
            self._start(doomed, self._remove_until_done(doomed))

    async def delete(
        self,
        doomed: Doomed,
        vacate: Callable[[], Awaitable[None]],
        only_while: KeyAt | None = None,
    ) -> None:
        """Returns when the deletion is complete, or only the name has to wait for room. Concurrent
        callers for the same topic or subscription share the outcome. Raises ManagedLedgerError if
        the tombstone could not be written: then nothing has changed. It is BadVersion if the
        condition does not hold.
        """
        if doomed.key not in self._running:
            self._start(doomed, self._decide_and_remove(doomed, vacate, only_while))
        with suppress(OffsetsRemain):
            await asyncio.shield(self._running[doomed.key])

    def concerns(self, topic: TopicName) -> bool:
        """Whether this topic, or the partitioned or scalable topic that it belongs to, is being
        deleted.
        """
        # Kept fast, without a generator: every command of a transaction asks.
        for key in _keys_of(topic):
            if key in self._running or key in self._tombstones:
                return True
        return bool(self._taking_along) and _scalable_key_of(topic) in self._taking_along

    async def settled(self, topic: TopicName) -> None:
        """Return when `concerns` may have become false. Raises ServiceNotReady."""
        await self._finish(_keys_of(topic))
        if (key := _scalable_key_of(topic)) in self._taking_along:
            await self._finish([key])

    async def subscriptions_settled(self, topic: TopicName) -> None:
        """Return when no subscription of this topic is being deleted. Raises ServiceNotReady."""
        prefix = tombstone_key(topic) + "/"
        there = [*self._running, *self._tombstones]
        await self._finish([what for what in there if what.startswith(prefix)])

    async def subscription_settled(self, topic: TopicName, name: str) -> None:
        """Return when this subscription is not being deleted. Raises ServiceNotReady."""
        await self._finish([Doomed(topic, subscription=name).key])

    async def close(self) -> None:
        """Stop; the next start continues interrupted deletions."""
        await self._tasks.close()

    async def _finish(self, whats: Iterable[str]) -> None:
        """`whats` are those of Doomed.key."""
        for what in whats:
            if what not in self._running and what in self._tombstones:
                doomed = self._stored(self._tombstones[what][0])
                self._start(doomed, self._remove_until_done(doomed))
            if what in self._running:
                await self._waited_for(self._running[what])

    async def _waited_for(self, running: "asyncio.Task[None]") -> None:
        await asyncio.wait([running])  # yields to the loop even if it is done and still listed
        try:
            running.result()
        except OffsetsRemain as error:
            raise NameNotFree(str(error)) from error
        except ManagedLedgerError as error:
            raise ServiceNotReady(
                f"The topic is being deleted, and the deletion cannot finish; try again: {error}"
            ) from error

    def _start(self, doomed: Doomed, work: Coroutine[Any, Any, None]) -> None:
        task = self._running[doomed.key] = self._tasks.start(work, f"deletion of {doomed}")
        self._concerned[doomed.key] = doomed.topic

        def ended(_: object) -> None:
            del self._running[doomed.key], self._concerned[doomed.key]
            if not task.cancelled() and isinstance(task.exception(), OffsetsRemain):
                self._try_later(doomed)

        task.add_done_callback(ended)

    async def _decide_and_remove(
        self, doomed: Doomed, vacate: Callable[[], Awaitable[None]], only_while: KeyAt | None
    ) -> None:
        key = doomed.key + ("" if self.rng is None else f"@{self.rng.getrandbits(64):016x}")
        await self._metadata.put(key, doomed.encode(), makes_room=True, only_while=only_while)
        audit.done("delete topic" if doomed.subscription is None else "delete subscription", doomed)
        try:
            await vacate()
        except ManagedLedgerError as error:
            log.warning("%s did not close cleanly; deleting it anyway: %s", doomed, error)
        await self._remove_until_done(doomed)

    async def _remove_until_done(self, doomed: Doomed) -> None:
        """Retries on a full disk: the deletion is decided and cannot be undone."""
        while True:
            try:
                await self._remove(doomed)
            except OffsetsRemain:
                raise
            except StorageFull as error:
                log.warning("the deletion of %s waits for disk space: %s", doomed, error)
                await asyncio.sleep(_RETRY_S)
            else:
                return

    def _try_later(self, doomed: Doomed) -> None:
        if doomed.key not in self._later:  # requests for the name try it in between
            self._later.add(doomed.key)
            self._tasks.start(self._finish_later(doomed), f"rest of the deletion of {doomed}")

    async def _finish_later(self, doomed: Doomed) -> None:
        await asyncio.sleep(_RETRY_OFFSETS_S)
        self._later.remove(doomed.key)
        if doomed.key in self._tombstones and doomed.key not in self._running:
            self._start(doomed, self._remove_until_done(doomed))

    async def _remove(self, doomed: Doomed) -> None:
        """May be repeated. Also returns if other brokers have finished the deletion."""
        while keys := self._tombstones.get(doomed.key):
            await self._carry_out(keys[0])

    async def _carry_out(self, key: str) -> None:
        stored, doomed = self._metadata.get(key), self._stored(key)
        assert stored is not None, key
        decided = partial(self._decided, key, stored.version)
        try:
            if doomed.subscription is not None:
                await self._topic_storage.remove_subscription(
                    doomed.topic, doomed.subscription, decided
                )
            else:
                topics, remove = doomed.topics(), self._topic_storage.remove_topic
                for at in range(0, len(topics), _AT_ONCE):
                    await all_done(remove(each, decided) for each in topics[at : at + _AT_ONCE])
                wholes = [doomed.topic]
                if doomed.ordinary:
                    wholes.insert(0, doomed.topic._replace(domain="persistent"))
                for whole in wholes:
                    await self._topic_storage.remove_shared(whole, decided)
                for whole in wholes:
                    await self._remove_offsets(doomed, whole, decided)
            decided()
            await self._metadata.delete(key, stored.version)
        except BadVersion:
            await self._metadata.refresh(key)
            if self._metadata.get(key) == stored:
                raise
            log.info("another broker has finished the deletion of %s", doomed)

    async def _remove_offsets(
        self, doomed: Doomed, whole: TopicName, decided: Callable[[], KeyAt]
    ) -> None:
        try:
            await self._topic_storage.remove_offsets(whole, decided)
        except StorageFull as error:
            raise OffsetsRemain(
                f"{doomed} is deleted, but there is no room to note that Kafka's groups forget "
                f"their offsets there; until then the name cannot be used again: {error}"
            ) from error

    def _decided(self, key: str, version: int) -> KeyAt:
        """Raises BadVersion if the tombstone has changed: another broker may have finished the
        deletion, and the name may be in use again. The tombstone is removed before anything new is
        created, and this broker learns of both in the same order.
        """
        stored = self._metadata.get(key)
        if stored is None or stored.version != version:
            raise BadVersion(f"{key} has changed")
        return KeyAt(key, version)

    def topic_of(self, key: str) -> TopicName:
        """The topic that the tombstone with this key names. Raises CorruptStorage."""
        name = unquote(key.partition("@")[0].removeprefix(PREFIX).partition("/")[0])
        try:
            return TopicName.of_ledger(name)
        except ValueError:
            raise CorruptStorage(f"{key!r} does not name a topic; delete it") from None

    async def at_rest(self, concerned: Callable[[TopicName], bool]) -> None:
        """Waits for running deletions of the topics that `concerned` accepts."""
        running = [task for key, task in self._running.items() if concerned(self._concerned[key])]
        if running:
            await asyncio.wait(running)

    def _stored(self, key: str) -> Doomed:
        stored = self._metadata.get(key)
        assert stored is not None, key
        try:
            doomed = Doomed.decode(stored.value)
        except (ValueError, TypeError) as why:
            raise CorruptStorage(f"the tombstone {key!r} cannot be read: {why}") from None
        if doomed.key != key.partition("@")[0]:
            raise CorruptStorage(f"the tombstone {key!r} cannot be read: it names {doomed}")
        return doomed


@lru_cache(maxsize=_NAMES)
def _keys_of(topic: TopicName) -> tuple[str, ...]:
    if (whole := topic.partitioned_name) == topic:
        return (tombstone_key(topic),)
    return tombstone_key(topic), tombstone_key(whole)


@lru_cache(maxsize=_NAMES)
def _scalable_key_of(topic: TopicName) -> str:
    """What the keys of tombstones of an ordinary topic's scalable namesake begin with."""
    return tombstone_key(topic.scalable_name) if topic.domain == "persistent" else ""
