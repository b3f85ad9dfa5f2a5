"""Grants by `auth_policies` in the body that creates a namespace."""

from typing import Any

import httpx
import pytest
from permission_world import SETTINGS, World

import pybroker.testing
from pybroker.testing import RunningBroker


@pytest.fixture
def world(broker: RunningBroker) -> World:
    """A world whose namespace does not exist yet."""
    world = World(broker)
    world.namespace = f"{world.tenant}/granted"
    world.topic = f"persistent://{world.namespace}/t"
    return world


def create(world: World, granted: Any) -> httpx.Response:
    return world.ask("PUT", f"namespaces/{world.namespace}", {"auth_policies": granted})


def test_a_namespace_is_created_with_what_its_auth_policies_grant(world: World) -> None:
    granted = {
        "namespace_auth": {"alice": ["produce", "consume"]},
        "destination_auth": {f"{world.topic}2": {"bob": ["produce"]}},
        "subscription_auth_roles": {"audit": ["carol"]},
    }
    assert create(world, granted).status_code == 204
    assert world.admin("GET", f"namespaces/{world.namespace}")["auth_policies"] == granted
    assert world.may_produce("alice")
    assert not world.may_consume("alice", "audit")
    assert world.may_produce("bob", f"{world.topic}2")
    assert not world.may_produce("bob")


def test_what_a_new_namespace_grants_survives_a_crash() -> None:
    with pybroker.testing.broker(http=True, **SETTINGS) as running:
        world = World(running)
        world.namespace = f"{world.tenant}/granted"
        assert create(world, {"namespace_auth": {"alice": ["produce"]}}).status_code == 204
        running.kill_and_restart()
        path = f"namespaces/{world.namespace}/permissions"
        assert world.admin("GET", path) == {"alice": ["produce"]}


@pytest.mark.parametrize("granted", [None, {}, {"namespace_auth": None}], ids=repr)
def test_auth_policies_that_grant_nothing_leave_nothing(world: World, granted: Any) -> None:
    assert create(world, granted).status_code == 204
    assert world.admin("GET", f"namespaces/{world.namespace}/permissions") == {}


@pytest.mark.parametrize(
    ("granted", "status"),
    [
        (7, 400),
        ({"namespace_auth": {"alice": ["fly"]}}, 400),
        ({"namespace_auth": {"alice": "produce"}}, 400),
        ({"namespace_auth": {" ": ["produce"]}}, 412),
        ({"destination_auth": {"persistent://public/default/t": {"alice": ["produce"]}}}, 412),
        ({"destination_auth": {"a/b": {"alice": ["produce"]}}}, 412),
        ({"subscription_auth_roles": {"s" * 2000: ["alice"]}}, 405),
    ],
    ids=lambda value: str(value)[:60],
)
def test_auth_policies_that_cannot_hold_refuse_the_namespace(
    world: World, granted: Any, status: int
) -> None:
    assert create(world, granted).status_code == status
    assert world.ask("GET", f"namespaces/{world.namespace}").status_code == 404


def test_grants_are_kept_while_authorization_is_off() -> None:
    with pybroker.testing.broker(http=True) as running:
        url = f"{running.admin_url}/admin/v2/namespaces/public/granted"
        body = {"auth_policies": {"namespace_auth": {"app": ["produce", "consume"]}}}
        assert httpx.put(url, json=body).status_code == 204
        assert httpx.get(f"{url}/permissions").json() == {"app": ["produce", "consume"]}


def test_another_tenants_admin_creates_and_grants_nothing(world: World) -> None:
    body = {"auth_policies": {"namespace_auth": {"mallory": ["produce"]}}}
    refused = world.ask("PUT", f"namespaces/{world.namespace}", body, by="mallory")
    assert refused.status_code == 403
    assert create(world, {}).status_code == 204
    assert not world.may_produce("mallory")


# -- set-up scripts of clients' test suites, which create what a fresh broker already has

GRANTED: dict[str, Any] = {"namespace_auth": {"anonymous": ["produce", "consume"]}}
GRANTS = "namespaces/public/default/permissions"
TENANT = {"adminRoles": ["anonymous"], "allowedClusters": ["standalone"]}


def test_the_first_put_of_a_built_in_tenant_and_namespace_takes_effect() -> None:
    with pybroker.testing.broker(http=True, **SETTINGS) as running:
        world = World(running)
        body = {"auth_policies": GRANTED, "replication_clusters": ["standalone"]}
        assert world.ask("PUT", "tenants/public", TENANT, "admin").status_code == 204
        assert world.ask("PUT", "namespaces/public/default", body, "admin").status_code == 204
        running.kill_and_restart()
        assert world.admin("GET", "tenants/public", by="admin") == TENANT
        assert world.admin("GET", GRANTS, by="admin") == {"anonymous": ["produce", "consume"]}
        again = [
            world.ask("PUT", path, wanted, "admin").status_code
            for path, wanted in (("tenants/public", TENANT), ("namespaces/public/default", body))
        ]
        assert again == [409, 409]


def test_a_put_that_would_change_nothing_of_what_is_built_in_is_a_conflict() -> None:
    with pybroker.testing.broker(http=True, **SETTINGS) as running:
        world = World(running)
        for path in ("tenants/public", "namespaces/public/default"):
            assert world.ask("PUT", path, {}, "admin").status_code == 409


def test_policies_of_a_built_in_namespace_are_not_overwritten_by_a_put() -> None:
    with pybroker.testing.broker(http=True, **SETTINGS) as running:
        world = World(running)
        path = "namespaces/public/default"
        assert world.ask("POST", f"{path}/messageTTL", 60, "admin").status_code == 204
        assert world.ask("PUT", path, {"auth_policies": GRANTED}, "admin").status_code == 409
