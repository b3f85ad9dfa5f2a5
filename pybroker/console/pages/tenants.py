"""Tenants, their namespaces, and the permissions in them."""

from typing import Final

from starlette.responses import Response

from pybroker.console import policy_forms, policy_rows
from pybroker.console.api import Refused
from pybroker.console.formats import segment
from pybroker.console.page import Page, View
from pybroker.console.visit import Visit

_PATH: Final = "/console/tenants"
_TENANTS: Final = "/admin/v2/tenants"
_TENANT: Final = f"{_TENANTS}/{{tenant}}"
_NAMESPACES: Final = "/admin/v2/namespaces/{tenant}"
_NAMESPACE: Final = f"{_NAMESPACES}/{{namespace}}"
_PERMISSIONS: Final = f"{_NAMESPACE}/permissions"
_TENANT_PAGE: Final = f"{_PATH}/{{tenant:segment}}"
_NAMESPACE_PAGE: Final = f"{_TENANT_PAGE}/{{namespace:segment}}"
ACTIONS: Final = ("produce", "consume", "functions", "sources", "sinks", "packages")
_MOST_SHOWN: Final = 500


async def tenants(visit: Visit) -> Response:
    if name := visit.query("tenant"):
        return visit.go(f"{_PATH}/{segment(name)}")
    if not visit.api.may("GET", _TENANTS):
        return await visit.render("tenants.html", rows=None, unshown=0, may_create=False)
    names: list[str] = await visit.api.get(_TENANTS)
    rows = []
    for name in names[:_MOST_SHOWN]:
        found = await visit.api.get(_TENANT, tenant=name)
        namespaces = await visit.api.get(_NAMESPACES, tenant=name)
        rows.append((name, found["adminRoles"], len(namespaces)))
    return await visit.render(
        "tenants.html",
        rows=rows,
        unshown=max(0, len(names) - _MOST_SHOWN),
        may_create=visit.api.may("PUT", _TENANT),
    )


async def tenant(visit: Visit) -> Response:
    name = visit.parts["tenant"]
    namespaces: list[str] = await visit.api.get(_NAMESPACES, tenant=name)
    may_see = visit.api.may("GET", _TENANT, tenant=name)
    return await visit.render(
        "tenant.html",
        tenant=name,
        roles=(await visit.api.get(_TENANT, tenant=name))["adminRoles"] if may_see else None,
        namespaces=[each.partition("/")[2] for each in namespaces],
        may_change=visit.api.may("POST", _TENANT, tenant=name),
        may_create=visit.api.may("PUT", _NAMESPACE, tenant=name, namespace="any"),
    )


async def namespace(visit: Visit) -> Response:
    names = _names(visit)
    grants: dict[str, list[str]] = await visit.api.get(_PERMISSIONS, **names)
    return await visit.render(
        "namespace.html",
        tenant=names["tenant"],
        namespace=names["namespace"],
        url=_namespace_url(visit),
        policies_url=f"{_namespace_url(visit)}/policies",
        grants=sorted(grants.items()),
        by_subscription=await _by_subscription(visit, names),
        rows=await policy_rows.of_namespace(visit.api, names),
        actions=ACTIONS,
    )


async def _by_subscription(visit: Visit, names: dict[str, str]) -> list[tuple[str, list[str]]]:
    try:
        found = await visit.api.get(f"{_PERMISSIONS}/subscription", **names)
    except Refused:
        return []
    return sorted(found.items())


# -- actions


async def create_tenant(visit: Visit) -> Response:
    name = visit.said("name")
    if not name:
        return visit.go(_PATH, "Name the tenant", failed=True)
    body = {"adminRoles": _roles(visit)}
    done = f"Tenant {name} was created"
    return await visit.act("PUT", _TENANT, done, _PATH, None, body, tenant=name)


async def change_tenant(visit: Visit) -> Response:
    name = visit.parts["tenant"]
    clusters = (await visit.api.get(_TENANT, tenant=name))["allowedClusters"]
    body = {"adminRoles": _roles(visit), "allowedClusters": clusters}
    done = f"The admins of {name} are now: {', '.join(_roles(visit)) or 'none'}"
    return await visit.act("POST", _TENANT, done, _tenant_url(visit), None, body, tenant=name)


