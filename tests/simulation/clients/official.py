"""What Apache's clients do otherwise than this project's, and the broker must know of."""

from typing import Any

from pybroker.client.consuming.acks import AckGroup, EntryKey, all_bits


class WholeBatches(AckGroup):
    """As Java's without batch indexes: who is through with what he was given of a batch
    acknowledges all of it, whatever the broker left out.
    """

    def delivered(self, key: EntryKey, sent: int, unacked: int, batch_size: int) -> None:
        super().delivered(key, all_bits(batch_size), unacked, batch_size)


def acknowledge_whole_batches(consumer: Any) -> None:
    """From now on. It must be one that was subscribed without `batch_index_ack_enabled`."""
    for part in consumer._parts.values():
        part._acks._group.__class__ = WholeBatches


class Dropping:
    """As Java's, which drops what comes up to its own last plain cumulative acknowledgement, for as
    long as the application keeps the consumer.
    """

    def __init__(self) -> None:
        self._to: dict[str, Any] = {}  # by topic, as order keys

    def acknowledged_up_to(self, message: Any) -> None:
        self._to[message.topic_name()] = message.order_key

    def drops(self, message: Any) -> bool:
        to = self._to.get(message.topic_name())
        return to is not None and message.order_key <= to
