"""What a stream says of messages that it should have read and that no longer exist: an error, or a
warning if the query accepts losses (failOnDataLoss=false).
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pybroker.spark.offsets import Position
from pybroker.spark.replay import InputLost

log = logging.getLogger("pybroker.spark")


@dataclass(frozen=True, slots=True)
class Losses:
    """Each method raises InputLost unless losses are accepted."""

    fail: bool

    def gone(self, topics: Sequence[str]) -> None:
        if topics:
            self._lost(
                f"{', '.join(topics)}, which the query has been reading, is gone",
                "including messages the query had not read. To continue without it, set "
                "failOnDataLoss=false",
                "continuing without it",
            )

    def unread(self, firsts: Mapping[str, Position]) -> None:
        """`firsts`: by topic, the first message that was deleted."""
        if firsts:
            places = "; ".join(f"{topic} from {first} on" for topic, first in firsts.items())
            self._lost(
                f"Messages that the query had not read yet have been deleted: {places}",
                "probably by a message TTL, a backlog quota or a truncation. To continue without "
                "them, set failOnDataLoss=false",
                "continuing without them",
            )

    def set_back(self, topic: str, reached: Position, what: str) -> None:
        self._lost(
            f"{topic} is not as the query left it, at {reached}: {what}",
            "The broker was restored from an older backup, or the topic was deleted and created "
            "again, so messages are lost and others have taken their positions. Restore a "
            "checkpoint of the same time as the backup; or set failOnDataLoss=false to continue at "
            "the position of the query's subscription, which may repeat what was read since the "
            "backup",
            "continuing at the query's cursor",
        )

    def _lost(self, account: str, remedy: str, instead: str) -> None:
        if self.fail:
            raise InputLost(f"{account}{', ' if remedy[0].islower() else '. '}{remedy}")
        log.warning("%s: %s (failOnDataLoss=false)", account, instead)
