"""What topics have stored: how much, in which ledgers, and letting go of it.

Nothing is offloaded here: what Apache Pulsar answers where no offloader is configured.
"""

from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import Route

from managed_ledger.trim import Retention
from pybroker.admin.finding import each_part, single
from pybroker.admin.routing import TOPIC, message_id, read_json, route, topic_of
from pybroker.admin.services import AdminServices
from pybroker.admin.topic_stats import iso_time, size_of
from pybroker.broker.topic import Topic

_NOTHING_KEPT: Final = Retention()


class StorageRoutes:
    def __init__(self, services: AdminServices) -> None:
        self._topics = services.topics

    def routes(self) -> list[Route]:
        return [
            route("PUT", f"{TOPIC}/backlogSize", self.backlog_size),
            route("GET", f"{TOPIC}/internal-info", self.internal_info),
            route("POST", f"{TOPIC}/trim", self.trim),
            route("DELETE", f"{TOPIC}/truncate", self.truncate),
            route("GET", f"{TOPIC}/offload", self.offload_status),
            route("PUT", f"{TOPIC}/offload", self.offload),
        ]

    async def backlog_size(self, request: Request) -> int:
        """Bytes from a message id, {ledgerId, entryId}, to the end: of entries of average size."""
        topic = await single(self._topics, topic_of(request), "ask for")
        first = message_id(await read_json(request))
        before = topic.ledger.previous_position(first)
        return size_of(topic.ledger.count_between(before, topic.ledger.last_confirmed), topic)

    async def internal_info(self, request: Request) -> dict[str, Any]:
        """Apache Pulsar's ManagedLedgerInfo; of a partitioned topic, by partition."""
        name = topic_of(request)
        infos = {
            str(topic.name): _managed_ledger_info(topic)
            async for topic in each_part(self._topics, name)
        }
        return infos.get(str(name)) or {"version": 0, "partitions": infos}

    async def trim(self, request: Request) -> None:
        """Deletes the ledgers that retention releases, now instead of soon."""
        async for topic in each_part(self._topics, topic_of(request)):
            await topic.ledger.trim()

    async def truncate(self, request: Request) -> None:
        """Acknowledges everything for every subscription and deletes it, whatever retention says;
        messages of open transactions are still to come.
        """
        async for topic in each_part(self._topics, topic_of(request)):
            for subscription in list(topic.subscriptions.values()):
                await subscription.skip_all()
            await topic.ledger.roll_over()
            await topic.ledger.trim(_NOTHING_KEPT)

    async def offload_status(self, request: Request) -> dict[str, Any]:
        await single(self._topics, topic_of(request), "ask for")
        return {"status": "NOT_RUN", "lastError": "", "firstUnoffloadedMessage": None}

    async def offload(self, request: Request) -> None:
        await single(self._topics, topic_of(request), "offload")
        raise HTTPException(412, "There is no offloader here: ledgers stay on this broker's disk")


def _managed_ledger_info(topic: Topic) -> dict[str, Any]:
    cursors = {
        name: {
            "version": 0,
            "cursorsLedgerId": -1,
            "markDelete": _position(subscription.cursor.mark_delete_position),
        }
        for name, subscription in topic.subscriptions.items()
        if subscription.durable
    }
    return {
        "version": 0,
        "creationDate": iso_time(topic.ledger.created_at_ms),
        "modificationDate": iso_time(topic.published_at_ms or topic.ledger.created_at_ms),
        "ledgers": [
            {
                "ledgerId": info.ledger_id,
                "entries": info.entries,
                "size": info.size_bytes,
                "timestamp": info.closed_at_ms or 0,
                "isOffloaded": False,
            }
            for info in topic.ledger.ledgers()
        ],
        "cursors": cursors,
    }


def _position(position: tuple[int, int]) -> dict[str, int]:
    return {"ledgerId": position[0], "entryId": position[1]}
