"""The admin API as one ASGI application; errors become answers here and nowhere else."""

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp

from pybroker.admin.authenticated import Authenticated
from pybroker.admin.broker_routes import BrokerRoutes
from pybroker.admin.broker_stats_routes import BrokerStatsRoutes
from pybroker.admin.bundle_routes import BundleRoutes
from pybroker.admin.cluster_routes import ClusterRoutes
from pybroker.admin.compaction_routes import CompactionRoutes
from pybroker.admin.group_routes import GroupRoutes
from pybroker.admin.guard import Guard
from pybroker.admin.lookup_routes import LookupRoutes
from pybroker.admin.message_routes import MessageRoutes
from pybroker.admin.metrics_routes import MetricsRoutes
from pybroker.admin.namespace_routes import NamespaceRoutes
from pybroker.admin.permission_routes import PermissionRoutes
from pybroker.admin.permitted import permitted
from pybroker.admin.policy_routes import PolicyRoutes
from pybroker.admin.property_routes import PropertyRoutes
from pybroker.admin.quota_routes import QuotaRoutes
from pybroker.admin.resource_routes import ResourceRoutes
from pybroker.admin.schema_routes import SchemaRoutes
from pybroker.admin.services import AdminServices
from pybroker.admin.stats_routes import StatsRoutes
from pybroker.admin.storage_routes import StorageRoutes
from pybroker.admin.subscription_routes import SubscriptionRoutes
from pybroker.admin.tenant_routes import TenantRoutes
from pybroker.admin.topic_routes import TopicRoutes
from pybroker.admin.transaction_routes import TransactionRoutes
from pybroker.admin.unsaid_bodies import UnsaidBodies
from pybroker.errors import PulsarError

AREAS = (
    BrokerRoutes,
    BrokerStatsRoutes,
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
    StorageRoutes,
    CompactionRoutes,
    SubscriptionRoutes,
    SchemaRoutes,
    LookupRoutes,
    MessageRoutes,
    TransactionRoutes,
    MetricsRoutes,
    QuotaRoutes,
    PolicyRoutes,
)


def create_app(services: AdminServices) -> ASGIApp:
    """Reachable by any Host name unless the broker listens on this machine only."""
    routes = [
        permitted(route, services.authorizer) for area in AREAS for route in area(services).routes()
    ]
    app = Starlette(
        routes=routes,
        exception_handlers={
            PulsarError: _pulsar_error,
            HTTPException: _http_error,
            Exception: _internal_error,
        },
    )
    guarded: ASGIApp = app
    if services.authentication is not None:
        guarded = Authenticated(app, services.authentication, services.config)
    return UnsaidBodies(Guard(guarded, _host_names(services)))


def _host_names(services: AdminServices) -> list[str] | None:
    config = services.config
    if not config.local_only:
        return None
    return [name for name in ("localhost", config.advertised_address) if name]


async def _pulsar_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, PulsarError)
    return JSONResponse({"reason": str(error)}, error.http_status)


async def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"reason": error.detail}, error.status_code, error.headers)


async def _internal_error(_: Request, error: Exception) -> Response:
    return JSONResponse({"reason": f"Internal error: {type(error).__name__}; see the log"}, 500)
