"""What the client creates for scalable topics."""

from dataclasses import replace

from pybroker.client.connection.cluster import Cluster
from pybroker.client.consuming.subscribing import Start, SubscriptionSpec
from pybroker.client.errors import InvalidConfiguration
from pybroker.client.messages import MessageId
from pybroker.client.options import ConsumerOptions, ConsumerType, InitialPosition, ProducerOptions
from pybroker.client.scalable.checkpoint import Checkpoint
from pybroker.client.scalable.checkpoint_consumer import CheckpointConsumer, SegmentsReader
from pybroker.client.scalable.dead_letters import Begin, DeadLetters
from pybroker.client.scalable.producer import ScalableProducer
from pybroker.client.scalable.queue_consumer import QueueConsumer
from pybroker.client.scalable.stream_consumer import StreamConsumer
from pybroker.client.scalable.watch import LayoutWatch


async def new_producer(cluster: Cluster, topic: str, options: ProducerOptions) -> ScalableProducer:
    producer = ScalableProducer(cluster, topic, options)
    await producer.open()
    return producer


async def new_queue_consumer(
    cluster: Cluster, topic: str, subscription: str, options: ConsumerOptions, begin: Begin
) -> QueueConsumer:
    """`begin` begins a transaction."""
    spec, letters = SubscriptionSpec.of(subscription, options), None
    watch = LayoutWatch(cluster, topic, spec.create_topic)
    if (policy := options.dead_letter_policy) is not None:
        if policy.max_redeliver_count < 0:
            raise InvalidConfiguration("max_redeliver_count must be 0 or more")

        async def open_letters(letters_topic: str) -> ScalableProducer:
            if policy.initial_subscription_name is not None:
                await _subscribe(cluster, letters_topic, policy.initial_subscription_name)
            producer_options = ProducerOptions(block_if_queue_full=True)
            return await new_producer(cluster, letters_topic, producer_options)

        letters = DeadLetters(cluster, watch.topic, subscription, policy, open_letters, begin)
    consumer = QueueConsumer(cluster, watch, spec, letters)
    await consumer.open()
    return consumer


async def _subscribe(cluster: Cluster, topic: str, subscription: str) -> None:
    """The subscription is there when this returns, from the first message on if it is new."""
    options = ConsumerOptions(ConsumerType.Shared, initial_position=InitialPosition.Earliest)
    spec = SubscriptionSpec.of(subscription, replace(options, receiver_queue_size=1))
    consumer = QueueConsumer(cluster, LayoutWatch(cluster, topic), spec)
    await consumer.open()
    await consumer.close()


async def new_stream_consumer(
    cluster: Cluster, topic: str, subscription: str, options: ConsumerOptions
) -> StreamConsumer:
    spec = SubscriptionSpec.of(subscription, options).named(cluster.rng)
    consumer = StreamConsumer(cluster, LayoutWatch(cluster, topic, spec.create_topic), spec)
    await consumer.open()
    return consumer


async def new_checkpoint_consumer(
    cluster: Cluster, topic: str, start: Checkpoint, group: str | None, options: ConsumerOptions
) -> CheckpointConsumer:
    name = f"reader-{cluster.rng.getrandbits(40):010x}"
    # Each segment begins elsewhere.
    spec = SubscriptionSpec(name, options, Start(MessageId.earliest), options.create_topic)
    watch = LayoutWatch(cluster, topic, spec.create_topic)
    consumer = SegmentsReader(cluster, watch, spec, start, group)
    await consumer.open()
    return CheckpointConsumer(consumer)


async def segment_topics(cluster: Cluster, topic: str, create: bool) -> list[str]:
    """The topics of all segments now, also of sealed ones; parents come before their children.
    Raises TopicNotFound.
    """
    watch = LayoutWatch(cluster, topic, create)
    try:
        layout = await watch.open()
    finally:
        await watch.close()
    return [segment.topic for _, segment in sorted(layout.segments.items())]
