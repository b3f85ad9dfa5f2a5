"""The admin API as one ASGI application. Only this module turns errors into responses."""

import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp

from managed_ledger.errors import CorruptStorage, ManagedLedgerError
from pybroker.admin.http.audited import Audited
from pybroker.admin.http.authenticated import WITHIN, Authenticated, Known
from pybroker.admin.http.guard import Guard
from pybroker.admin.http.permitted import identity_of, permitted, target_of
from pybroker.admin.http.unsaid_bodies import UnsaidBodies
from pybroker.admin.operation import DescribedRoute
from pybroker.admin.routes.blocking import BlockingRoutes
from pybroker.admin.routes.bookie import BookieRoutes
from pybroker.admin.routes.broker import BrokerRoutes
from pybroker.admin.routes.broker_stats import BrokerStatsRoutes
from pybroker.admin.routes.bundle import BundleRoutes
from pybroker.admin.routes.cluster import ClusterRoutes
from pybroker.admin.routes.compaction import CompactionRoutes
from pybroker.admin.routes.description import DescriptionRoutes
from pybroker.admin.routes.fault import FaultRoutes
from pybroker.admin.routes.group import GroupRoutes
from pybroker.admin.routes.inspection import InspectionRoutes
from pybroker.admin.routes.kafka import KafkaRoutes
from pybroker.admin.routes.live_transaction import LiveTransactionRoutes
from pybroker.admin.routes.lookup import LookupRoutes
from pybroker.admin.routes.message import MessageRoutes
from pybroker.admin.routes.metrics import MetricsRoutes
from pybroker.admin.routes.migration import MigrationRoutes
from pybroker.admin.routes.namespace import NamespaceRoutes
from pybroker.admin.routes.permission import PermissionRoutes
from pybroker.admin.routes.policy import PolicyRoutes
from pybroker.admin.routes.produce import ProduceRoutes
from pybroker.admin.routes.property import PropertyRoutes
from pybroker.admin.routes.quota import QuotaRoutes
from pybroker.admin.routes.receiving import ReceivingRoutes
from pybroker.admin.routes.resource import ResourceRoutes
from pybroker.admin.routes.scalable import ScalableRoutes
from pybroker.admin.routes.schema import SchemaRoutes
from pybroker.admin.routes.segment import SegmentRoutes
from pybroker.admin.routes.stats import StatsRoutes
from pybroker.admin.routes.storage import StorageRoutes
from pybroker.admin.routes.subscription import SubscriptionRoutes
from pybroker.admin.routes.tenant import TenantRoutes
from pybroker.admin.routes.topic import TopicRoutes
from pybroker.admin.routes.transacting import TransactingRoutes
from pybroker.admin.routes.transaction import TransactionRoutes
from pybroker.admin.routes.transactional_id import TransactionalIdRoutes
from pybroker.admin.routes.websocket import WebSocketRoutes
from pybroker.admin.routing import BODY
from pybroker.admin.services import AdminServices
from pybroker.admin.shapes.common import refusal
from pybroker.base.errors import PulsarError, ServiceNotReady
from pybroker.base.names import COORDINATOR_ASSIGN
from pybroker.broker.brokers.other_brokers import (
    ASKED_BY_A_BROKER,
    BundleOfAnotherBroker,
    Bundles,
    OtherBrokers,
)
from pybroker.broker.brokers.ownership import (
    BeingReleased,
    BrokerAddress,
    NotServedHere,
    OtherOwner,
)
from pybroker.security.authorization import Need

log = logging.getLogger(__name__)

_ATTEMPTS: Final = 3
_REDIRECT: Final = 307
_AUTHORITATIVE: Final = "authoritative"  # a broker has sent the client here (Apache Pulsar's name)

# Puts an application in front of the API. Receives the whole API, the API for requests that are
# already authenticated, and the services.
Front = Callable[[ASGIApp, ASGIApp, AdminServices], ASGIApp]

AREAS = (
    InspectionRoutes,  # before routes with a variable in the same place
    BrokerRoutes,
    BrokerStatsRoutes,
    BookieRoutes,
    ClusterRoutes,
    ResourceRoutes,
    TenantRoutes,
    PermissionRoutes,
    NamespaceRoutes,
    BundleRoutes,
    GroupRoutes,
    TopicRoutes,
    PropertyRoutes,
    StatsRoutes,
    ScalableRoutes,
    SegmentRoutes,
    StorageRoutes,
    CompactionRoutes,
    SubscriptionRoutes,
    SchemaRoutes,
    LookupRoutes,
    MessageRoutes,
    ProduceRoutes,
    ReceivingRoutes,
    WebSocketRoutes,
    BlockingRoutes,
    LiveTransactionRoutes,
    TransactionRoutes,
    TransactingRoutes,
    TransactionalIdRoutes,
    KafkaRoutes,
    MigrationRoutes,
    FaultRoutes,
    MetricsRoutes,
    QuotaRoutes,
    PolicyRoutes,
    DescriptionRoutes,
)


