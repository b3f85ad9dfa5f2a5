"""Checks on messages before a topic accepts them: size, delay, rate, encryption.

A topic has a gate only if a policy requires one.
"""

from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from managed_ledger.storage.fullness import EntryLimit
from pybroker.base.errors import MetadataError, NotAllowed, PulsarError
from pybroker.base.names import TopicName
from pybroker.broker.persistent import delay_limit
from pybroker.broker.policies.effective import Effective
from pybroker.broker.policies.table import (
    DELAYED_DELIVERY,
    ENCRYPTION_REQUIRED,
    MAX_MESSAGE_SIZE,
    PUBLISH_RATE,
)
from pybroker.broker.policies.throttle import Throttle, throttle
from pybroker.wire.message_metadata import is_chunk, is_encrypted

_TAG_BYTES: Final = 512  # stored with an entry, mostly less


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
        storage_bytes: int = 0,
    ) -> None:
        """`storage_bytes`: larger entries, chunks too, cannot be stored."""
        self.max_message_bytes = max_message_bytes
        self.max_delay_ms = max_delay_ms
        self.rate = rate
        self.encrypted_only = encrypted_only
        self.storage_bytes = storage_bytes

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
        limits = self.max_message_bytes, self.storage_bytes
        least = min(filter(None, limits), default=0)
        if least and max(map(len, entries[start:stop]), default=0) > least:
            for index in range(start, stop):
                if (refusal := self._why_too_large(entries[index])) is not None:
                    if start < index:
                        yield start, index, None
                    yield index, index + 1, refusal
                    start = index + 1
        if start < stop:
            yield start, stop, None

    def _why_too_large(self, entry: bytes) -> NotAllowed | None:
        size_bytes, most = len(entry), self.max_message_bytes
        if 0 < self.storage_bytes < size_bytes:
            return NotAllowed(
                "Exceed maximum message size",
                f"the bookies store at most {self.storage_bytes} bytes in an entry; this one has "
                f"{size_bytes}: their nettyMaxFrameSizeBytes must be larger than maxMessageSize",
            )
        if 0 < most < size_bytes and not is_chunk(entry):
            return _too_large(size_bytes, most)
        return None


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
    def __init__(self, entry_limit: EntryLimit) -> None:
        self._entry_limit = entry_limit

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
        stored = (self._entry_limit.max_bytes or 0) if topic.name.persistent else 0
        wanted = size_bytes or delay_ms or limited is not None or encrypted or stored
        gate = Gate(size_bytes, delay_ms, limited, encrypted, max(0, stored - _TAG_BYTES))
        topic.gate = gate if wanted else None
