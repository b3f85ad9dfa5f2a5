"""Consumers of scalable topics (topic://), chosen by the options for ordinary ones."""

from argparse import Namespace
from collections.abc import Sequence
from typing import Any, Protocol

from pybroker.base.names import SCALABLE
from pybroker.client import Client, Consumer, ConsumerType, Message, MessageId, Transaction


class Readable(Protocol):
    def receive(self, timeout_millis: int | None = None) -> Message: ...


def is_scalable(topic: str) -> bool:
    return topic.startswith(f"{SCALABLE}://")


def is_stream(options: Namespace) -> bool:
    """Whether its messages are acknowledged up to one of them."""
    return is_scalable(options.topic) and options.subscription_type in ("Exclusive", "Failover")


def subscribe(
    client: Client, options: Namespace, kind: ConsumerType, settings: dict[str, Any]
) -> Consumer:
    """Raises PulsarException, and ValueError for what scalable topics do not have."""
    if options.subscription_mode == "NonDurable":
        raise ValueError(
            f"{options.topic} is a scalable topic, which has no subscriptions that are not "
            "durable: use pybroker read"
        )
    if kind is ConsumerType.KeyShared:
        raise ValueError(
            f"{options.topic} is a scalable topic: with -t Exclusive its consumers share the keys"
        )
    name = options.subscription_name
    if kind is ConsumerType.Shared:
        return client.create_queue_consumer(options.topic, name, **settings)
    return client.create_stream_consumer(options.topic, name, **settings)


def acknowledge(
    consumer: Consumer, ids: Sequence[MessageId], txn: Transaction | None, stream: bool
) -> None:
    if stream:
        consumer.acknowledge_cumulative(ids[-1], txn=txn)
    else:
        consumer.acknowledge(ids, txn=txn)


def read(client: Client, options: Namespace, settings: dict[str, Any]) -> Readable:
    """Raises PulsarException, and ValueError for what scalable topics do not have."""
    from pybroker.client.scalable import Checkpoint

    starts = {MessageId.earliest: Checkpoint.earliest, MessageId.latest: Checkpoint.latest}
    start = starts.get(options.start_message_id)
    if start is None or options.start_message_id_inclusive or options.readCompacted:
        raise ValueError(
            f"{options.topic} is a scalable topic, which is read from -m earliest or after -m "
            "latest: a message's position is one in a segment, and segments are not compacted"
        )
    return client.create_checkpoint_consumer(options.topic, start, **settings)
