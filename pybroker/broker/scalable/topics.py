"""Scalable topics: created, found, changed, deleted. The record decides; then it is carried out.

    a change        the record, with compare-and-set: the parents are sealed and have children
                    children are loaded: they begin with the subscriptions of their parents
                    clients hear of the new layout; producers go from the parents to the children
                    parents are terminated, so that they take no more messages

After a crash at any step the next use of the topic carries out what its record says. A topic and
all its segments are served by one broker, so its changes come one after the other; if the topic
moves meanwhile, the compare-and-set fails for all but one.

Differs: Apache Pulsar terminates the parents before it writes the record, so messages on the way
fail, and with them their transactions.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from managed_ledger.errors import BadVersion, ManagedLedgerError
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.position import Position
from managed_ledger.storage.backend import KeyAt, MetadataStore, Versioned
from pybroker.base.errors import PulsarError, ServiceNotReady, TopicNotFound
from pybroker.base.names import SEGMENT, TopicName
from pybroker.base.runtime import Clock, Tasks
from pybroker.broker.brokers.ownership import Bundle, check_owned
from pybroker.broker.client_topics import ServedSubscription, ServedTopic
from pybroker.broker.deletion.deletions import Doomed, not_deleted_twice
from pybroker.broker.namespaces.tenants import (
    SCALABLE_PREFIX,
    Conflict,
    scalable_key,
    scalable_name,
)
from pybroker.broker.namespaces.usable_names import refuse_internal
from pybroker.broker.persistent.topic import Topic
from pybroker.broker.scalable.auto_scaler import AutoScaler
from pybroker.broker.scalable.buckets import BucketLimits
from pybroker.broker.scalable.inheriting import inherit
from pybroker.broker.scalable.measures import FAILURE, SUCCESS, Operation, ScalableMeasures
from pybroker.broker.scalable.parts import GroupsOf, Parts
from pybroker.broker.scalable.pruning import Pruner, delete_pruned
from pybroker.broker.scalable.record import (
    SegmentRecord,
    TopicRecord,
    decode,
    merged,
    new_record,
    of_segment,
    ordinary_parts,
    pruned,
    rebucketed,
    sealed_by,
    split,
)
from pybroker.broker.scalable.segment_counts import SegmentCounts
from pybroker.broker.scalable.segments import has_begun, is_in_place, is_over, loaded, subscribed
from pybroker.broker.scalable.serving import ServesTopics
from pybroker.broker.subscriptions.subscription import Subscription
from pybroker.logs import audit

Changed = Callable[[TopicName], None]
Rewound = Callable[[TopicName, str], Awaitable[None]]
Change = Callable[[TopicRecord], TopicRecord]
# Another broker carries the record out; that long, and no longer, this one waits for it.
_LOOKS: Final = 100
_LOOK_EVERY_S: Final = 0.1
_KNOWN: Final = 10_000
# Producers leave a parent when they hear of its children; that long, and no longer, it stays open.
_LEAVE_WITHIN_S: Final = 1.0
_LEFT_EVERY_S: Final = 0.01
_SEALED_WITHIN_S: Final = 30.0
_SEAL_AGAIN_S: Final = 1.0

log = logging.getLogger(__name__)


class ScalableTopics:
    def __init__(
        self,
        topics: ServesTopics,
        factory: ManagedLedgerFactory,
        metadata: MetadataStore,
        clock: Clock,
        auto_scale_interval_s: float,
    ) -> None:
        self._topics = topics
        self._factory = factory
        self._metadata = metadata
        self._clock = clock
        self._known: dict[TopicName, tuple[Versioned, TopicRecord]] = {}
        self._in_place: dict[TopicName, int] = {}  # the epoch that has been carried out
        self._taking_over: dict[TopicName, None] = {}  # until their records are carried out
        self._sealing: dict[TopicName, asyncio.Task[None]] = {}
        self._rewound: list[Rewound] = []
        self._last: dict[TopicName, dict[str, Operation]] = {}  # since it is carried out here
        self.auto_scaler = AutoScaler(self, topics, clock, auto_scale_interval_s)
        self.pruner = Pruner(self, topics, factory, clock)
        self.measures = ScalableMeasures()
        self.counts = SegmentCounts(self, topics)
        self.members_of: GroupsOf = lambda topic: ()
        self.parts = Parts(topics, self, factory)
        self._tasks = Tasks("scalable topics")
        topics.ownership.on_change(lambda _: None, self._released)
        metadata.watch(SCALABLE_PREFIX, self._written)

    async def _released(self, bundle: Bundle) -> None:
        """Another broker carries its topics' records out. If it comes back, nothing is known."""
        for name in filter(bundle.holds, [*self._in_place, *self.parts.freed_of]):
            self._forget(name)

    def _written(self, key: str) -> None:
        """Whoever has deleted a topic, and however that ended: nothing is known of the next."""
        if self._metadata.get(key) is None:
            self._forget(scalable_name(key))

    def _forget(self, name: TopicName) -> None:
        for known in (self._in_place, self._taking_over, self._last):
            known.pop(name, None)
        self.pruner.forget(name)
        self.parts.forget(name)

    def on_change(self, changed: Changed) -> None:
        """`changed` is called when a topic's record was written or deleted."""
        self._metadata.watch(SCALABLE_PREFIX, lambda key: changed(scalable_name(key)))

    def on_rewound(self, rewound: Rewound) -> None:
        """`rewound` is called when a subscription was moved on all sealed segments."""
        self._rewound.append(rewound)

    async def rewound(self, name: TopicName, subscription: str) -> None:
        for each in self._rewound:
            await each(name, subscription)

    async def close(self) -> None:
        await self.auto_scaler.close()
        await self.pruner.close()
        await self._tasks.close()

    @property
    def bucket_limits(self) -> BucketLimits:
        config = self._topics.policies.config
        return BucketLimits(
            config.scalable_topic_entry_bucket_budget,
            config.scalable_topic_entry_bucket_max_per_segment,
        )

    def owned(self) -> list[TopicName]:
        """The topics whose record this broker carries out."""
        return list(filter(self._topics.ownership.owns, self._in_place))

    def last_operations(self, name: TopicName) -> list[Operation]:
        """The last one of each kind, the latest at the end."""
        return list(self._last.get(name, {}).values())

    def taking_over(self) -> int:
        """The number of topics of this broker whose records could not be carried out yet."""
        return sum(map(self._topics.ownership.owns, self._taking_over))

    # -- find

    def find(self, name: TopicName) -> TopicRecord | None:
        """None if there is no such topic. Raises CorruptStorage."""
        stored = self._metadata.get(scalable_key(name))
        if stored is None:
            self._known.pop(name, None)
            return None
        known = self._known.get(name)
        if known is None or known[0] != stored:
            if len(self._known) >= _KNOWN:
                self._known.clear()
            known = self._known[name] = stored, decode(stored.value, name)
        return known[1]

    def get(self, name: TopicName) -> TopicRecord:
        """Raises TopicNotFound if the topic does not exist or is being deleted."""
        record = None if self._topics.deletions.concerns(name) else self.find(name)
        if record is None:
            raise TopicNotFound(f"{name} does not exist")
        return record

    def segment(self, name: TopicName) -> SegmentRecord | None:
        """What the record says of the segment with this topic; None if it has no such segment."""
        if (record := self.find(name.scalable_name)) is None:
            return None
        if name.domain != SEGMENT:
            return next((each for each in record.sealed if each.ordinary == str(name)), None)
        found = record.segments.get(name.segment_id)
        is_it = found is not None and of_segment(name.scalable_name, found) == name
        return found if is_it else None

    def check_segment(self, name: TopicName) -> None:
        """Call before its topic is opened. Raises TopicNotFound."""
        if self._topics.deletions.concerns(name.scalable_name) or self.segment(name) is None:
            raise TopicNotFound(f"{name} is no segment: look up {name.scalable_name} again")

    def was_ordinary(self, name: TopicName) -> bool:
        """Whether it was made of an ordinary topic of its name."""
        return (record := self.find(name)) is not None and record.partitions is not None

    def is_begun(self, name: TopicName) -> bool:
        """Whether its migration is decided, and not carried out."""
        record = self.find(name)
        was_ordinary = record is not None and record.partitions is not None
        return was_ordinary and not is_in_place(self._factory, name, self.get(name))

    async def settled(self, name: TopicName) -> TopicRecord:
        """The record, once all that it says is in place. Raises TopicNotFound, ServiceNotReady."""
        await self._topics.settled(name)
        if self.find(name) is None:
            await self._topics.ownership.refreshed()  # another broker may have just created it
        record = self.get(name)
        if self._in_place.get(name) == record.epoch:
            return record
        if await self._topics.ownership.owner_of(name) is None:
            await self._topics.settled(name)
            self._taking_over[name] = None
            with self.measures.takeovers_s.measured(self._clock):
                await self._topics.change(name, self._carry_out(name))
        else:
            await self._carried_out(name)
        return self.get(name)

    async def _carried_out(self, name: TopicName) -> None:
        """By another broker."""
        for _ in range(_LOOKS):
            if is_in_place(self._factory, name, self.get(name)):
                return
            await asyncio.sleep(_LOOK_EVERY_S)
        # Nobody may have noticed yet that its broker is gone: then this one takes the topic.
        await self._topics.ownership.lookup(name, True)
        raise ServiceNotReady(f"The segments of {name} are being changed; look it up again")

    # -- create and delete

    async def create(
        self, name: TopicName, segments: int = 1, properties: Mapping[str, str] | None = None
    ) -> None:
        """Durable when it returns. Raises BadSegments, Conflict if the topic exists, NotFound
        without its namespace, NotServedHere.
        """
        refuse_internal(name)
        now_ms, limits = self._clock.now_ms(), self.bucket_limits
        record = new_record(segments, now_ms, properties or {}, limits)
        check_owned(self._topics.ownership, name)
        await self._topics.ownership.refreshed()  # another broker may just have deleted it
        async with self._topics.room.for_more(name, 1):
            await self._topics.settled(name)
            check_owned(self._topics.ownership, name)
            self._topics.tenants.check_takes_topics(name.namespace_name)
            await self._topics.change(name, self._create(name, record))
        audit.done(f"create topic of {segments} segments", name)

    async def _create(self, name: TopicName, record: TopicRecord) -> None:
        try:
            await self._metadata.put(scalable_key(name), record.encode(), -1)
        except BadVersion:
            sentence = "This topic already exists"
            raise Conflict(sentence, f"choose a name other than {name}") from None

    async def delete(self, name: TopicName, force: bool = False) -> None:
        """Deletes the topic with its segments. Raises TopicNotFound, NotServedHere; InUse if it is
        in use and `force` is not set.
        """
        check_owned(self._topics.ownership, name)
        try:
            await self.settled(name)  # a segment that begins meanwhile would wait for this deletion
        except (ServiceNotReady, ManagedLedgerError) as error:
            log.warning("%s is deleted in the middle of a change: %s", name, error)
        with not_deleted_twice(name):
            await self._topics.settled(name)
        await self.parts.freed(name)
        check_owned(self._topics.ownership, name)
        record, stored = self.get(name), self._metadata.get(scalable_key(name))
        assert stored is not None
        at = KeyAt(scalable_key(name), stored.version)
        try:
            await self._topics.delete_all_of(_doomed(name, record), force, at)
        except BadVersion:  # it has segments of which this broker does not know
            raise Conflict(f"{name} was changed by another broker; try again") from None

    # -- change

    async def split(self, name: TopicName, segment: int, trigger: str = "manual") -> TopicRecord:
        """Raises TopicNotFound, NoSuchSegment, Conflict if the segment is sealed, BadSegments if it
        has one hash or the topic too many segments, NotServedHere.
        """
        now_ms = self._clock.now_ms()
        with self.noting(name, "split", trigger, (segment,)):
            return await self._replaced(name, lambda now: split(now, segment, now_ms))

    async def merge(
        self, name: TopicName, one: int, other: int, trigger: str = "manual"
    ) -> TopicRecord:
        """Raises TopicNotFound, NoSuchSegment, Conflict if one is sealed, BadSegments if they are
        not neighbours or the topic has too many segments, NotServedHere.
        """
        now_ms, limits = self._clock.now_ms(), self.bucket_limits
        with self.noting(name, "merge", trigger, (one, other)):
            return await self._replaced(name, lambda now: merged(now, one, other, now_ms, limits))

    async def rebucket(
        self, name: TopicName, segment: int, buckets: int, trigger: str = "manual"
    ) -> TopicRecord:
        """Raises TopicNotFound, NoSuchSegment, Conflict if the segment is sealed, BadSegments if it
        has, or cannot have, so many buckets or the topic too many segments, NotServedHere.
        """
        now_ms, limits = self._clock.now_ms(), self.bucket_limits
        with self.noting(name, "rebucket", trigger, (segment,)):
            return await self._replaced(
                name, lambda now: rebucketed(now, segment, buckets, now_ms, limits)
            )

    @contextmanager
    def noting(
        self, name: TopicName, operation: str, trigger: str, segments: tuple[int, ...]
    ) -> Iterator[None]:
        status, why, begun_s = FAILURE, None, self._clock.monotonic_s()
        try:
            yield
            status = SUCCESS
            audit.done(f"{operation} segments {segments}", name)
        except Exception as error:
            why = str(error)
            raise
        finally:
            self.measures.operations[operation, trigger, status] += 1
            took_s = self._clock.monotonic_s() - begun_s
            self.measures.operations_s.add((operation, status), took_s)
            if name in self._in_place:
                last, now_ms = self._last.setdefault(name, {}), self._clock.now_ms()
                last.pop(operation, None)
                last[operation] = Operation(operation, trigger, segments, status, now_ms, why)

    async def _replaced(self, name: TopicName, change: Change) -> TopicRecord:
        """Returns when the parents are terminated, or after a while: it is decided already."""
        await self.change(name, change)
        return await self.sealed(name)

    async def sealed(self, name: TopicName) -> TopicRecord:
        """Returns when the sealed segments are terminated, or after a while."""
        names = (of_segment(name, each) for each in self.get(name).sealed)
        if sealing := [self._sealing[each] for each in names if each in self._sealing]:
            await asyncio.wait(sealing, timeout=_SEALED_WITHIN_S)
        return self.get(name)

    def _start_sealing(self, name: TopicName) -> None:
        if name not in self._sealing and not is_over(self._factory, name):
            task = self._sealing[name] = self._tasks.start(self._seal(name), f"seal {name}")
            task.add_done_callback(lambda _: self._sealing.pop(name))

    async def _seal(self, name: TopicName) -> None:
        """Terminates a parent once its producers have left it, or after a while."""
        begun_s = self._clock.monotonic_s()
        while self.segment(name) is not None and self._topics.ownership.owns(name):
            try:
                topic = await self._topics.get(name, create=True)
                assert topic is not None
                await _deserted(topic)
                if not topic.terminated:
                    await topic.terminate()
            except (PulsarError, ManagedLedgerError) as error:
                log.warning("%s is terminated later: %s", name, error)
                await asyncio.sleep(_SEAL_AGAIN_S)
            else:
                self._sealed(name, self._clock.monotonic_s() - begun_s)
                return

    def _sealed(self, name: TopicName, took_s: float) -> None:
        if (segment := self.segment(name)) is not None:
            record = self.get(name.scalable_name)
            self.measures.seals_s.add((sealed_by(record, segment),), took_s)

    async def prune(self, name: TopicName, gone: Iterable[int]) -> TopicRecord:
        """Deletes sealed segments with their messages; the caller knows that nobody needs them."""
        numbers = frozenset(gone)
        with self.noting(name, "prune", "auto", tuple(sorted(numbers))):
            return await self.change(name, lambda now: pruned(now, numbers))

    async def change(self, name: TopicName, change: Change) -> TopicRecord:
        """Returns the new record, once it is carried out. If carrying it out fails, it stays
        decided, and the next use of the topic continues.
        """
        check_owned(self._topics.ownership, name)
        await self.settled(name)
        await self._topics.settled(name)
        check_owned(self._topics.ownership, name)
        await self._topics.change(name, self._decide(name, change))
        return self.get(name)

    async def _decide(self, name: TopicName, change: Change) -> None:
        now, before = self._metadata.get(scalable_key(name)), self.find(name)
        if now is None or before is None:
            raise TopicNotFound(f"{name} does not exist")
        value = (after := change(before)).encode()
        try:
            version = await self._metadata.put(scalable_key(name), value, now.version)
        except BadVersion:
            raise Conflict(f"{name} was changed by another broker; try again") from None
        self._known[name] = Versioned(value, version), after
        await self._carry_out(name, not before.segments.keys() <= after.segments.keys())

    async def _carry_out(self, name: TopicName, pruned: bool = True) -> None:
        """May be repeated. `pruned`: perhaps the record has lost segments."""
        record, stored = self.get(name), self._metadata.get(scalable_key(name))
        assert stored is not None
        if record.partitions is not None and not is_in_place(self._factory, name, record):
            await self._topics.ownership.refreshed()  # what others granted before the decision
            await inherit(self._topics, self._metadata, name)
        for each in record.active:
            if each.parents and not has_begun(self._factory, of_segment(name, each)):
                await self._topics.get(of_segment(name, each), create=True)
        for each in record.sealed:
            self._start_sealing(of_segment(name, each))
        if pruned or name not in self._in_place:
            at = KeyAt(scalable_key(name), stored.version)
            await delete_pruned(self._topics, self._factory, name, record, at)
        if len(self._in_place) >= _KNOWN:
            self._in_place.clear()
            self._last.clear()
        self._in_place[name] = record.epoch
        self._taking_over.pop(name, None)
        self.auto_scaler.begin()
        if record.sealed:
            self.pruner.add(name)

    async def loaded(self, topic: Topic) -> None:
        """Call before a segment serves anybody. Raises TopicNotFound."""
        was_over, begun_s = topic.terminated, self._clock.monotonic_s()
        try:
            await loaded(self._topics, self, topic)
        except BaseException:
            await topic.close("it could not be prepared")
            raise
        if topic.terminated and not was_over:
            self._sealed(topic.name, self._clock.monotonic_s() - begun_s)

    async def subscribed(
        self,
        topic: ServedTopic,
        subscription: ServedSubscription,
        start: Position | None,
        late: bool,
    ) -> None:
        """Call when a durable subscription was asked for on a segment; see segments.subscribed."""
        if isinstance(topic, Topic) and isinstance(subscription, Subscription):
            await subscribed(self._topics, self._factory, self, topic, subscription, start, late)


def _doomed(name: TopicName, record: TopicRecord) -> Doomed:
    segments = (each for each in record.segments.values() if each.ordinary is None)
    former = [] if record.partitions is None else ordinary_parts(name, record.partitions)
    return Doomed(
        name,
        segments=tuple(of_segment(name, each).local for each in segments),
        ordinary=tuple(each.local for each in former),
    )


async def _deserted(topic: Topic) -> None:
    for _ in range(int(_LEAVE_WITHIN_S / _LEFT_EVERY_S)):
        if not len(topic.producers):
            return
        await asyncio.sleep(_LEFT_EVERY_S)
