"""Operations on all topics of a namespace or of a bundle: backlogs, subscriptions, unload, split.

Without other brokers a namespace has a single bundle. In a cluster the bundle's broker executes
them; `over_brokers` sends an operation on a namespace to the brokers of its bundles.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any, ClassVar, Final
from urllib.parse import quote

from starlette.convertors import register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import Request

from pybroker.admin.finding import unload_all
from pybroker.admin.operation import Body, DescribedRoute, PartConvertor, flags
from pybroker.admin.routing import NAMESPACE, TOPICS, asked, flag, namespace_of, read_json, route
from pybroker.admin.services import AdminServices
from pybroker.admin.shapes.common import TEXTS
from pybroker.admin.shapes.policies import BUNDLES
from pybroker.base.errors import ServiceNotReady
from pybroker.base.json_schema import COUNT, TEXT, Schema, fields, list_of, map_of, record
from pybroker.base.names import TopicName
from pybroker.broker.brokers.bundle_sizes import middle, place_to_split
from pybroker.broker.brokers.other_brokers import BundleOfAnotherBroker, Bundles, OtherBrokers
from pybroker.broker.brokers.ownership import LAST_HASH, BrokerAddress, Bundle, hash_of
from pybroker.broker.namespaces.tenants import Conflict
from pybroker.broker.persistent.topic import Topic

_BUNDLE: Final = NAMESPACE + "/{bundle:bundle}"
_ATTEMPTS: Final = 20
_PAUSE_S: Final = 0.25
_NOT_YET: Final = (307, 503)
_URLS: Final = ("brokerUrl", "brokerUrlTls", "httpUrl", "httpUrlTls")
_SAID: Final = 10  # bundles listed in an error
_MOST_PLACES: Final = 32
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
        self._services = services
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
            route(
                "POST",
                f"{_BUNDLE}/clearSubscriptionBacklog/{_SUBSCRIPTION}",
                self.clear_backlog,
            ),
            *(
                route("POST", f"{path}/unsubscribe/{_SUBSCRIPTION}", self.unsubscribe)
                for path in both
            ),
            route("PUT", f"{NAMESPACE}/unload", self.unload),
            route(
                "PUT",
                f"{_BUNDLE}/unload",
                self.unload_bundle,
                query={"destinationBroker": TEXT},
                refuses=(409, 412),
            ),
            route(
                "PUT",
                f"{_BUNDLE}/split",
                self.split,
                query={
                    **flags("unload"),
                    "splitAlgorithmName": TEXT,
                },
                body=Body(list_of(COUNT), required=False),
                refuses=(409,),
            ),
            route("DELETE", _BUNDLE, self.delete, refuses=(409,)),
            # For anything but a bundle, this is the path of a topic, which has no GET.
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
        namespace = namespace_of(request)
        self._tenants.check_namespace(namespace)
        return await shown_bundles(self._services, namespace)

    async def clear_backlog(self, request: Request) -> None:
        """Clears the backlog of one subscription name, or of all; messages of open transactions
        remain.

        Topics are loaded one after the other.
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

    async def unload_bundle(self, request: Request) -> None:
        """Closes the bundle's topics. In a cluster any broker may take the bundle then; with
        ?destinationBroker=host:port that broker takes it, or the answer is 409.
        """
        bundle = await self._bundle(request)
        destination = asked(request, "destinationBroker") or ""
        bundles, brokers = self._services.bundles, self._services.brokers
        if bundles is None or brokers is None:
            if destination:
                raise HTTPException(412, f"{destination} is not in this cluster of one broker")
            await unload_all(self._topics, bundle.namespace)
            return
        address = brokers.others().get(destination)
        if destination == self._services.broker_id:
            return  # it serves the bundle
        if destination and address is None:
            names = ", ".join([self._services.broker_id, *brokers.others()])
            raise HTTPException(
                412, f"Broker {destination} is not in the cluster: name one of {names}"
            )
        target = f"/admin/v2/persistent/{bundle}?authoritative=true"
        if brokers.is_foreign(destination):
            target = _lookup_of(bundle, await self._names(request), destination)
        await bundles.release(bundle, destination)
        if address is not None:
            try:
                await _taken_by(address, target, bundle, bundles, brokers)
            except (Conflict, ServiceNotReady) as why:
                bundles.withdraw(bundle, destination)
                raise HTTPException(
                    409,
                    f"{bundle} was unloaded, but {destination} did not take it: {why}. Lookups "
                    "choose its broker now; to move it, repeat the command",
                ) from why

    async def split(self, request: Request) -> None:
        """Divides a bundle at the hashes in the body. By default it is divided in two, with half of
        its topics on each side, or with ?splitAlgorithmName=range_equally_divide in the middle of
        its range. Its topics stay open, unless ?unload=true.
        """
        bundle = await self._bundle(request)
        bundles = self._services.bundles
        if bundles is None:
            raise HTTPException(
                412,
                "Bundles cannot be split: there is one broker, so each namespace has one bundle",
            )
        parts = [bundle]
        for at in await self._places_to_split(request, bundle):
            rest = parts.pop()
            await bundles.split(rest, at)
            parts += (rest._replace(high=at), rest._replace(low=at))
        if flag(request, "unload"):
            for part in parts:
                await bundles.release(part)

    async def _places_to_split(self, request: Request, bundle: Bundle) -> list[int]:
        """The hashes at which to split, in ascending order. Raises HTTPException."""
        if said := await read_json(request):
            places = sorted(set(said))
        elif asked(request, "splitAlgorithmName") == "range_equally_divide":
            places = [middle(bundle)]
        else:
            names = await self._names(request)
            places = [place_to_split(bundle, [hash_of(self._place_of(name)) for name in names])]
        if not all(bundle.low < at < bundle.high for at in places) or len(places) > _MOST_PLACES:
            raise HTTPException(
                412,
                f"{bundle.range} cannot be split there: name up to {_MOST_PLACES} hashes inside "
                "of it, as numbers",
            )
        return places

    async def delete(self, request: Request) -> None:
        if names := await self._names(request):
            raise Conflict(f"{self._namespace(request)} has {len(names)} topics; delete them first")

    async def topics(self, request: Request) -> list[str]:
        """The bundle's topics of one domain."""
        domain = f"{request.path_params['domain']}://"
        return [name for name in await self._names(request) if name.startswith(domain)]

    async def hash_positions(self, request: Request) -> dict[str, Any]:
        """Hash positions of the bundle's topics: of ?topics=a,b, or all."""
        bundle = await self._bundle(request)
        wanted = set((asked(request, "topics") or "").split(",")) - {""}
        positions = {
            name: hash_of(self._place_of(name))
            for name in await self._names(request)
            if not wanted or name in wanted
        }
        return {
            "namespace": bundle.namespace,
            "bundle": bundle.range,
            "topicHashPositions": positions,
        }

    def _place_of(self, name: str) -> TopicName:
        return self._topics.place_of(TopicName.parse(name))

    def _namespace(self, request: Request) -> str:
        namespace = namespace_of(request)
        self._tenants.check_namespace(namespace)
        return namespace

    async def _bundle(self, request: Request) -> Bundle:
        """The bundle in the path, or the whole namespace. Raises HTTPException, BundleElsewhere."""
        namespace, bundles = self._namespace(request), self._services.bundles
        whole = Bundle(namespace, 0, LAST_HASH)
        if (named := request.path_params.get("bundle")) is None:
            return whole
        there = (whole,) if bundles is None else await bundles.of_namespace(namespace)
        found = _of_range(named, there)
        if found is None and bundles is not None:  # perhaps another broker has just split one
            there = await bundles.current(namespace) or there
            found = _of_range(named, there)
        if found is None:
            ranges = ", ".join(each.range for each in there[:_SAID])
            more = f" and {len(there) - _SAID} more" if len(there) > _SAID else ""
            raise HTTPException(404, f"{namespace} has no bundle {named}: it has {ranges}{more}")
        if bundles is not None and not bundles.owns_bundle(found):
            raise BundleOfAnotherBroker(found)
        return found

    async def _names(self, request: Request) -> list[str]:
        bundle = await self._bundle(request)
        names = (await self._topics.lists.get(bundle.namespace)).names
        return [name for name in names if bundle.holds(self._place_of(name))]

    async def _each_topic(self, request: Request) -> AsyncIterator[Topic]:
        for name in map(TopicName.parse, await self._names(request)):
            if not name.persistent:
                continue  # it has no stored subscription and no backlog
            topic = await self._topics.get(name)
            if topic is not None:  # None: deleted in the meantime
                yield topic


