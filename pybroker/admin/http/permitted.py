"""Checks each route's permission, from its row in the table of permissions. The check comes before
the handler and uses only names, so a refusal is the same whether or not the object exists; but a
tenant that does not exist has no admin, and Apache Pulsar says so.
"""

import re
from collections.abc import Awaitable, Callable
from functools import cache

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from pybroker.admin.http.authenticated import IDENTITY
from pybroker.admin.operation import DescribedRoute, Endpoint
from pybroker.admin.routing import namespace_of, tenant_of, topic_of
from pybroker.base.errors import AuthorizationError, Unauthorized
from pybroker.security.authorization import Authorizer, Need, Target
from pybroker.security.identity import Identity
from pybroker.security.permissions import RouteRow, route_row

CaughtUp = Callable[[], Awaitable[None]]


def permitted(
    route: DescribedRoute, authorizer: Authorizer | None, caught_up: CaughtUp
) -> DescribedRoute:
    """The route with its permission check. `caught_up` returns when the permissions that other
    brokers granted before the call are known. Raises LookupError for a route without a row, even
    without authorization.
    """
    row = route_row(route.method, plain_path(route.path))
    if authorizer is None or row.need in (Need.NOTHING, Need.LOGIN):
        return route
    return route.guarded_by(lambda endpoint: _checked(endpoint, row, authorizer, caught_up))


@cache
def plain_path(path: str) -> str:
    """`/a/{b:segment}` as `/a/{b}`. Cached: there is a fixed number of routes."""
    return re.sub(r"\{(\w+):\w+\}", r"{\1}", path)


def _checked(
    endpoint: Endpoint, row: RouteRow, authorizer: Authorizer, caught_up: CaughtUp
) -> Endpoint:
    async def checked(request: Request) -> Response:
        target, identity = target_of(request), identity_of(request)
        if row.need is not Need.SUPER_USER and not authorizer.may(identity, row.need, target):
            await caught_up()
        try:
            authorizer.require(identity, row.need, target, "do this")
        except AuthorizationError as refusal:
            if row.need is Need.TENANT_ADMIN and not authorizer.has_tenant(target.tenant):
                raise HTTPException(404, "Tenant does not exist") from None
            raise _as_apache_says(refusal, row, target) from None
        return await endpoint(request)

    return checked


def _as_apache_says(
    refusal: AuthorizationError, row: RouteRow, target: Target
) -> AuthorizationError:
    if row.operation:
        sentence = (
            f"Unauthorized to validateTopicOperation for operation [{row.operation}] on topic "
            f"[{target.topic}]"
        )
        return Unauthorized(sentence, refusal.advice)
    if row.of_tenant:
        sentence = "Don't have permission to administrate resources on this tenant"
        return Unauthorized(sentence, refusal.advice)
    if row.need is Need.SUPER_USER:
        return Unauthorized("This operation requires super-user access", refusal.advice)
    return refusal


def identity_of(request: Request) -> Identity:
    identity: Identity = request.scope[IDENTITY]
    return identity


def check_owner(authorizer: Authorizer | None, request: Request, owner: str | None) -> None:
    """Raises AuthorizationError unless the caller owns the transaction or is a superuser. The
    refusal is the same for a transaction that ended long ago and for one that never existed.
    """
    if authorizer is None:
        return
    identity = identity_of(request)
    if owner is None or owner != identity.acting:
        target = target_of(request)
        authorizer.require(identity, Need.SUPER_USER, target, "see the transaction")


def target_of(request: Request) -> Target:
    """The object that the path names. Raises InvalidTopicName."""
    params = request.path_params
    if "topic" in params:
        return Target.of_topic(topic_of(request), params.get("subscription"))
    if "namespace" in params:
        namespace = namespace_of(request)
        return Target(namespace.partition("/")[0], namespace, None, params.get("subscription"))
    return Target(tenant_of(request)) if "tenant" in params else Target()
