"""Transactions that hold readers back: on all topics, and on one topic."""

import heapq
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request

from pybroker.admin.finding import existing
from pybroker.admin.operation import DescribedRoute
from pybroker.admin.routing import asked, number, route, topic_of
from pybroker.admin.services import AdminServices
from pybroker.admin.shapes import blocking as shapes
from pybroker.admin.stats.blocking import (
    Blocked,
    Stats,
    backlog_parts,
    blocked_entries,
    of_topic,
    open_on,
)
from pybroker.base.json_schema import TEXT, whole
from pybroker.base.runtime import Pace
from pybroker.transaction.coordinator.coordinator import TransactionCoordinator

_BASE: Final = "/admin/v3/transactions/blocking"
_TOPIC: Final = "{tenant:segment}/{namespace:segment}/{topic:form}"
_TOPICS_A_TURN: Final = 100
_DESCRIBED_A_TURN: Final = 20
_MOST: Final = 1000
_UNLESS_SAID: Final = 100


class BlockingRoutes:
    def __init__(self, services: AdminServices) -> None:
        self._topics = services.topics
        self._coordinators = services.coordinators
        self._clock = services.clock

    def routes(self) -> list[DescribedRoute]:
        limit = {"limit": whole(1, _MOST)}
        return [
            route(
                "GET", _BASE, self.everywhere, shapes.BLOCKING, query=limit | {"namespace": TEXT}
            ),
            route("GET", f"{_BASE}/{_TOPIC}", self.on_topic, shapes.BLOCKED_TOPIC, query=limit),
        ]

    async def everywhere(self, request: Request) -> Stats:
        """Loaded topics with entries that cannot be read yet, each with the transaction that blocks
        it; topics with the most such entries first, ?limit=N of them. ?namespace=tenant/namespace
        selects one namespace.
        """
        return await self._worst(limit_of(request), asked(request, "namespace"))

    async def _worst(self, limit: int, namespace: str | None) -> Stats:
        now_ms, pace = self._clock.now_ms(), Pace(_TOPICS_A_TURN)
        found: list[Blocked] = []
        for topic in self._topics.loaded():
            await pace.step()
            wanted = topic.buffer.has_open and namespace in (None, topic.name.namespace_name)
            if wanted and (entries := blocked_entries(topic)):
                found.append(Blocked(entries, topic))
        worst = heapq.nlargest(limit, found, key=lambda blocked: blocked.entries)
        coordinators, pace, topics = self._served(), Pace(_DESCRIBED_A_TURN), []
        for _, topic in worst:
            await pace.step()
            for blocking in open_on(topic, 1, coordinators, now_ms):  # none if it has just ended
                topics.append(of_topic(topic) | {"blocking": blocking})
        return {
            "timestamp": now_ms,
            "blockedTopics": len(found),
            "blockedEntries": sum(blocked.entries for blocked in found),
            "topics": topics,
        }

    async def on_topic(self, request: Request) -> Stats:
        """The open transactions of a topic, ?limit=N of them, the blocking one first, and their
        effect on each subscription.
        """
        topic = await existing(self._topics, topic_of(request))
        limit = limit_of(request)
        now_ms, pace = self._clock.now_ms(), Pace(_DESCRIBED_A_TURN)
        subscriptions = {}
        for name, subscription in list(topic.subscriptions.items()):
            backlog = subscription.backlog
            parts = backlog_parts(subscription, topic, backlog)
            subscriptions[name] = {"msgBacklog": backlog, **parts}
            await pace.step()
        transactions = []
        for each in open_on(topic, limit, self._served(), now_ms):
            transactions.append(each)
            await pace.step()
        return {
            **of_topic(topic),
            "timestamp": now_ms,
            "transactions": transactions,
            "subscriptions": subscriptions,
        }

    def _served(self) -> dict[int, TransactionCoordinator]:
        return {each.coordinator_id: each for each in self._coordinators.served()}


def limit_of(request: Request) -> int:
    limit = number(request, "limit", _UNLESS_SAID)
    if not 1 <= limit <= _MOST:
        raise HTTPException(400, f"limit is {limit}; it must be 1 to {_MOST}")
    return limit
