"""Periodic work on topics. A topic's name decides its moment within the interval, so that the work
is spread; a topic without work costs nothing.
"""

import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Generic, TypeVar

from managed_ledger.checksum import crc32c
from managed_ledger.errors import ManagedLedgerError
from managed_ledger.housekeeper import Housekeeper
from pybroker.base.errors import PulsarError
from pybroker.broker.client_topics import ServedTopic

log = logging.getLogger(__name__)

T = TypeVar("T", bound=ServedTopic)


class Rounds(Generic[T]):
    def __init__(
        self,
        housekeeper: Housekeeper,
        interval_s: float,
        wanted: Callable[[T], bool],
        work: Callable[[T], Coroutine[Any, Any, None]],
        *kinds: type[T],
    ) -> None:
        """For topics of these `kinds`."""
        self._kinds = kinds
        self._housekeeper = housekeeper
        self._interval_s = interval_s
        self._wanted = wanted
        self._work = work
        self._going: set[T] = set()  # topics with a visit scheduled or in progress

    def follow(self, topic: ServedTopic) -> None:
        if isinstance(topic, self._kinds) and topic not in self._going and self._wanted(topic):
            self._going.add(topic)
            share = crc32c(str(topic.name).encode()) / 2**32
            self._visit_in(topic, share * self._interval_s)

    def _visit_in(self, topic: T, delay_s: float) -> None:
        self._housekeeper.visit_in(delay_s, partial(self._visit, topic))

    def _visit(self, topic: T) -> None:
        if topic.closed or not self._wanted(topic):
            self._going.discard(topic)
        else:
            topic.tasks.start(self._round(topic), "a periodic policy check")

    async def _round(self, topic: T) -> None:
        try:
            if self._wanted(topic):  # its policies may have changed
                await self._work(topic)
        except (ManagedLedgerError, PulsarError) as error:
            log.warning(
                "%s: the periodic policy check failed and is retried later: %s", topic.name, error
            )
        finally:
            if topic.closed:
                self._going.discard(topic)
            else:
                self._visit_in(topic, self._interval_s)
