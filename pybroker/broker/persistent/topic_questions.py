"""Answers ASK_TOPICS for a topic: its end, what follows a position, a cursor's position.

Differs: official clients need a consumer on each topic for this. A planner that reads ten thousand
topics asks about all of them in a few commands, and holds nothing open in between.

No question creates a topic. A question about a subscription counts as its use, like a consumer: a
subscription does not expire while a client only asks about it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Final, NamedTuple

from managed_ledger.errors import DamagedEntries
from managed_ledger.position import EARLIEST, Position
from managed_ledger.storage.backend import EntryRun
from pybroker.base.errors import SubscriptionNotFound, TopicNotFound
from pybroker.base.names import TopicName
from pybroker.broker.persistent.short_spans import Allowance, HandedOver, hand_over
from pybroker.broker.persistent.topic import Topic
from pybroker.broker.policies.limits import check_type
from pybroker.broker.policies.table import AUTO_SUBSCRIPTION_CREATION
from pybroker.broker.subscriptions.consumer import SubscriptionType
from pybroker.broker.subscriptions.joining import check_joinable
from pybroker.broker.subscriptions.subscription import Subscription
from pybroker.broker.topics import Topics
from pybroker.wire.message_metadata import BadEntry, split_entry

# A sample reads no more than this, whatever the client asks for.
_SAMPLE_ENTRIES: Final = 16
_SAMPLE_BYTES: Final = 64 * 1024
_SIZE_BYTES: Final = 4  # the size field before each message of a batch
_WINDOW: Final = 512  # entries that are searched for visible ones


@dataclass(frozen=True, slots=True)
class Asked:
    """What a command asks of all its topics."""

    subscription: str | None = None
    # Where a missing subscription is created if `creates`; None: at the end.
    start: Position | None = None
    creates: bool = False
    sample_messages: int = 0
    schema_only: bool = False
    # For the returned entries of all topics.
    allowance: Allowance = field(default_factory=Allowance)


@dataclass(frozen=True, slots=True)
class Question:
    topic: TopicName
    after: Position | None = None
    first_from: Position | None = None
    acknowledge: Position | None = None
    published: Position | None = None
    read_to: Position | None = None


class Sample(NamedTuple):
    entries: int
    messages: int
    size_bytes: int  # uncompressed


@dataclass(frozen=True, slots=True)
class Answer:
    last: Position  # entry -1: nothing can be delivered
    entries_behind: int | None = None
    sample: Sample | None = None
    first: Position | None = None
    cursor: Position | None = None
    backlog: int = 0
    schema_digest: bytes = b""
    published_ms: int | None = None
    handed_over: HandedOver | None = None


async def answer(topics: Topics, asked: Asked, question: Question) -> Answer:
    """Raises TopicNotFound, SubscriptionNotFound, and the errors of subscribing."""
    if asked.schema_only:
        return Answer(EARLIEST, schema_digest=_schema_digest(topics, question.topic))
    topic = topics.serving(question.topic) or await topics.get(question.topic)
    if topic is None:
        raise TopicNotFound(f"{question.topic} does not exist")
    if question.read_to is not None:
        after = EARLIEST if question.after is None else question.after
        handed_over = await hand_over(topic, after, question.read_to, asked.allowance)
        return Answer(topic.buffer.last_visible_position(), handed_over=handed_over)
    subscription = await _subscription(topic, asked)
    if subscription is not None:
        subscription.times.in_use()
    if question.acknowledge is not None:
        if subscription is None:
            raise SubscriptionNotFound(
                f"{question.topic} has no subscription {asked.subscription!r} to acknowledge on"
            )
        _move_up(topic, subscription, question.acknowledge)
    first = None if question.first_from is None else _first(topic, question.first_from)
    behind, sample = None, None
    if question.after is not None:
        behind = entries_behind(topic, question.after)
        if asked.sample_messages and behind:
            sample = await _sample(topic, question.after, asked.sample_messages)
    published_ms = None
    if question.published is not None:
        published_ms = await _published_ms(topic, question.published)
    last = topic.buffer.last_visible_position()
    found = Answer(last, behind, sample, first, published_ms=published_ms)
    if subscription is None:
        return found
    mark = subscription.mark_delete_position
    return replace(found, cursor=mark, backlog=subscription.backlog)


def entries_behind(topic: Topic, after: Position) -> int:
    """Like the backlog of a reader that begins there, without aborted messages and markers."""
    end = topic.ledger.last_confirmed
    return max(0, topic.ledger.count_between(after, end) - topic.hidden.count(after, end))


def _schema_digest(topics: Topics, name: TopicName) -> bytes:
    """The digest of the topic's schema; empty if it has none. Includes the properties, which
    describe the parts of a key-value schema.
    """
    try:
        schema = topics.schemas.get(name).schema
    except TopicNotFound:
        return b""
    digest = sha256(schema.digest)
    digest.update(repr(sorted(schema.properties.items())).encode())
    return digest.digest()


async def _subscription(topic: Topic, asked: Asked) -> Subscription | None:
    if asked.subscription is None:
        return None
    existing = topic.subscriptions.get(asked.subscription)
    if existing is not None and existing.durable:
        return existing
    if not asked.creates:
        return None
    check_type(topic, SubscriptionType.FAILOVER)
    may_create = bool(topic.policies[AUTO_SUBSCRIPTION_CREATION]["allowAutoSubscriptionCreation"])
    return await topic.subscription(asked.subscription, asked.start, {}, create=may_create)


def _move_up(topic: Topic, subscription: Subscription, position: Position) -> None:
    """Like a Failover consumer's cumulative acknowledgement. Raises ConsumerBusy.

    The client has read everything up to `position` with readers. These get all messages, except
    those after the position up to which the subscription may read.
    """
    check_joinable(subscription, SubscriptionType.FAILOVER)
    subscription.cursor.mark_delete(min(position, subscription.reader.limit))
    subscription.times.mark_delete_moved_ms = topic.clock.now_ms()
    subscription.notify()


def _first(topic: Topic, position: Position) -> Position | None:
    """The first entry at or after `position` that can be delivered."""
    last = topic.buffer.last_visible_position()
    position = topic.ledger.next_position(max(position, EARLIEST.after).before)
    while position <= last:
        end = position.entry_id + _WINDOW - 1
        hidden = topic.hidden.ranges_within(position.ledger_id, position.entry_id, end)
        if not hidden or hidden[0][0] > position.entry_id:
            return position
        behind = Position(position.ledger_id, hidden[0][1])
        position = topic.ledger.next_position(behind)
    return None


async def _sample(topic: Topic, after: Position, messages: int) -> Sample | None:
    """Samples the entries after `after`; None if nothing can be delivered or read."""
    first = _first(topic, after.after)
    if first is None:
        return None
    last = topic.buffer.last_visible_position()
    most = min(messages, _SAMPLE_ENTRIES)
    ledger = topic.ledger
    run = ledger.read_cached(first, last, most, _SAMPLE_BYTES)
    try:
        run = run or await ledger.read(first, last, most, _SAMPLE_BYTES)
    except DamagedEntries:
        return None  # a reader will report the damage, with its position
    return None if run is None else _measured(run, _visible(topic, run), messages)


async def _published_ms(topic: Topic, position: Position) -> int | None:
    """None if there is no message at `position` that can be delivered and read."""
    if _first(topic, position) != position:
        return None
    try:
        run = topic.ledger.read_cached(position, position, 1, 1)
        run = run or await topic.ledger.read(position, position, 1, 1)
        return None if run is None else split_entry(run.entries[0])[0].publish_time
    except (DamagedEntries, BadEntry):
        return None


def _visible(topic: Topic, run: EntryRun) -> Sequence[int]:
    """The indexes of the run's visible entries."""
    first, count = run.first_entry_id, len(run.entries)
    if not topic.hidden:
        return range(count)
    return [i for i in range(count) if not topic.hidden.contains((run.ledger_id, first + i))]


def _measured(run: EntryRun, places: Sequence[int], messages: int) -> Sample:
    entries = found = size_bytes = 0
    for place in places:
        if found >= messages:
            break
        entries += 1
        found += run.message_counts[place]
        size_bytes += _uncompressed_bytes(run.entries[place])
    return Sample(entries, found, size_bytes)


def _uncompressed_bytes(entry: bytes) -> int:
    """The size of the messages' values. Each message's metadata in a batch is assumed to be as long
    as the first one's; in a compressed batch it counts as part of the values."""
    try:
        metadata, start = split_entry(entry)
    except BadEntry:
        return len(entry)
    size_bytes = len(entry) - start
    if metadata.compression:
        return max(metadata.uncompressed_size, size_bytes)
    if metadata.HasField("num_messages_in_batch") and not metadata.encryption_keys:
        first = int.from_bytes(entry[start : start + _SIZE_BYTES], "big")
        size_bytes -= metadata.num_messages_in_batch * (_SIZE_BYTES + first)
    return max(0, size_bytes)