def _of_range(named: str, bundles: Iterable[Bundle]) -> Bundle | None:
    return next((each for each in bundles if each.range == named), None)


async def _taken_by(
    address: BrokerAddress, target: str, bundle: Bundle, bundles: Bundles, brokers: OtherBrokers
) -> None:
    """Returns when the broker at `address` has taken the bundle, which this broker has given back.
    `target` is the request that makes it take the bundle. Raises Conflict or ServiceNotReady if it
    has not, as far as this broker knows.
    """
    for attempt in range(_ATTEMPTS):
        if attempt > 1:  # it may answer the first with a redirect to itself
            await asyncio.sleep(_PAUSE_S)  # it may not know yet that the bundle is free
        reply = await brokers.ask(address, "GET", target)
        if reply.is_done and _has_taken(address, reply.json()):
            return
        owner = bundles.remote_owner(bundle)
        if owner is not None and not _is_same(owner, address):
            raise Conflict(f"{owner.broker_url or owner.broker_url_tls} took it first")
        if not reply.is_done and reply.status not in _NOT_YET:
            break
    raise Conflict(f"it answered {reply.status}")


def _lookup_of(bundle: Bundle, names: list[str], destination: str) -> str:
    """A lookup of one of the bundle's topics, which makes a broker of Apache Pulsar take the
    bundle. Raises HTTPException if it has no topics.
    """
    if not names:
        raise HTTPException(
            412,
            f"{bundle} has no topics, so {destination} cannot be told to take it: brokers of "
            "Apache Pulsar take a bundle with the lookup of one of its topics",
        )
    name = TopicName.parse(names[0])
    path = f"{name.domain}/{name.namespace_name}/{quote(name.local, safe='')}"
    return f"/lookup/v2/topic/{path}?authoritative=true"


def _has_taken(address: BrokerAddress, found: Any) -> bool:
    """`found` is the answer: the bundle's topics, or that to a lookup, which may name another
    broker.
    """
    if not isinstance(found, dict):
        return True
    return _is_same([found.get(name) or "" for name in _URLS], address)


def _is_same(one: Iterable[str], other: Iterable[str]) -> bool:
    """Whether two addresses share a URL."""
    return not (set(one) - {""}).isdisjoint(other)


async def shown_bundles(services: AdminServices, namespace: str) -> dict[str, Any]:
    """The namespace's bundles as Apache Pulsar's BundlesData."""
    bounds = [0, LAST_HASH]
    if services.bundles is not None:
        bounds = [0, *(each.high for each in await services.bundles.of_namespace(namespace))]
    return {"boundaries": [f"0x{each:08x}" for each in bounds], "numBundles": len(bounds) - 1}
