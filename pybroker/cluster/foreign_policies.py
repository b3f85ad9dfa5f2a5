"""Warns about topic policies of Apache Pulsar's brokers, which this broker does not read.

Apache's brokers write them to a topic in each namespace (PIP-39). Whether that topic contains any
policies is not known without reading it, and another broker may serve it.
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
        """Call it when this broker begins to serve topics of the namespace. Warns once for each
        namespace.
        """
        if namespace in self._said:
            return
        if any(self._ledger_exists(f"{namespace}/persistent/{name}") for name in _LOGS):
            self._said.add(namespace)
            log.warning(
                "Apache Pulsar's brokers have served %s: topic policies that were set on them do "
                "not apply in pybroker. List them with pulsar-admin topicPolicies while one of "
                "those brokers runs, and set them in pybroker, too",
                namespace,
            )
