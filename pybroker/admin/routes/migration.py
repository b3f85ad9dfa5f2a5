"""What brokers ask each other when an ordinary topic is made scalable."""

from typing import Any, Final

from starlette.requests import Request

from pybroker.admin.operation import DescribedRoute
from pybroker.admin.routing import route, topic_of
from pybroker.admin.services import AdminServices
from pybroker.admin.shapes import migration as shapes
from pybroker.base.names import SCALABLE, TopicName
from pybroker.broker.brokers.bundle_release import release_parts

_MIGRATION: Final = "/admin/v3/migrations/{tenant:segment}/{namespace:segment}/{topic:form}"


class MigrationRoutes:
    def __init__(self, services: AdminServices) -> None:
        self._topics = services.topics
        self._ledgers = services.ledgers

    def routes(self) -> list[DescribedRoute]:
        return [
            route("GET", _MIGRATION, self.clients, shapes.CLIENTS),
            route("PUT", _MIGRATION, self.leave),
        ]

    async def clients(self, request: Request) -> dict[str, Any]:
        """The clients of an ordinary topic, on this broker, that may keep it from being made
        scalable, and its stream consumers.
        """
        return self._topics.scalable.parts.attached(_scalable(request)).json()

    async def leave(self, request: Request) -> None:
        """Unloads what this broker still has of an ordinary topic that was made scalable, and is
        served by another one now. Idempotent.
        """
        await release_parts(self._topics, self._ledgers, _scalable(request))


def _scalable(request: Request) -> TopicName:
    return topic_of(request)._replace(domain=SCALABLE)
