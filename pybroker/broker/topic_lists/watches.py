"""Notifies clients of persistent topics in a namespace that match a pattern, as they change.

    list of a namespace changed → once for all changes within a moment: created and deleted names
                                → once per pattern: which of these match
                                → every watcher of that pattern

So the cost of a change depends on the names that changed, not on all names, and watchers with the
same pattern share the work.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pybroker.base.errors import TooManyRequests
from pybroker.base.names import TopicName
from pybroker.base.runtime import Pace, Tasks
from pybroker.broker.namespaces.tenants import NotFound
from pybroker.broker.topic_lists.lists import TopicList, TopicLists

if TYPE_CHECKING:
    from pybroker.broker.topic_lists.pattern import TopicPattern

TOGETHER_S: Final = 0.05  # changes within this time are reported together
_STEPS_A_TURN: Final = 10_000
_STEPS_A_NAME: Final = 10
_PARTITION: Final = "-partition-"
# For all namespaces together: distinct patterns, and names that they select.
MAX_PATTERNS: Final = 10_000
MAX_NAMES: Final = 10_000_000


@dataclass(frozen=True, eq=False)
class Change:
    """`hash` is the hash of all names that the pattern selects now."""

    added: Sequence[str]
    removed: Sequence[str]
    hash: str


Told = Callable[[Change], None]


@dataclass(slots=True)
class _Selection:
    pattern: "TopicPattern"
    topics: TopicList
    told: dict[Told, None] = field(default_factory=dict)


@dataclass(slots=True)
class _Feed:
    """The changes of one namespace."""

    seen: TopicList
    selections: dict[str, _Selection] = field(default_factory=dict)  # by pattern
    starting: int = 0
    changed: bool = False
    looking: bool = False


async def selected(names: Iterable[str], pattern: "TopicPattern", pace: Pace) -> list[str]:
    """The names that match, including partitions whose topic matches."""
    found = []
    for name in names:
        before = pattern.steps
        if _matches(pattern, name):
            found.append(name)
        await pace.step(_STEPS_A_NAME + pattern.steps - before)
    pattern.rest()
    return found


def _matches(pattern: "TopicPattern", name: str) -> bool:
    local = name.partition("://")[2]
    if pattern.matches(local):
        return True
    if _PARTITION not in local:
        return False
    whole = str(TopicName.parse(name).partitioned_name).partition("://")[2]
    return whole != local and pattern.matches(whole)


def steady_pace() -> Pace:
    return Pace(_STEPS_A_TURN)


def _difference(names: Sequence[str], others: Sequence[str]) -> list[str]:
    there = set(others)
    return [name for name in names if name not in there]


class TopicWatches:
    def __init__(self, lists: TopicLists) -> None:
        self._lists = lists
        self._feeds: dict[str, _Feed] = {}
        self._tasks = Tasks("topic watches")
        lists.on_change = self._changed

    async def begin(self, namespace: str, pattern: "TopicPattern", told: Told) -> TopicList:
        """Returns the topics that are selected now; `told` is called for each change after that,
        until `end`. Raises NotFound, TooManyRequests.
        """
        self._check_room()
        there = (await self._lists.get(namespace)).of_users.persistent
        feed = self._feed(namespace, there)
        feed.starting += 1
        try:
            selection = feed.selections.get(pattern.text) or await _start(feed, pattern)
            selection.told[told] = None
            return selection.topics
        finally:
            feed.starting -= 1
            self._forget_unused(namespace, feed)

    def _check_room(self) -> None:
        selections = [s for feed in self._feeds.values() for s in feed.selections.values()]
        names = sum(len(selection.topics.names) for selection in selections)
        if len(selections) >= MAX_PATTERNS or names >= MAX_NAMES:
            raise TooManyRequests(
                f"{len(selections)} patterns are already watched, selecting {names} topics: "
                "close some watches"
            )

    def _feed(self, namespace: str, there: TopicList) -> _Feed:
        feed = self._feeds.get(namespace)
        if feed is None:
            feed = self._feeds[namespace] = _Feed(there)
            self._changed(namespace)  # it may have changed while `there` was computed
        return feed

    def end(self, namespace: str, pattern: "TopicPattern", told: Told) -> None:
        """Idempotent."""
        feed = self._feeds.get(namespace)
        if feed is None or (selection := feed.selections.get(pattern.text)) is None:
            return
        selection.told.pop(told, None)
        if not selection.told:
            del feed.selections[pattern.text]
            self._forget_unused(namespace, feed)

    async def close(self) -> None:
        self._feeds.clear()
        await self._tasks.close()

    def _forget_unused(self, namespace: str, feed: _Feed) -> None:
        if not (feed.selections or feed.starting) and self._feeds.get(namespace) is feed:
            del self._feeds[namespace]

    def _changed(self, namespace: str) -> None:
        feed = self._feeds.get(namespace)
        if feed is None:
            return
        feed.changed = True
        if not feed.looking:
            feed.looking = True
            self._tasks.start(self._look(namespace, feed), f"watches of {namespace}")

    async def _look(self, namespace: str, feed: _Feed) -> None:
        pace = steady_pace()
        try:
            while feed.changed and self._feeds.get(namespace) is feed:
                await asyncio.sleep(TOGETHER_S)
                feed.changed = False
                before, now = feed.seen, await self._now(namespace)
                feed.seen = now
                added = [] if now is before else _difference(now.names, before.names)
                removed = [] if now is before else _difference(before.names, now.names)
                for selection in list(feed.selections.values()) if added or removed else ():
                    await _tell(selection, added, removed, pace)
        finally:
            feed.looking = False

    async def _now(self, namespace: str) -> TopicList:
        try:
            return (await self._lists.get(namespace)).of_users.persistent
        except NotFound:  # the namespace was deleted, with all its topics
            return TopicList(())


async def _start(feed: _Feed, pattern: "TopicPattern") -> _Selection:
    """The selection includes changes that happen while names are examined."""
    pace = steady_pace()
    looked_at = feed.seen
    found = set(await selected(looked_at.names, pattern, pace))
    while feed.seen is not looked_at:
        before, looked_at = looked_at, feed.seen
        found.difference_update(_difference(before.names, looked_at.names))
        added = _difference(looked_at.names, before.names)
        found.update(await selected(added, pattern, pace))
    topics = TopicList(sorted(found))
    return feed.selections.setdefault(pattern.text, _Selection(pattern, topics))


async def _tell(
    selection: _Selection, added: Sequence[str], removed: Sequence[str], pace: Pace
) -> None:
    added = await selected(added, selection.pattern, pace)
    removed = await selected(removed, selection.pattern, pace)
    if not (added or removed):
        return
    gone = set(removed)
    left = [name for name in selection.topics.names if name not in gone]
    selection.topics = TopicList(sorted(dict.fromkeys([*left, *added])))  # nearly sorted already
    change = Change(added, removed, selection.topics.hash)
    for told in list(selection.told):
        if told in selection.told:  # the watch may have ended meanwhile
            told(change)
        await pace.step((len(added) + len(removed)) * _STEPS_A_NAME)
    await pace.step(len(left))