async def delete_tenant(visit: Visit) -> Response:
    name = visit.parts["tenant"]
    visit.confirm(name)
    query = {"force": "true"} if visit.said("force") else {}
    (await visit.api.ask("DELETE", _TENANT, query, tenant=name)).check()
    return visit.go(_PATH, f"Tenant {name} was deleted")


async def create_namespace(visit: Visit) -> Response:
    name = visit.said("name")
    if not name:
        return visit.go(_tenant_url(visit), "Name the namespace", failed=True)
    names = {"tenant": visit.parts["tenant"], "namespace": name}
    done = f"Namespace {name} was created"
    return await visit.act("PUT", _NAMESPACE, done, _tenant_url(visit), None, {}, **names)


async def delete_namespace(visit: Visit) -> Response:
    names = _names(visit)
    visit.confirm(names["namespace"])
    query = {"force": "true"} if visit.said("force") else {}
    (await visit.api.ask("DELETE", _NAMESPACE, query, **names)).check()
    return visit.go(_tenant_url(visit), f"Namespace {names['namespace']} was deleted")


async def grant(visit: Visit) -> Response:
    role, actions = visit.said("role"), [each for each in ACTIONS if visit.said(each)]
    if not role or not actions:
        problem = "Enter a role, and choose its permissions"
        return visit.go(_namespace_url(visit), problem, failed=True)
    done = f"{role} may now {' and '.join(actions)}"
    return await _on_role(visit, "POST", done, actions)


async def revoke(visit: Visit) -> Response:
    visit.confirm(visit.said("role"))
    return await _on_role(
        visit, "DELETE", f"{visit.said('role')} no longer has permissions here", None
    )


async def set_policy(visit: Visit) -> Response:
    return await policy_forms.set_on_namespace(visit, _names(visit), _namespace_url(visit))


async def remove_policy(visit: Visit) -> Response:
    return await policy_forms.remove_from_namespace(visit, _names(visit), _namespace_url(visit))


async def _on_role(visit: Visit, method: str, done: str, body: list[str] | None) -> Response:
    template = f"{_PERMISSIONS}/{{role}}"
    return await visit.act(
        method,
        template,
        done,
        _namespace_url(visit),
        None,
        body,
        tenant=visit.parts["tenant"],
        namespace=visit.parts["namespace"],
        role=visit.said("role"),
    )


def _roles(visit: Visit) -> list[str]:
    return [role for role in map(str.strip, visit.said("roles").split(",")) if role]


def _names(visit: Visit) -> dict[str, str]:
    return {"tenant": visit.parts["tenant"], "namespace": visit.parts["namespace"]}


def _tenant_url(visit: Visit) -> str:
    return f"{_PATH}/{segment(visit.parts['tenant'])}"


def _namespace_url(visit: Visit) -> str:
    return f"{_tenant_url(visit)}/{segment(visit.parts['namespace'])}"


PAGE: Final = Page(
    "Tenants",
    _PATH,
    (
        View("GET", _PATH, tenants),
        View("POST", _PATH, create_tenant),
        View("GET", _TENANT_PAGE, tenant),
        View("POST", f"{_TENANT_PAGE}/admins", change_tenant),
        View("POST", f"{_TENANT_PAGE}/delete", delete_tenant),
        View("POST", f"{_TENANT_PAGE}/namespaces", create_namespace),
        View("GET", _NAMESPACE_PAGE, namespace),
        View("POST", f"{_NAMESPACE_PAGE}/grant", grant),
        View("POST", f"{_NAMESPACE_PAGE}/revoke", revoke),
        View("POST", f"{_NAMESPACE_PAGE}/policies/set", set_policy),
        View("POST", f"{_NAMESPACE_PAGE}/policies/remove", remove_policy),
        View("POST", f"{_NAMESPACE_PAGE}/delete", delete_namespace),
    ),
)
