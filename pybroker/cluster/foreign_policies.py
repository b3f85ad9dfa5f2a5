"""Policies that Apache Pulsar's brokers keep for single topics: not read here, so a warning is
logged.

They write them to a topic of each namespace (PIP-39). Whether anything was ever set there is not
known without reading that topic, which another broker may serve.
"""

import logging
from collections.abc import Callable
from typing import Final

log = logging.getLogger(__name__)
_LOGS: Final = ("__change_events", "__change_events-partition-0")


class ForeignTopicPolicies:
    def __init__(self, ledger_exists: Callable[[str], bool]) -> None:
        self._ledger_exists = ledger_exists
        self._said: set[str] = set()

    def look(self, namespace: str) -> None:
        """This broker has begun to serve topics of it. Logs a warning, once for each namespace."""
        if namespace in self._said:
            return
        if any(self._ledger_exists(f"{namespace}/persistent/{name}") for name in _LOGS):
            self._said.add(namespace)
            log.warning(
                "Apache Pulsar's brokers have served %s: policies that were set there for single "
                "topics do not apply here. List them there, with pulsar-admin topicPolicies, and "
                "set them here, too",
                namespace,
            )
