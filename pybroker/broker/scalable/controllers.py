"""The controllers of topics: groups of consumers, among which a topic's segments are divided.

    registered ──connection lost──▶ away ──comes back──▶ registered
        │                            └──grace period over──▶ gone: the others get its segments
        └──unsubscribes──▶ gone

A consumer is known by its name. While it is away it keeps its segments. The owner of a topic's
bundle is its controller. Nothing is stored: consumers register again wherever the controller is.

A segment of a scalable topic is given to a stream consumer once its ancestors are drained. If a
topic is deleted and created again, its consumers have to register again: they would take the new
topic's layouts for outdated ones, and what the group has drained is not in the new topic.

Only an Exclusive consumer of a segment makes its cursor move, so a segment has one reader even if
two consumers believe that it is theirs: the newcomer's SUBSCRIBE is refused until the other closes.
A segment that is shared has Key_Shared consumers, among which dispatch divides its entry buckets.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple, Protocol

from managed_ledger.errors import ManagedLedgerError
from pybroker.base.errors import PulsarError, TooManyRequests
from pybroker.base.names import TopicName
from pybroker.base.runtime import Tasks
from pybroker.broker.brokers.ownership import Bundle, NotServedHere, Ownership, check_owned
from pybroker.broker.scalable.assignment import assigned, shared_by_several
from pybroker.broker.scalable.drains import FindsTopics, assignable, awaited, newly_drained
from pybroker.broker.scalable.layout import Layout, Segment
from pybroker.broker.scalable.layouts import Layouts
from pybroker.broker.scalable.topics import ScalableTopics

MAX_MEMBERS: Final = 1000  # of one group
STREAM: Final = 0  # a kind of group, as on the wire
_LOOK_EVERY_S: Final = 0.2

log = logging.getLogger(__name__)


class OwnedTopics(FindsTopics, Protocol):
    ownership: Ownership

    @property
    def scalable(self) -> ScalableTopics: ...


class GroupKey(NamedTuple):
    topic: TopicName
    subscription: str
    kind: int  # STREAM or CHECKPOINT: their groups share nothing


class Assignment(NamedTuple):
    epoch: int  # of the layout
    segments: tuple[Segment, ...]
    shared: frozenset[int] = frozenset()  # the segments that others have, too


_NOTHING: Final = Assignment(-1, ())


@dataclass(slots=True, eq=False)
class Member:
    """`told` is called with each later assignment. `disconnect` ends its connection, so that it
    looks for its controller again.
    """

    name: str
    told: Callable[[Assignment], None]
    disconnect: Callable[[str], None]
    has: Assignment = _NOTHING
    away: asyncio.TimerHandle | None = None  # set while its connection is lost


@dataclass(slots=True, eq=False)
class _Group:
    key: GroupKey
    members: dict[str, Member] = field(default_factory=dict)
    layout: Layout | None = None
    joining: int = 0
    drained: set[int] = field(default_factory=set)
    looking: bool = False
    moves: int = 0  # how often the subscription was moved back

    def join(self, member: Member) -> None:
        """A consumer of the same name takes its place. Raises TooManyRequests."""
        former = self.members.get(member.name)
        if former is None and len(self.members) >= MAX_MEMBERS:
            raise TooManyRequests(
                f"{len(self.members)} consumers share subscription {self.key.subscription!r} of "
                f"{self.key.topic}: close some"
            )
        if former is not None:
            _back(former)
        self.members[member.name] = member
        self.divide(silent=member)

    def divide(self, silent: Member | None = None, anew: bool = False) -> None:
        """Tell all whose segments have changed, except `silent`, which gets them as an answer.
        `anew`: tell the others, too: they may have left a segment that they had drained.
        """
        if self.layout is None:
            return
        ordered = self.key.kind == STREAM
        segments = assignable(self.layout, self.drained) if ordered else self.layout.segments
        shares = assigned(segments, self.members, self.drained, sharing=ordered)
        shared = shared_by_several(shares)
        for name, member in list(self.members.items()):
            before = member.has
            member.has = Assignment(self.layout.epoch, shares[name], shared)
            hears = member is not silent and member.away is None
            if hears and (anew or _told(before) != _told(member.has)):
                member.told(member.has)

    @property
    def blocked(self) -> int:
        """The number of segments that nobody can have yet."""
        if self.layout is None or self.key.kind != STREAM:
            return 0
        return len(self.layout.segments) - len(assignable(self.layout, self.drained))

    @property
    def awaits(self) -> set[int]:
        """The segments that must be drained before others can be given away."""
        if self.layout is None or self.key.kind != STREAM:
            return set()
        return awaited(self.layout, self.drained)


class Controllers:
    def __init__(self, layouts: Layouts, topics: OwnedTopics, grace_s: float) -> None:
        """`grace_s`: how long a consumer keeps its segments without a connection."""
        self._layouts = layouts
        self._topics = topics
        self._ownership = ownership = topics.ownership
        self._tasks = Tasks("controllers")
        self._grace_s = grace_s
        self._groups: dict[GroupKey, _Group] = {}
        self._told_of: dict[_Group, Callable[[Layout], None]] = {}
        ownership.on_change(lambda _: None, self._released)
        topics.scalable.on_rewound(self.rewound)
        self._measures = topics.scalable.measures
        self._measures.consumers, self._measures.blocked = self._consumers, self._blocked
        self._auto_scaler = topics.scalable.auto_scaler
        self._auto_scaler.consumers = self._largest_of
        topics.scalable.members_of = self._members_of

    @property
    def groups(self) -> Mapping[GroupKey, _Group]:
        return self._groups

    def _consumers(self) -> Counter[str]:
        found = Counter({"connected": 0, "disconnected": 0})
        for group in self._groups.values():
            for member in group.members.values():
                found["connected" if member.away is None else "disconnected"] += 1
        return found

    def _largest_of(self, topic: TopicName) -> int:
        """The number of consumers of the topic's largest group."""
        sizes = (len(of.members) for key, of in self._groups.items() if key.topic == topic)
        return max(sizes, default=0)

    def _members_of(self, topic: TopicName) -> list[tuple[str, str]]:
        """The subscription and the name of each of the topic's stream consumers."""
        return [
            (key.subscription, name)
            for key, group in self._groups.items()
            if key.topic == topic and key.kind == STREAM
            for name in group.members
        ]

    def _blocked(self) -> int:
        return sum(each.blocked for each in self._groups.values())

    async def register(self, key: GroupKey, member: Member) -> Assignment:
        """Raises NotServedHere, TooManyRequests, and what `Layouts.begin` raises."""
        if await self._ownership.owner_of(key.topic) is not None:
            raise NotServedHere(key.topic)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group(key)
            # One object, which identifies the watcher.
            self._told_of[group] = partial(self._changed, group)
        group.joining += 1
        try:
            layout = await self._layouts.begin(key.topic, True, self._told_of[group])
            check_owned(self._ownership, key.topic)
            self._take(group, layout)
            await self._look(group)
            check_owned(self._ownership, key.topic)
            group.join(member)
            self._measures.rebalances["consumer_joined"] += 1
            self._auto_scaler.consumers_changed(key.topic)
            self._look_again(group)
            return member.has
        finally:
            group.joining -= 1
            self._forget_unused(group)

    async def rewound(self, topic: TopicName, subscription: str) -> None:
        """The subscription was moved: segments that it had drained may no longer be. The consumers
        have been told when this returns.
        """
        for key, group in list(self._groups.items()):
            if (key.topic, key.subscription) == (topic, subscription):
                group.moves += 1
                group.drained.clear()
                await self._look(group)
                group.divide(anew=True)
                self._measures.rebalances["segment_drained"] += 1
                self._look_again(group)

    def _changed(self, group: _Group, layout: Layout) -> None:
        self._take(group, layout)
        self._forget_unused(group)
        group.divide()
        self._measures.rebalances["layout_changed"] += 1
        self._look_again(group)

    def _take(self, group: _Group, layout: Layout) -> None:
        if group.layout is not None and not layout.continues(group.layout):
            group.drained.clear()
            self._dismiss(group, "was created again")
        group.layout = layout

    def _look_again(self, group: _Group) -> None:
        """Until everything is drained that others wait for."""
        if not group.looking and group.awaits:
            group.looking = True
            self._tasks.start(self._look_until_drained(group), f"drains of {group.key}")

    async def _look_until_drained(self, group: _Group) -> None:
        try:
            while self._groups.get(group.key) is group and group.awaits:
                if await self._look(group):
                    group.divide()
                    self._measures.rebalances["segment_drained"] += 1
                await asyncio.sleep(_LOOK_EVERY_S)
        finally:
            group.looking = False

    async def _look(self, group: _Group) -> bool:
        """Whether more segments are drained than before."""
        layout, awaits, moves = group.layout, group.awaits, group.moves
        if layout is None or not awaits:
            return False
        try:
            found = await newly_drained(self._topics, layout, group.key.subscription, awaits)
        except (PulsarError, ManagedLedgerError) as error:
            log.info("%s: %s", group.key, error)
            return False
        if group.moves != moves or group.layout is None or not group.layout.continues(layout):
            return False  # perhaps it is not drained any more
        group.drained |= found
        return bool(found)

    def unregister(self, key: GroupKey, member: Member) -> None:
        """The consumer is gone; idempotent. Another one that took its name stays."""
        group = self._groups.get(key)
        if group is not None and group.members.get(member.name) is member:
            _back(member)
            del group.members[member.name]
            group.divide()
            self._measures.rebalances["consumer_left"] += 1
            self._auto_scaler.consumers_changed(key.topic)
            self._forget_unused(group)

    def lost(self, key: GroupKey, member: Member) -> None:
        """Its connection is lost: it keeps its segments for a while."""
        group = self._groups.get(key)
        if group is None or group.members.get(member.name) is not member:
            return
        later = asyncio.get_running_loop().call_later
        member.away = later(self._grace_s, self.unregister, key, member)

    def _forget_unused(self, group: _Group) -> None:
        if not (group.members or group.joining) and self._groups.get(group.key) is group:
            del self._groups[group.key]
            self._layouts.end(group.key.topic, self._told_of.pop(group))

    async def _released(self, bundle: Bundle) -> None:
        for group in [each for each in self._groups.values() if bundle.holds(each.key.topic)]:
            self._dismiss(group, "moves to another broker")
            self._forget_unused(group)

    def _dismiss(self, group: _Group, why: str) -> None:
        """Its consumers register again."""
        members, group.members = group.members, {}
        for member in members.values():
            if member.away is None:
                member.disconnect(f"{group.key.topic} {why}")
            _back(member)

    async def close(self) -> None:
        await self._tasks.close()
        for group in self._groups.values():
            for member in group.members.values():
                _back(member)
        self._groups.clear()


def _told(of: Assignment) -> list[tuple[object, ...]]:
    """What a client hears of its segments."""
    return [
        (each.id, each.hash_start, each.hash_end, each.topic, each.id in of.shared)
        for each in of.segments
    ]


def _back(member: Member) -> None:
    if member.away is not None:
        member.away.cancel()
        member.away = None
