"""Where a consumer starts, and its SUBSCRIBE command.

The broker delivers from the start's entry on. The part of the entry before the start (the whole
entry if the start is exclusive, or the first messages of a batch) is left out here, if the entry
arrives first. If it comes later, another client moved the cursor there, and it is delivered. If
chunked messages span the start, delivery begins with the first of their chunks, and everything else
before the start is left out.
"""

import random
import sys
from dataclasses import dataclass, replace
from typing import Final

from pybroker.client.consuming.acks import EntryKey, all_bits, to_words
from pybroker.client.messages import MessageId, OrderKey
from pybroker.client.options import (
    ConsumerKeySharedPolicy,
    ConsumerOptions,
    ConsumerType,
    InitialPosition,
    KeySharedMode,
    SubscriptionMode,
)
from pybroker.client.producing.batching import key_values
from pybroker.wire import pulsar_api_pb2 as pb

_WHOLE_ENTRY: Final = sys.maxsize
# Sorts before the index of any message, in a batch or not.
_NOTHING_OF_IT: Final = -2


@dataclass(frozen=True, slots=True)
class Start:
    message_id: MessageId
    inclusive: bool = False
    # A publish time instead of a message: only SEEK can express it.
    publish_time_ms: int | None = None
    # The first chunk of a message that ends after the start: its earlier chunks are wanted too.
    amid_chunks_from: EntryKey | None = None

    @property
    def is_vague(self) -> bool:
        """Whether the position is known only once the first message arrives."""
        return self.message_id == MessageId.latest or self.publish_time_ms is not None

    @property
    def left_out(self) -> OrderKey | None:
        """The last message not to be delivered; None if the broker alone decides."""
        if self.message_id in (MessageId.earliest, MessageId.latest):
            return None
        ledger_id, entry_id, index = self.message_id.order_key
        if self.inclusive:
            return (ledger_id, entry_id, index - 1 if index > 0 else _NOTHING_OF_IT)
        return (ledger_id, entry_id, index if index >= 0 else _WHOLE_ENTRY)

    @property
    def _begins_in_chunks(self) -> bool:
        return self.inclusive and self.message_id.first_chunk is not None

    def entry(self) -> pb.MessageIdData:
        """The first entry to deliver; a chunked message is identified by its last chunk."""
        wanted = self.message_id.to_wire()
        if self.amid_chunks_from is not None:
            return pb.MessageIdData(
                ledgerId=self.amid_chunks_from[0], entryId=self.amid_chunks_from[1]
            )
        if self._begins_in_chunks:
            wanted.ledgerId = wanted.first_chunk_message_id.ledgerId
            wanted.entryId = wanted.first_chunk_message_id.entryId
        wanted.ClearField("first_chunk_message_id")
        return wanted

    def seek(self) -> tuple[pb.MessageIdData, OrderKey | None]:
        """Where to put the subscription's cursor, and which part of that entry to leave out here.

        With the cursor before an entry that is left out, the entry would stay unacknowledged
        forever. So the cursor is put after the entry, or the broker is told which part of a batch
        is wanted (brokers may ignore that).
        """
        wanted, left_out = self.entry(), self.left_out
        if left_out is None:
            return wanted, None
        following, size = left_out[2] + 1, self.message_id.batch_size()
        wanted.ClearField("batch_index")
        wanted.ClearField("batch_size")
        if self._begins_in_chunks:
            return wanted, None
        if left_out[2] == _WHOLE_ENTRY or 0 < size <= following:
            wanted.entryId += 1
            return wanted, None
        if 0 < following < size:
            wanted.ack_set.extend(to_words(all_bits(size) & ~all_bits(following)))
        return wanted, left_out


