"""Topics' stored data: sizes, ledgers, trimming.

Nothing is offloaded: the answers are those of Apache Pulsar without an offloader.
"""

from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request

from managed_ledger.position import Position
from pybroker.admin.finding import each_part, single
from pybroker.admin.operation import Body, DescribedRoute
from pybroker.admin.routing import TOPIC, message_id, read_json, route, topic_of
from pybroker.admin.services import AdminServices
from pybroker.admin.shapes import ledgers
from pybroker.admin.shapes.common import A_MESSAGE_ID, process_status
from pybroker.admin.stats.topic import size_of
from pybroker.base.errors import SubscriptionNotFound
from pybroker.base.json_schema import COUNT, any_of
from pybroker.base.runtime import iso_time
from pybroker.broker.persistent.topic import Topic
from pybroker.broker.persistent.truncation import truncate
from pybroker.broker.subscriptions.subscription import Subscription
from pybroker.broker.subscriptions.waiting_entries import waiting

_SUBSCRIPTION: Final = TOPIC + "/subscription/{subscription:form}"
_MOST_ANALYZED: Final = 10_000  # entries
_READ: Final = 1000
_READ_BYTES: Final = 4 * 1024 * 1024


class StorageRoutes:
    def __init__(self, services: AdminServices) -> None:
        self._topics = services.topics
        self._clock = services.clock
        self._broker_id = services.broker_id

    def routes(self) -> list[DescribedRoute]:
        return [
            route(
                "PUT",
                f"{TOPIC}/backlogSize",
                self.backlog_size,
                COUNT,
                body=A_MESSAGE_ID,
                changes=False,
            ),
            route("GET", f"{TOPIC}/backlog", self.backlog, ledgers.BACKLOG),
            route(
                "POST",
                f"{_SUBSCRIPTION}/analyzeBacklog",
                self.analyze,
                ledgers.ANALYZED,
                body=Body(A_MESSAGE_ID, required=False),
            ),
            route(
                "GET",
                f"{TOPIC}/internal-info",
                self.internal_info,
                any_of(ledgers.INFO, ledgers.PARTITIONED_INFO),
            ),
            route("POST", f"{TOPIC}/trim", self.trim, refuses=(409,)),
            route("DELETE", f"{TOPIC}/truncate", self.truncate, refuses=(409,)),
            route(
                "GET",
                f"{TOPIC}/offload",
                self.offload_status,
                process_status("OffloadProcessStatus", "firstUnoffloadedMessage"),
            ),
            route("PUT", f"{TOPIC}/offload", self.offload, body=Body(A_MESSAGE_ID, required=False)),
        ]

    async def backlog_size(self, request: Request) -> int:
        """Estimated bytes from a message id, {ledgerId, entryId}, to the topic's end."""
        topic = await single(self._topics, topic_of(request), "ask for")
        first = message_id(await read_json(request))
        before = topic.ledger.previous_position(first)
        return size_of(topic.ledger.count_between(before, topic.ledger.last_confirmed), topic)

    async def backlog(self, request: Request) -> dict[str, Any]:
        """Backlogs by subscription, without connected clients, as PersistentOfflineTopicStats."""
        topic = await single(self._topics, topic_of(request), "ask for")
        entries = sum(info.entries for info in topic.ledger.ledgers())
        backlogs = {name: found.backlog for name, found in topic.subscriptions.items()}
        return {
            "storageSize": topic.ledger.total_size_bytes,
            "totalMessages": entries,
            "messageBacklog": sum(backlogs.values()),
            "averageMsgSize": topic.ledger.total_size_bytes / max(entries, 1),
            "topicName": topic.name.ledger_name,
            "brokerName": self._broker_id,
            "dataLedgerDetails": _managed_ledger_info(topic)["ledgers"],
            "cursorDetails": {name: {"cursorBacklog": count} for name, count in backlogs.items()},
            "statGeneratedAt": iso_time(self._clock.now_ms()),
        }

    async def analyze(self, request: Request) -> dict[str, Any]:
        """Counts the messages of a backlog by reading them, from {ledgerId, entryId} if the body
        names a position.

        At most the first 10,000 entries are read; then `aborted` is true.
        """
        topic = await single(self._topics, topic_of(request), "analyze")
        name = request.path_params["subscription"]
        if (subscription := topic.subscriptions.get(name)) is None:
            raise SubscriptionNotFound(f"{topic.name} has no subscription {name}")
        body, mark = await read_json(request), subscription.cursor.mark_delete_position
        after = topic.ledger.previous_position(message_id(body)) if body else mark
        return await _analyzed(topic, subscription, max(after, mark))

    async def internal_info(self, request: Request) -> dict[str, Any]:
        """Apache Pulsar's ManagedLedgerInfo; for a partitioned topic, one for each partition."""
        name = topic_of(request)
        infos = {
            str(topic.name): _managed_ledger_info(topic)
            async for topic in each_part(self._topics, name)
        }
        return infos.get(str(name)) or {"version": 0, "partitions": infos}

    async def trim(self, request: Request) -> None:
        """Deletes ledgers that retention no longer keeps, now instead of at the next check."""
        async for topic in each_part(self._topics, topic_of(request)):
            await topic.ledger.trim()

    async def truncate(self, request: Request) -> None:
        """Acknowledges everything for every subscription and deletes it regardless of retention;
        messages of open transactions remain.
        """
        async for topic in each_part(self._topics, topic_of(request)):
            await truncate(topic)

    async def offload_status(self, request: Request) -> dict[str, Any]:
        await single(self._topics, topic_of(request), "ask for")
        return {"status": "NOT_RUN", "lastError": "", "firstUnoffloadedMessage": None}

    async def offload(self, request: Request) -> None:
        await single(self._topics, topic_of(request), "offload")
        raise HTTPException(412, "Offloading is not supported: ledgers stay on this broker's disk")


async def _analyzed(topic: Topic, subscription: Subscription, after: Position) -> dict[str, Any]:
    entries = messages = 0
    first = last = None
    for ledger_id, (start, end) in waiting(topic.ledger, subscription.cursor, topic.hidden, after):
        while start <= end and entries < _MOST_ANALYZED:
            up_to = Position(ledger_id, min(end, start + _READ - 1))
            run = await topic.ledger.read(Position(ledger_id, start), up_to, _READ, _READ_BYTES)
            if run is None or run.ledger_id != ledger_id:
                break  # trimmed in the meantime
            entries += len(run.entries)
            messages += sum(run.message_counts)
            start = run.first_entry_id + len(run.entries)
            first = first or Position(ledger_id, run.first_entry_id)
            last = Position(ledger_id, start - 1)
    filters = {f"filter{how}Entries": 0 for how in ("Rejected", "Rescheduled")}
    filters |= {f"filter{how}Messages": 0 for how in ("Rejected", "Rescheduled")}
    return {
        "entries": entries,
        "messages": messages,
        "filterAcceptedEntries": entries,
        "filterAcceptedMessages": messages,
        **filters,
        "aborted": entries >= _MOST_ANALYZED,
        "firstMessageId": None if first is None else str(first),
        "lastMessageId": None if last is None else str(last),
    }


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
