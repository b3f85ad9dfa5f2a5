"""How often a topic's acknowledgements are written; a crash loses the unwritten ones, so their
messages are redelivered.
"""

from typing import Final

from pybroker.broker.client_topics import ServedTopic
from pybroker.broker.persistent.topic import Topic
from pybroker.broker.policies.table import PERSISTENCE

_SHORTEST_MS: Final = 10
_LONGEST_MS: Final = 60_000


def flush_interval_ms(writes_per_s: float) -> int:
    """0 or less: as fast as possible."""
    if writes_per_s <= 0:
        return _SHORTEST_MS
    return int(min(max(1000 / writes_per_s, _SHORTEST_MS), _LONGEST_MS))


class WrittenCursors:
    def follow(self, topic: ServedTopic) -> None:
        if not isinstance(topic, Topic):
            return
        wanted_ms = flush_interval_ms(topic.policies[PERSISTENCE]["managedLedgerMaxMarkDeleteRate"])
        if topic.ledger.config.cursor_flush_interval_ms != wanted_ms:
            topic.ledger.write_cursors_within(wanted_ms)
