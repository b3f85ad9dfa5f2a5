"""Ids of topics (KIP-516): made of a topic's name, so that nothing has to be stored.

A topic that is deleted and created again has the id that it had before: clients notice it by its
offsets only.
"""

import asyncio
import hashlib
from typing import Final

from pybroker.kafka.names import KafkaNames

_MOST_REMEMBERED: Final = 100_000
_LOOK_AGAIN_S: Final = 1.0
_VERSION, _VARIANT = 0x80, 0x80  # of RFC 9562: version 8, whose bits the software chooses


class TopicIds:
    """The ids, and the names of those that were told to clients."""

    def __init__(self, names: KafkaNames) -> None:
        self._namespace = names.namespace_name
        self._names: dict[bytes, str] = {}
        self._ids: dict[str, bytes] = {}
        self._looked_s = -_LOOK_AGAIN_S
        self.looking: asyncio.Task[None] | None = None  # at all topics

    def of(self, topic: str) -> bytes:
        """By the topic's name as Kafka's clients have it."""
        known = self._ids.get(topic)
        if known is not None:
            return known
        digest = bytearray(hashlib.sha256(f"{self._namespace}/{topic}".encode()).digest()[:16])
        digest[6] = digest[6] & 0x0F | _VERSION
        digest[8] = digest[8] & 0x3F | _VARIANT
        if len(self._ids) >= _MOST_REMEMBERED:
            self._ids.clear()
            self._names.clear()
        found = self._ids[topic] = bytes(digest)
        self._names[found] = topic
        return found

    def may_look(self, now_s: float) -> bool:
        """Whether all topics may be looked at for an id that is not known. A client that asks for a
        topic that was deleted asks again and again.
        """
        if now_s < self._looked_s + _LOOK_AGAIN_S:
            return False
        self._looked_s = now_s
        return True

    def name_of(self, topic_id: bytes) -> str | None:
        """None unless the id was asked for by its name before."""
        return self._names.get(bytes(topic_id))
