"""Scalable topics: list, create, delete, change, subscriptions, permissions, statistics."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request

from managed_ledger.errors import CorruptStorage
from pybroker.admin.finding import existing
from pybroker.admin.operation import MUCH_BYTES, Body, DescribedRoute, flags
from pybroker.admin.routes.permission import PermissionRoutes
from pybroker.admin.routes.property import topic_properties
from pybroker.admin.routes.stats import replayed
from pybroker.admin.routing import (
    SCALABLE_TOPIC,
    SCALABLE_TOPICS,
    asked,
    flag,
    namespace_of,
    number,
    read_json,
    repeated,
    route,
    topic_of,
)
from pybroker.admin.services import AdminServices
from pybroker.admin.shapes import scalable as shapes
from pybroker.admin.shapes.common import PROPERTIES_TAKEN, TEXTS
from pybroker.admin.shapes.policies import answers, body
from pybroker.admin.stats.rates import Rates
from pybroker.admin.stats.scalable import scalable_stats, segment_stats
from pybroker.admin.stats.topic import PARTS_A_TURN, Stats, topic_stats
from pybroker.base.json_schema import TEXT, choice, list_of, map_of, whole
from pybroker.base.names import TopicName
from pybroker.base.runtime import Pace
from pybroker.broker.brokers.ownership import check_owned
from pybroker.broker.policies.auto_scale import AUTO_SCALE
from pybroker.broker.policies.policy import Level
from pybroker.broker.scalable.migration import Migration
from pybroker.broker.scalable.record import (
    QUEUE,
    STREAM,
    SegmentRecord,
    of_segment,
    with_auto_scale,
)
from pybroker.broker.scalable.subscriptions import WholeSubscriptions
from pybroker.security.authorization import ACTIONS

_SUBSCRIPTION: Final = SCALABLE_TOPIC + "/subscriptions/{subscription:form}"
_POLICY: Final = SCALABLE_TOPIC + "/autoScalePolicy"
_LEVEL: Final = Level("autoScalePolicy", "autoScalePolicy")
_MOST: Final = 1000


class ScalableRoutes:
    def __init__(self, services: AdminServices) -> None:
        self._topics = services.topics
        self._services = services
        self._permissions = PermissionRoutes(services)
        self._rates = Rates(services.clock)

    def routes(self) -> list[DescribedRoute]:
        properties = Body(PROPERTIES_TAKEN, required=False, most_bytes=MUCH_BYTES)
        actions = list_of(choice(*ACTIONS), _MOST)
        permissions = f"{SCALABLE_TOPIC}/permissions"
        return [
            route("GET", SCALABLE_TOPICS, self.list_all, TEXTS, query={"property": TEXT}),
            route(
                "PUT",
                SCALABLE_TOPIC,
                self.create,
                body=properties,
                query={"numInitialSegments": whole(1)},
                refuses=(409,),
            ),
            route("GET", SCALABLE_TOPIC, self.get, shapes.METADATA),
            route("DELETE", SCALABLE_TOPIC, self.delete, query=flags("force")),
            route("POST", f"{SCALABLE_TOPIC}/split/{{segment:int}}", self.split, refuses=(409,)),
            route(
                "POST",
                f"{SCALABLE_TOPIC}/merge/{{segment:int}}/{{other:int}}",
                self.merge,
                refuses=(409,),
            ),
            route(
                "POST",
                f"{SCALABLE_TOPIC}/rebucket/{{segment:int}}",
                self.rebucket,
                query={"bucketCount": whole(1)},
                refuses=(409,),
            ),
            route(
                "POST",
                f"{SCALABLE_TOPIC}/migrate",
                self.migrate,
                query=flags("force"),
                refuses=(409,),
            ),
            route("GET", _POLICY, self.policy, answers(AUTO_SCALE, _LEVEL)),
            route("POST", _POLICY, self.set_policy, body=body(AUTO_SCALE, _LEVEL), refuses=(412,)),
            route("DELETE", _POLICY, self.remove_policy),
            route("GET", f"{SCALABLE_TOPIC}/stats", self.stats, shapes.STATS),
            route(
                "GET",
                f"{SCALABLE_TOPIC}/segments/{{segment:int}}/stats",
                self.segment_stats,
                shapes.SEGMENT_STATS,
            ),
            route(
                "PUT",
                _SUBSCRIPTION,
                self.create_subscription,
                query={"type": choice(STREAM, QUEUE)},
                refuses=(409,),
            ),
            route("DELETE", _SUBSCRIPTION, self.delete_subscription),
            route("POST", f"{_SUBSCRIPTION}/seek", self.seek, query={"timestamp": whole(0)}),
            route("POST", f"{_SUBSCRIPTION}/skip-all", self.skip_all),
            route("GET", permissions, self._permissions.of_topic, map_of(TEXTS, most=None)),
            route(
                "POST",
                f"{permissions}/{{role:segment}}",
                self._permissions.grant_on_topic,
                body=actions,
                refuses=(409, 501),
            ),
            route(
                "DELETE",
                f"{permissions}/{{role:segment}}",
                self._permissions.revoke_on_topic,
                refuses=(409,),
            ),
        ]

    # -- topics

    async def list_all(self, request: Request) -> list[str]:
        """The scalable topics of a namespace; with ?property=key=value, which may be repeated,
        those that have all these properties.
        """
        namespace = namespace_of(request)
        self._topics.tenants.check_namespace(namespace)
        wanted = [_property(text) for text in repeated(request, "property")]
        found = []
        for name in self._topics.tenants.scalable_topics(namespace):
            if not wanted or self._has(name, wanted):
                found.append(str(name))
        return found

    def _has(self, name: TopicName, wanted: Sequence[tuple[str, str]]) -> bool:
        record = None
        with suppress(CorruptStorage):  # of one record: the others are listed all the same
            record = self._topics.scalable.find(name)
        return record is not None and all(record.properties.get(k) == v for k, v in wanted)

    async def create(self, request: Request) -> None:
        """Creates a topic of ?numInitialSegments with equal ranges; the body has its properties."""
        properties = topic_properties(await read_json(request))
        segments = number(request, "numInitialSegments", 1)
        await self._topics.scalable.create(topic_of(request), segments, properties)

    async def get(self, request: Request) -> dict[str, Any]:
        """The topic's record: its segments, and how they come from each other."""
        return shapes.shown(self._topics.scalable.get(topic_of(request)))

    async def delete(self, request: Request) -> None:
        await self._topics.scalable.delete(topic_of(request), flag(request, "force"))

    async def split(self, request: Request) -> None:
        """Two halves take the place of an active segment."""
        await self._topics.scalable.split(topic_of(request), request.path_params["segment"])

    async def merge(self, request: Request) -> None:
        """One segment takes the place of two active neighbours."""
        one, other = request.path_params["segment"], request.path_params["other"]
        await self._topics.scalable.merge(topic_of(request), one, other)

    async def rebucket(self, request: Request) -> None:
        """A segment of the same range, with ?bucketCount entry buckets, takes the place of an
        active segment. So many stream consumers can share it.
        """
        if asked(request, "bucketCount") is None:
            raise HTTPException(400, "No number of entry buckets given: add ?bucketCount=…")
        buckets = number(request, "bucketCount", 1)
        segment = request.path_params["segment"]
        await self._topics.scalable.rebucket(topic_of(request), segment, buckets)

    async def migrate(self, request: Request) -> None:
        """Makes the ordinary topic of this name, partitioned or not, a scalable one. Clients of the
        V5 SDK go on; while others are connected, it needs ?force=true.
        """
        services, name = self._services, topic_of(request)
        scalable = self._topics.scalable
        migration = Migration(self._topics, scalable, services.metadata, services.clock)
        await migration.migrate(name, flag(request, "force"))

    # -- splits, merges and rebuckets by load

    async def policy(self, request: Request) -> Any:
        """What the topic has of its own, or nothing."""
        return dict(self._topics.scalable.get(topic_of(request)).auto_scale) or None

    async def set_policy(self, request: Request) -> None:
        """When segments are split, merged and rebucketed; what is left out is the namespace's."""
        await self._set_policy(request, AUTO_SCALE.check(await read_json(request)))

    async def remove_policy(self, request: Request) -> None:
        await self._set_policy(request, None)

    async def _set_policy(self, request: Request, policy: dict[str, Any] | None) -> None:
        name = topic_of(request)
        await self._topics.scalable.change(name, lambda now: with_auto_scale(now, policy))

    # -- statistics

    async def stats(self, request: Request) -> Stats:
        name = topic_of(request)
        check_owned(self._topics.ownership, name)
        record, pace = await self._topics.scalable.settled(name), Pace(PARTS_A_TURN)
        segments = {
            each.id: await self._segment(request, each, pace) for each in record.segments.values()
        }
        scalable = self._topics.scalable
        return scalable_stats(name, record, self._services.broker_id, scalable, segments)

    async def segment_stats(self, request: Request) -> Stats:
        name = topic_of(request)
        check_owned(self._topics.ownership, name)
        record = await self._topics.scalable.settled(name)
        segment = record.segment(request.path_params["segment"])
        return await self._segment(request, segment, Pace(PARTS_A_TURN))

    async def _segment(self, request: Request, segment: SegmentRecord, pace: Pace) -> Stats:
        topic = await existing(self._topics, of_segment(topic_of(request), segment))
        await replayed(topic)
        stats = await topic_stats(topic, self._rates, self._services.clock.now_ms(), pace)
        return segment_stats(segment, stats | {"ownerBroker": self._services.broker_id})

    # -- subscriptions

    async def create_subscription(self, request: Request) -> None:
        """Creates a subscription on all segments, at their end."""
        kind = asked(request, "type") or STREAM
        if kind not in (STREAM, QUEUE):
            raise HTTPException(400, f"type must be {STREAM} or {QUEUE}, not {kind[:50]!r}")
        await self._whole.create(topic_of(request), request.path_params["subscription"], kind)

    async def delete_subscription(self, request: Request) -> None:
        await self._whole.delete(topic_of(request), request.path_params["subscription"])

    async def seek(self, request: Request) -> None:
        """Moves the subscription to the first messages published at ?timestamp (ms) or later."""
        if asked(request, "timestamp") is None:
            raise HTTPException(400, "No time given: add ?timestamp=… in milliseconds")
        at_ms = number(request, "timestamp", 0)
        await self._whole.seek(topic_of(request), request.path_params["subscription"], at_ms)

    async def skip_all(self, request: Request) -> None:
        await self._whole.skip_all(topic_of(request), request.path_params["subscription"])

    @property
    def _whole(self) -> WholeSubscriptions:
        return WholeSubscriptions(self._topics, self._topics.scalable)


def _property(text: str) -> tuple[str, str]:
    """Splits `key=value`. Raises HTTPException (400) for another text."""
    key, separator, value = text.partition("=")
    if not separator:
        raise HTTPException(400, f"?property must be key=value, not {text[:200]!r}")
    return key, value
