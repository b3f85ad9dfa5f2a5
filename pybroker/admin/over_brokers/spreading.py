"""Wraps the handlers, which know only this broker, for routes that concern several brokers.

    a partitioned topic      parts.py: each partition's broker is asked
    a namespace, a bundle    namespaces.py: each bundle's broker is asked
    each broker's own data   everybody.py: every broker is asked, and the answers are joined

Every other route concerns one topic. Its handler raises NotServedHere, and the client is
redirected. A broker that asks another (ASKED_BY_A_BROKER) gets only the asked broker's own part.

What a client has just created or deleted at one broker, another learns a little later. So a refusal
because something is missing, or is there, is given only with up-to-date metadata, and a change to
all partitions of a topic is made only with it.
"""

from collections.abc import Iterable, Mapping
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from pybroker.admin.http.permitted import plain_path
from pybroker.admin.operation import DescribedRoute, Endpoint
from pybroker.admin.over_brokers.asking import DELETION, Asking, continues
from pybroker.admin.over_brokers.everybody import EverybodyRoutes, Whole
from pybroker.admin.over_brokers.namespaces import NamespaceRoutesOverBrokers
from pybroker.admin.over_brokers.parts import PartRoutes, Spread
from pybroker.admin.over_brokers.transaction_lists import TransactionLists
from pybroker.admin.routing import answered, is_forgotten, topic_of
from pybroker.admin.services import AdminServices
from pybroker.base.errors import PulsarError, TopicNotFound
from pybroker.broker.brokers.other_brokers import ASKED_BY_A_BROKER, Bundles, OtherBrokers

_NOT_FOUND, _CONFLICT = 404, 409


def over_brokers(
    services: AdminServices,
    brokers: OtherBrokers,
    bundles: Bundles,
    routes: Iterable[DescribedRoute],
) -> list[DescribedRoute]:
    routes = [_checked(services, route) for route in routes]
    asking = Asking(services.topics.ownership, bundles, brokers, routes)
    parts = PartRoutes(services.topics, asking)
    of_parts = parts.by_route()
    whole: Mapping[tuple[str, str], Whole] = {
        **(everybody := EverybodyRoutes(services, asking)).by_route(),
        **TransactionLists(services, everybody.all_of_them).by_route(),
        **NamespaceRoutesOverBrokers(services.topics, bundles, asking, parts).by_route(),
    }

    def spread(route: DescribedRoute) -> DescribedRoute:
        key = route.method, plain_path(route.path)
        if (of := of_parts.get(key)) is not None:
            return route.guarded_by(lambda own: _over_parts(services, route, own, of))
        if (work := whole.get(key)) is not None:
            return route.guarded_by(lambda own: _over_all(services, route, own, work))
        return route.guarded_by(lambda own: _up_to_date(services, own))

    return [spread(route).guarded_by(partial(_not_too_early, services)) for route in routes]


def _over_parts(
    services: AdminServices, route: DescribedRoute, own: Endpoint, spread: Spread
) -> Endpoint:
    tenants, own_part = services.topics.tenants, _up_to_date(services, own)

    async def endpoint(request: Request) -> Response:
        if ASKED_BY_A_BROKER in request.headers:
            return await own_part(request)
        if request.method not in ("GET", "DELETE"):  # `_not_too_early` refreshes for deletions
            await services.topics.ownership.refreshed()  # a change must reach all partitions
        name = topic_of(request)
        count = tenants.partitions(name) or tenants.doomed_partitions(name)
        if not count and continues(request):
            raise TopicNotFound(f"The deletion of {name} has been finished")
        if not count:
            return await own_part(request)
        route.operation.begin(request)
        return await answered(await spread(request, name, count))

    return endpoint


def _over_all(
    services: AdminServices, route: DescribedRoute, own: Endpoint, work: Whole
) -> Endpoint:
    own_part = _up_to_date(services, own)

    async def endpoint(request: Request) -> Response:
        if ASKED_BY_A_BROKER in request.headers:
            return await own_part(request)
        route.operation.begin(request)
        return await answered(await work(request, own))

    return endpoint


def _not_too_early(services: AdminServices, whole: Endpoint) -> Endpoint:
    """Repeats a client's request that finds something missing, or there, with up-to-date metadata.
    A deletion is not repeated, because it may have begun: it needs up-to-date metadata first.
    """

    async def endpoint(request: Request) -> Response:
        if ASKED_BY_A_BROKER in request.headers:
            return await whole(request)
        if request.method != "DELETE":
            try:
                return await whole(request)
            except PulsarError as error:
                if error.http_status not in (_NOT_FOUND, _CONFLICT) or is_forgotten(request):
                    raise
        await services.topics.ownership.refreshed()
        return await whole(request)

    return endpoint


def _up_to_date(services: AdminServices, own: Endpoint) -> Endpoint:
    """Refreshes this broker's metadata before another broker's change, and when another broker's
    GET finds nothing. The asking broker may have just written what this one must know, such as that
    a topic is being deleted, or has more partitions.
    """
    ownership = services.topics.ownership

    async def endpoint(request: Request) -> Response:
        if ASKED_BY_A_BROKER not in request.headers:
            return await own(request)
        if request.method != "GET":
            await ownership.refreshed()
            return await own(request)
        try:
            return await own(request)
        except PulsarError as error:
            if error.http_status != _NOT_FOUND:
                raise
        await ownership.refreshed()
        return await own(request)

    return endpoint


def _checked(services: AdminServices, route: DescribedRoute) -> DescribedRoute:
    """Checks a deletion that is part of a larger one. The asking broker may have been slow, and
    another may have finished the deletion: topics that have the names now must stay.
    """
    if (route.method, plain_path(route.path)) != DELETION:
        return route
    topics = services.topics

    def checked(own: Endpoint) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            if continues(request):
                await topics.ownership.refreshed()
                if not topics.tenants.is_doomed(name := topic_of(request)):
                    raise TopicNotFound(f"Another request has finished the deletion of {name}")
            return await own(request)

        return endpoint

    return route.guarded_by(checked)
