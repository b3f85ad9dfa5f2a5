"""Manual compaction and its status."""

from typing import Any, Final

from starlette.requests import Request

from pybroker.admin.finding import each_part
from pybroker.admin.operation import DescribedRoute
from pybroker.admin.routing import TOPIC, route, topic_of
from pybroker.admin.services import AdminServices
from pybroker.admin.shapes.common import process_status
from pybroker.broker.compaction.compaction import Status

# Statuses by precedence: a partitioned topic has the first that any of its partitions has.
TELLING: Final = (Status.RUNNING, Status.ERROR, Status.NOT_RUN, Status.SUCCESS)


class CompactionRoutes:
    def __init__(self, services: AdminServices) -> None:
        self._topics = services.topics

    def routes(self) -> list[DescribedRoute]:
        return [
            route("PUT", f"{TOPIC}/compaction", self.compact, refuses=(409,)),
            route(
                "GET",
                f"{TOPIC}/compaction",
                self.status,
                process_status("LongRunningProcessStatus"),
            ),
        ]

    async def compact(self, request: Request) -> None:
        """Starts compaction, for a partitioned topic that of each partition; 409 if it is already
        running.
        """
        async for topic in each_part(self._topics, topic_of(request)):
            topic.compaction.start()

    async def status(self, request: Request) -> dict[str, Any]:
        """The status of compaction since the topic was loaded, as Apache Pulsar's
        LongRunningProcessStatus.
        """
        found = [
            (topic.compaction.status, topic.compaction.last_error)
            async for topic in each_part(self._topics, topic_of(request))
        ]
        status, error = min(found, key=lambda each: TELLING.index(each[0]))
        return {"status": status.value, "lastError": error}
