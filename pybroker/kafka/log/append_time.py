"""Whether a topic's records get the time at which they are appended: message.timestamp.type."""

import json
from typing import Final

from managed_ledger.storage.backend import Versioned
from pybroker.broker.namespaces.tenants import partitions_key
from pybroker.broker.persistent.topic import Topic

_PROPERTY: Final = "kafka.message.timestamp.type"
_APPEND_TIME: Final = "LogAppendTime"


class AppendTime:
    """Of one partition. Its topic's record is read again when it has changed."""

    __slots__ = ("_is_on", "_key", "_metadata", "_seen")

    def __init__(self, topic: Topic) -> None:
        self._metadata = topic.metadata
        self._key = partitions_key(topic.name.partitioned_name)
        self._seen: Versioned | None = None
        self._is_on = False

    @property
    def is_on(self) -> bool:
        stored = self._metadata.get(self._key)
        if stored is not self._seen:
            self._seen, self._is_on = stored, _says(stored)
        return self._is_on


def _says(stored: Versioned | None) -> bool:
    properties = {} if stored is None else json.loads(stored.value).get("properties") or {}
    return bool(properties.get(_PROPERTY) == _APPEND_TIME)