def create_app(services: AdminServices, front: Front | None = None) -> ASGIApp:
    """Accepts any Host name, unless the broker listens only on this machine."""
    routes = [route for area in AREAS for route in area(services).routes()]
    if services.brokers is not None and services.bundles is not None:
        routes = _over_brokers(services, services.brokers, services.bundles, routes)
    ownership = services.topics.ownership
    app = Starlette(
        routes=[permitted(each, services.authorizer, ownership.refreshed) for each in routes],
        exception_handlers={
            NotServedHere: partial(_redirected, services),
            BundleOfAnotherBroker: partial(_redirected, services),
            PulsarError: _pulsar_error,
            ManagedLedgerError: _storage_error,
            ClientDisconnect: _client_gone,
            HTTPException: _http_error,
            Exception: _internal_error,
        },
    )
    guarded: ASGIApp = app
    if services.authentication is not None:
        guarded = Authenticated(app, services.authentication, services.config)
    whole = Audited(UnsaidBodies(Guard(guarded, _host_names(services))))
    if front is None:
        return whole
    return front(whole, Audited(Known(app)), services)


def with_limits(app: ASGIApp, services: AdminServices) -> ASGIApp:
    """Puts the limits of the API before an application that is not part of the API."""
    return UnsaidBodies(Guard(app, _host_names(services)))


def _host_names(services: AdminServices) -> list[str] | None:
    config = services.config
    if not config.local_only:
        return None
    return [name for name in ("localhost", config.advertised_address) if name]


async def _redirected(services: AdminServices, request: Request, error: Exception) -> Response:
    """Redirects to the topic's broker, or to this one if it has just taken the topic's bundle."""
    sent_here = request.query_params.get(_AUTHORITATIVE) == "true"
    try:
        owner = await _looked_up(services, error, sent_here)
    except PulsarError as unknown:
        if not isinstance(unknown, BeingReleased) or ASKED_BY_A_BROKER not in request.headers:
            return await _pulsar_error(request, unknown)
        owner = None  # the other broker looks it up again
    query = request.url.query
    base = ""
    if request.scope.get(WITHIN) and services.brokers is not None:
        return await _forwarded(services, services.brokers, request, error, owner)
    if owner is not None:
        base = _web_url(request, owner.address)
        if not sent_here:
            query = "&".join(filter(None, (query, f"{_AUTHORITATIVE}=true")))
    path = request.scope["raw_path"].decode("ascii")
    return RedirectResponse(f"{base}{path}{f'?{query}' if query else ''}", _REDIRECT)


async def _forwarded(
    services: AdminServices,
    brokers: OtherBrokers,
    request: Request,
    error: Exception,
    owner: OtherOwner | None,
) -> Response:
    """Asks the other broker and returns its answer, because the console cannot be redirected. Only
    the coordinator's broker knows the owner of a transaction, so this forwards requests for a
    coordinator only for superusers.
    """
    is_of_coordinator = (
        isinstance(error, NotServedHere) and error.name.partitioned_name == COORDINATOR_ASSIGN
    )
    try:
        if is_of_coordinator and services.authorizer is not None:
            doing = "see transactions of other brokers' coordinators"
            identity = identity_of(request)
            services.authorizer.require(identity, Need.SUPER_USER, target_of(request), doing)
        if owner is None:
            raise ServiceNotReady("This broker has just taken over; try again")
        said = "&".join(filter(None, (request.url.query, f"{_AUTHORITATIVE}=true")))
        target = f"{request.scope['raw_path'].decode('ascii')}?{said}"
        body = request.scope.get(BODY, b"")
        for _ in range(_ATTEMPTS):  # it may first redirect to itself: it takes the topic
            reply = await brokers.ask(owner.address, request.method, target, body)
            if reply.status != _REDIRECT:
                break
    except PulsarError as refused:
        return await _pulsar_error(request, refused)
    return Response(reply.body, reply.status, media_type=reply.media_type)


async def _looked_up(
    services: AdminServices, error: Exception, authoritative: bool
) -> OtherOwner | None:
    if isinstance(error, BundleOfAnotherBroker):
        assert services.bundles is not None
        return await services.bundles.lookup_bundle(error.bundle, authoritative)
    assert isinstance(error, NotServedHere)
    return await services.topics.ownership.lookup(error.name, authoritative)


def _over_brokers(
    services: AdminServices,
    brokers: OtherBrokers,
    bundles: Bundles,
    routes: list[DescribedRoute],
) -> list[DescribedRoute]:
    from pybroker.admin.over_brokers.spreading import over_brokers  # imported only in a cluster

    return over_brokers(services, brokers, bundles, routes)


def _web_url(request: Request, broker: BrokerAddress) -> str:
    urls = broker.http_url, broker.http_url_tls
    return next(filter(None, urls[::-1] if request.url.scheme == "https" else urls), "")


async def _pulsar_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, PulsarError)
    return JSONResponse(refusal(error), error.http_status)


async def _storage_error(_: Request, error: Exception) -> Response:
    """These errors contain advice. Damage is permanent; other errors may be temporary."""
    log.warning("a request failed: %s", error)
    return JSONResponse({"reason": str(error)}, 500 if isinstance(error, CorruptStorage) else 503)


async def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"reason": error.detail}, error.status_code, error.headers)


async def _client_gone(_: Request, error: Exception) -> Response:
    """The client has hung up, so nobody receives the response."""
    return Response(status_code=500)


async def _internal_error(_: Request, error: Exception) -> Response:
    return JSONResponse({"reason": f"Internal error: {type(error).__name__}; see the log"}, 500)