@dataclass(frozen=True, slots=True)
class SubscriptionSpec:
    """With `start` the subscription has no durable cursor, like a reader's. Without `create_topic`,
    a missing or deleted topic raises TopicNotFound."""

    name: str
    options: ConsumerOptions
    start: Start | None = None
    create_topic: bool = True
    shares_buckets: bool = False  # its hash ranges are entry buckets, which others name, too

    @classmethod
    def of(cls, name: str, options: ConsumerOptions) -> "SubscriptionSpec":
        create_topic = options.create_topic
        if options.subscription_mode is SubscriptionMode.Durable:
            return cls(name, options, None, create_topic)
        earliest = options.initial_position is InitialPosition.Earliest
        start = Start(MessageId.earliest if earliest else MessageId.latest)
        return cls(name, options, start, create_topic)

    def named(self, rng: random.Random) -> "SubscriptionSpec":
        """With a random consumer name unless the application set one: brokers recognise a consumer
        that returns by its name.
        """
        if self.options.consumer_name:
            return self
        name = f"{rng.getrandbits(40):010x}"
        return replace(self, options=replace(self.options, consumer_name=name))

    def sharing(self, buckets: tuple[tuple[int, int], ...]) -> "SubscriptionSpec":
        """Several consumers share a segment by all its entry buckets."""
        policy = ConsumerKeySharedPolicy(KeySharedMode.Sticky, sticky_ranges=buckets)
        options = replace(
            self.options, consumer_type=ConsumerType.KeyShared, key_shared_policy=policy
        )
        return replace(self, options=options, shares_buckets=True)

    @property
    def of_new_partition(self) -> "SubscriptionSpec":
        """Starts at a partition's first message: none is older than a partition added later."""
        options = replace(self.options, initial_position=InitialPosition.Earliest)
        start = None if self.start is None else Start(MessageId.earliest)
        return SubscriptionSpec(self.name, options, start, self.create_topic)


def subscribe_command(
    spec: SubscriptionSpec, topic: str, consumer_id: int, start: Start | None, epoch: int
) -> pb.CommandSubscribe:
    options = spec.options
    command = pb.CommandSubscribe(
        topic=topic,
        subscription=spec.name,
        subType=options.consumer_type.value,  # type: ignore[arg-type]
        consumer_id=consumer_id,
        consumer_name=options.consumer_name or "",
        priority_level=options.priority_level,
        durable=spec.start is None,
        read_compacted=options.is_read_compacted,
        initialPosition=_initial_position(options, start),
        metadata=key_values(options.properties),
        subscription_properties=key_values(_subscription_properties(options)),
        replicate_subscription_state=options.replicate_subscription_state_enabled,
        consumer_epoch=epoch,
        force_topic_creation=spec.create_topic,
    )
    if start is not None:
        command.start_message_id.CopyFrom(start.entry())
    if options.consumer_type is ConsumerType.KeyShared or options.key_shared_policy is not None:
        command.keySharedMeta.CopyFrom(_key_shared(options.key_shared_policy))
        if spec.shares_buckets:
            command.keySharedMeta.entry_bucket_dispatch = True
    return command


def _subscription_properties(options: ConsumerOptions) -> dict[str, str] | None:
    if options.isolation_level is None:
        return options.subscription_properties
    said = options.subscription_properties or {}
    return {**said, "isolation.level": options.isolation_level.value}


def _initial_position(
    options: ConsumerOptions, start: Start | None
) -> "pb.CommandSubscribe.InitialPosition":
    earliest = options.initial_position is InitialPosition.Earliest
    if start is not None:
        earliest = start.message_id == MessageId.earliest
    return pb.CommandSubscribe.Earliest if earliest else pb.CommandSubscribe.Latest


def _key_shared(policy: ConsumerKeySharedPolicy | None) -> pb.KeySharedMeta:
    policy = policy or ConsumerKeySharedPolicy()
    return pb.KeySharedMeta(
        keySharedMode=policy.key_shared_mode.value,  # type: ignore[arg-type]
        allowOutOfOrderDelivery=policy.allow_out_of_order_delivery,
        hashRanges=[pb.IntRange(start=first, end=last) for first, last in policy.sticky_ranges],
    )
