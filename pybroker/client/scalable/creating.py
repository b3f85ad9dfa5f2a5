"""What the client creates for scalable topics."""

from pybroker.client.connection.cluster import Cluster
from pybroker.client.consuming.subscribing import Start, SubscriptionSpec
from pybroker.client.messages import MessageId
from pybroker.client.options import ConsumerOptions, ProducerOptions
from pybroker.client.scalable.checkpoint import Checkpoint
from pybroker.client.scalable.checkpoint_consumer import CheckpointConsumer, SegmentsReader
from pybroker.client.scalable.producer import ScalableProducer
from pybroker.client.scalable.queue_consumer import QueueConsumer
from pybroker.client.scalable.stream_consumer import StreamConsumer
from pybroker.client.scalable.watch import LayoutWatch


async def new_producer(cluster: Cluster, topic: str, options: ProducerOptions) -> ScalableProducer:
    producer = ScalableProducer(cluster, topic, options)
    await producer.open()
    return producer


async def new_queue_consumer(
    cluster: Cluster, topic: str, subscription: str, options: ConsumerOptions
) -> QueueConsumer:
    spec = SubscriptionSpec.of(subscription, options)
    consumer = QueueConsumer(cluster, LayoutWatch(cluster, topic, spec.create_topic), spec)
    await consumer.open()
    return consumer


async def new_stream_consumer(
    cluster: Cluster, topic: str, subscription: str, options: ConsumerOptions
) -> StreamConsumer:
    spec = SubscriptionSpec.of(subscription, options).named(cluster.rng)
    consumer = StreamConsumer(cluster, LayoutWatch(cluster, topic, spec.create_topic), spec)
    await consumer.open()
    return consumer


async def new_checkpoint_consumer(
    cluster: Cluster, topic: str, start: Checkpoint, options: ConsumerOptions
) -> CheckpointConsumer:
    name = f"reader-{cluster.rng.getrandbits(40):010x}"
    # Each segment begins elsewhere.
    spec = SubscriptionSpec(name, options, Start(MessageId.earliest), options.create_topic)
    consumer = SegmentsReader(cluster, LayoutWatch(cluster, topic, spec.create_topic), spec, start)
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
