"""Checks on messages before a topic accepts them: size, delay, rate, encryption.

A topic has a gate only if a policy requires one.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

from pybroker.base.errors import MetadataError, NotAllowed, PulsarError
from pybroker.base.names import TopicName
from pybroker.broker import delay_limit
from pybroker.broker.policies.effective import Effective
from pybroker.broker.policies.table import (
    DELAYED_DELIVERY,
    ENCRYPTION_REQUIRED,
    MAX_MESSAGE_SIZE,
    PUBLISH_RATE,
)
from pybroker.broker.policies.throttle import Throttle, throttle
from pybroker.wire.message_metadata import is_chunk, is_encrypted


class Gate:
    """0 means no limit. The message size limit does not apply to chunks: clients know only the
    broker's limit, and split by that.
    """

    def __init__(
        self,
        max_message_bytes: int,
        max_delay_ms: int,
        rate: Throttle | None,
        encrypted_only: bool = False,
    ) -> None:
        self.max_message_bytes = max_message_bytes
        self.max_delay_ms = max_delay_ms
        self.rate = rate
        self.encrypted_only = encrypted_only

    def pieces(self, entries: Sequence[bytes]) -> Iterator[tuple[int, int, PulsarError | None]]:
        """The entries in pieces: from, to (exclusive), and the reason for a refusal, or None."""
        if not self.encrypted_only:
            yield from self._by_delay(entries)
            return
        for index, entry in enumerate(entries):
            if not is_encrypted(entry):
                yield index, index + 1, MetadataError("Messages must be encrypted")
                continue
            for _, _, refusal in self._by_delay((entry,)):
                yield index, index + 1, refusal

    def _by_delay(self, entries: Sequence[bytes]) -> Iterator[tuple[int, int, PulsarError | None]]:
        if not self.max_delay_ms:
            yield from self._by_size(entries, 0, len(entries))
            return
        for start, stop, too_far in delay_limit.pieces(entries, self.max_delay_ms):
            if too_far:
                yield start, stop, delay_limit.refusal(self.max_delay_ms)
            else:
                yield from self._by_size(entries, start, stop)

    def _by_size(
        self, entries: Sequence[bytes], start: int, stop: int
    ) -> Iterator[tuple[int, int, PulsarError | None]]:
        most = self.max_message_bytes
        if most and max(map(len, entries[start:stop]), default=0) > most:
            for index in range(start, stop):
                if len(entries[index]) > most and not is_chunk(entries[index]):
                    if start < index:
                        yield start, index, None
                    yield index, index + 1, _too_large(len(entries[index]), most)
                    start = index + 1
        if start < stop:
            yield start, stop, None


def _too_large(size_bytes: int, most_bytes: int) -> NotAllowed:
    return NotAllowed(
        "Exceed maximum message size",
        f"the topic's policy maxMessageSize allows {most_bytes} bytes in an entry; this one has "
        f"{size_bytes} including metadata. Send smaller messages or batches, or use chunking",
    )


class Gated(Protocol):
    gate: Gate | None

    @property
    def name(self) -> TopicName: ...
    @property
    def policies(self) -> Effective: ...


class Gates:
    def follow(self, topic: Gated) -> None:
        policies, now = topic.policies, topic.gate
        rate = policies[PUBLISH_RATE]
        limited = throttle(
            None if now is None else now.rate,
            rate["publishThrottlingRateInMsg"],
            rate["publishThrottlingRateInByte"],
        )
        size_bytes, delay_ms = policies[MAX_MESSAGE_SIZE], 0
        if size_bytes >= policies.config.max_message_size:  # that limit excludes metadata
            size_bytes = 0
        if topic.name.persistent and policies[DELAYED_DELIVERY]["active"]:
            delay_ms = policies[DELAYED_DELIVERY]["maxDeliveryDelayInMillis"]
        encrypted = policies[ENCRYPTION_REQUIRED]
        wanted = size_bytes or delay_ms or limited is not None or encrypted
        topic.gate = Gate(size_bytes, delay_ms, limited, encrypted) if wanted else None
