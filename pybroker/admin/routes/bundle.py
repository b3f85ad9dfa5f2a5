"""Operations on all topics of a namespace: backlogs, subscriptions; and its single bundle.

Operations on a bundle apply to the whole namespace.
"""

import zlib
from collections.abc import AsyncIterator
from typing import Any, ClassVar, Final, NoReturn

from starlette.convertors import register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import Request

from pybroker.admin.finding import unload_all
from pybroker.admin.operation import DescribedRoute, PartConvertor
from pybroker.admin.routing import NAMESPACE, TOPICS, asked, namespace_of, route
from pybroker.admin.services import AdminServices
from pybroker.admin.shapes.common import TEXTS
from pybroker.admin.shapes.policies import BUNDLES
from pybroker.base.json_schema import COUNT, TEXT, Schema, fields, map_of, record
from pybroker.base.names import TopicName
from pybroker.broker.tenants import Conflict
from pybroker.broker.topic import Topic

_WHOLE: Final = "0x00000000_0xffffffff"
_BUNDLE: Final = NAMESPACE + "/{bundle:bundle}"
_SUBSCRIPTION: Final = "{subscription:segment}"


class BundleConvertor(PartConvertor[str]):
    regex = "0x[0-9a-fA-F]{8}_0x[0-9a-fA-F]{8}"
    schema: ClassVar[Schema] = {"type": "string", "pattern": f"^{regex}$"}

    def convert(self, value: str) -> str:
        return value.lower()

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("bundle", BundleConvertor())


class BundleRoutes:
    def __init__(self, services: AdminServices) -> None:
        self._topics = services.topics
        self._tenants = services.topics.tenants

    def routes(self) -> list[DescribedRoute]:
        both = (NAMESPACE, _BUNDLE)
        positions = record(
            "TopicHashPositions",
            {
                **fields(TEXT, "namespace bundle"),
                "topicHashPositions": map_of(COUNT, most=None),
            },
        )
        return [
            route("GET", f"{NAMESPACE}/bundles", self.bundles, BUNDLES),
            *(route("POST", f"{path}/clearBacklog", self.clear_backlog) for path in both),
            *(
                route("POST", f"{path}/clearBacklog/{_SUBSCRIPTION}", self.clear_backlog)
                for path in both
            ),
            *(
                route("POST", f"{path}/unsubscribe/{_SUBSCRIPTION}", self.unsubscribe)
                for path in both
            ),
            *(route("PUT", f"{path}/unload", self.unload) for path in both),
            route("PUT", f"{_BUNDLE}/split", self.split, refuses=(409,)),
            route("DELETE", _BUNDLE, self.delete, refuses=(409,)),
            # For anything but a bundle this is a topic's path, which has no GET.
            route("GET", f"{TOPICS}/{{bundle:bundle}}", self.topics, TEXTS, refuses=(405,)),
            route(
                "GET",
                f"{_BUNDLE}/topicHashPositions",
                self.hash_positions,
                positions,
                query={"topics": TEXT},
            ),
        ]

    async def bundles(self, request: Request) -> dict[str, Any]:
        self._namespace(request)
        return {"boundaries": _WHOLE.split("_"), "numBundles": 1}

    async def clear_backlog(self, request: Request) -> None:
        """Clears the backlog of one subscription name, or of all; messages of open transactions
        remain.

        Topics are loaded for this one after the other.
        """
        name = request.path_params.get("subscription")
        async for topic in self._each_topic(request):
            for subscription in topic.each_subscription():
                if name in (None, subscription.name):
                    await subscription.skip_all()

    async def unsubscribe(self, request: Request) -> None:
        """Deletes the subscription on every topic, unless it has connected consumers."""
        name = request.path_params["subscription"]
        async for topic in self._each_topic(request):
            if (found := topic.subscriptions.get(name)) is not None:
                if found.consumers:
                    raise HTTPException(412, f"{found} has connected consumers; close them first")
                await topic.delete_subscription(name)

    async def unload(self, request: Request) -> None:
        await unload_all(self._topics, self._namespace(request))

    async def split(self, request: Request) -> NoReturn:
        self._namespace(request)
        raise HTTPException(
            412, "Bundles cannot be split: there is one broker, so each namespace has one bundle"
        )

    async def delete(self, request: Request) -> None:
        if names := await self._names(request):
            raise Conflict(f"{self._namespace(request)} has {len(names)} topics; delete them first")

    async def topics(self, request: Request) -> list[str]:
        """All topics of one domain: there is only one bundle."""
        domain = f"{request.path_params['domain']}://"
        return [name for name in await self._names(request) if name.startswith(domain)]

    async def hash_positions(self, request: Request) -> dict[str, Any]:
        """The hash positions of topics in the bundle: of ?topics=a,b, or all."""
        wanted = set((asked(request, "topics") or "").split(",")) - {""}
        positions = {
            name: zlib.crc32(name.encode())
            for name in await self._names(request)
            if not wanted or name in wanted
        }
        namespace = self._namespace(request)
        return {"namespace": namespace, "bundle": _WHOLE, "topicHashPositions": positions}

    def _namespace(self, request: Request) -> str:
        """Raises NotFound, also for any other bundle."""
        namespace = namespace_of(request)
        self._tenants.check_namespace(namespace)
        if request.path_params.get("bundle", _WHOLE) != _WHOLE:
            raise HTTPException(404, f"{namespace} has one bundle: {_WHOLE}")
        return namespace

    async def _names(self, request: Request) -> list[str]:
        return list((await self._topics.lists.get(self._namespace(request))).names)

    async def _each_topic(self, request: Request) -> AsyncIterator[Topic]:
        for name in map(TopicName.parse, await self._names(request)):
            if not name.persistent:
                continue  # has no stored subscription and no backlog
            topic = await self._topics.get(name)
            if topic is not None:  # not deleted in the meantime
                yield topic
