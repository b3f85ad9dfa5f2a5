"""Behaviour of Apache's clients that differs from that of this project's client."""

from typing import Any

from pybroker.client.consuming.acks import AckGroup, EntryKey, all_bits


class WholeBatches(AckGroup):
    """Like Java's without batch indexes: a client that has processed its part of a batch
    acknowledges the whole batch, whatever the broker left out.
    """

    def delivered(self, key: EntryKey, sent: int, unacked: int, batch_size: int) -> None:
        super().delivered(key, all_bits(batch_size), unacked, batch_size)


def acknowledge_whole_batches(consumer: Any) -> None:
    """From now on. The consumer must be subscribed without `batch_index_ack_enabled`."""
    for part in consumer._parts.values():
        part._acks._group.__class__ = WholeBatches


def name_nothing(consumer: Any) -> None:
    """From now on. The broker concludes what a cumulative acknowledgement covers."""
    for part in consumer._parts.values():
        part._transacted._gets_all = False


class Dropping:
    """Like Java's: drops messages up to its own last plain cumulative acknowledgement, as long as
    the application keeps the consumer. The consumer must `name_nothing`: it does not know what is
    dropped above it.
    """

    def __init__(self) -> None:
        self._to: dict[str, Any] = {}  # by topic, as order keys

    def acknowledged_up_to(self, message: Any) -> None:
        self._to[message.topic_name()] = message.order_key

    def drops(self, message: Any) -> bool:
        to = self._to.get(message.topic_name())
        return to is not None and message.order_key <= to
