"""The cluster, the broker, tenants, lookups, and what all answers have in common."""

import httpx
import pytest

from pybroker.testing import RunningBroker

TENANTS = "/admin/v2/tenants"


def test_there_is_exactly_one_cluster(admin: httpx.Client, admin_broker: RunningBroker) -> None:
    assert admin.get("/admin/v2/clusters").json() == ["standalone"]
    assert admin.get("/admin/v2/clusters/standalone").json() == {
        "serviceUrl": admin_broker.admin_url,
        "brokerServiceUrl": admin_broker.service_url,
    }
    assert admin.get("/admin/v2/clusters/elsewhere").status_code == 404


def test_health_is_the_word_ok(admin: httpx.Client) -> None:
    assert admin.get("/admin/v2/brokers/health").text == "ok"


def test_the_broker_is_known_by_its_admin_address(
    admin: httpx.Client, admin_broker: RunningBroker
) -> None:
    address = admin_broker.admin_url.removeprefix("http://")
    assert admin.get("/admin/v2/brokers").json() == [address]
    assert admin.get("/admin/v2/brokers/standalone").json() == [address]
    assert admin.get("/admin/v2/brokers/leaderBroker").json()["brokerId"] == address


def test_the_running_configuration_has_broker_conf_names(admin: httpx.Client) -> None:
    configuration = admin.get("/admin/v2/brokers/configuration/runtime").json()
    assert configuration["clusterName"] == "standalone"
    assert configuration["brokerDeduplicationEnabled"] == "false"


def test_what_is_asked_of_the_broker_is_no_cluster(
    admin: httpx.Client, admin_broker: RunningBroker
) -> None:
    brokers = "/admin/v2/brokers"
    assert "metadataStoreUrl" in admin.get(f"{brokers}/internal-configuration").json()
    address = admin_broker.admin_url.removeprefix("http://")
    owned = admin.get(f"{brokers}/standalone/{address}/ownedNamespaces").json()
    assert owned["public/default/0x00000000_0xffffffff"]["is_active"]
    assert admin.get(f"{brokers}/standalone/elsewhere/ownedNamespaces").status_code == 404
    assert admin.get(f"{brokers}/backlog-quota-check").status_code == 204
    unknown = admin.get(f"{brokers}/backlog-quota-checks")
    assert unknown.status_code == 404
    assert "is not a route" in unknown.json()["reason"]


def test_an_unknown_route_is_an_error_with_a_reason(admin: httpx.Client) -> None:
    answer = admin.get("/admin/v2/nothing")
    assert (answer.status_code, list(answer.json())) == (404, ["reason"])


def test_a_route_with_another_method_is_an_error_with_a_reason(admin: httpx.Client) -> None:
    answer = admin.post("/admin/v2/clusters")
    assert (answer.status_code, list(answer.json())) == (405, ["reason"])


def test_a_tenant_comes_changes_and_goes(admin: httpx.Client) -> None:
    settings = {"adminRoles": ["root"], "allowedClusters": ["standalone"]}
    assert admin.put(f"{TENANTS}/acme", json=settings).status_code == 204
    assert admin.put(f"{TENANTS}/acme", json=settings).status_code == 409
    assert "acme" in admin.get(TENANTS).json()
    assert admin.post(f"{TENANTS}/acme", json={"adminRoles": []}).status_code == 204
    assert admin.get(f"{TENANTS}/acme").json()["adminRoles"] == []
    assert admin.delete(f"{TENANTS}/acme").status_code == 204
    assert admin.get(f"{TENANTS}/acme").status_code == 404


def test_a_tenant_with_namespaces_stays(admin: httpx.Client) -> None:
    answer = admin.delete(f"{TENANTS}/public")
    assert answer.status_code == 409
    assert "namespaces" in answer.json()["reason"]


def test_a_tenant_goes_with_all_that_is_its_by_force(admin: httpx.Client) -> None:
    admin.put(f"{TENANTS}/doomed", json={"allowedClusters": ["standalone"]})
    for namespace in ("doomed/a", "doomed/b"):
        admin.put(f"/admin/v2/namespaces/{namespace}")
        admin.put(f"/admin/v2/persistent/{namespace}/orders")
        admin.put(f"/admin/v2/persistent/{namespace}/parts/partitions", json=2)
    assert admin.delete(f"{TENANTS}/doomed").status_code == 409
    assert admin.delete(f"{TENANTS}/doomed", params={"force": "true"}).status_code == 204
    assert admin.get("/admin/v2/namespaces/doomed").status_code == 404
    assert admin.delete(f"{TENANTS}/doomed", params={"force": "true"}).status_code == 404


@pytest.mark.parametrize("path", [f"{TENANTS}/public", "/admin/v2/namespaces/public/default"])
def test_what_cannot_be_deleted_loses_nothing(admin: httpx.Client, path: str) -> None:
    topic = "/admin/v2/persistent/public/default/kept"
    admin.put(topic)
    assert admin.delete(path, params={"force": "true"}).status_code == 405
    assert admin.get(f"{topic}/stats").status_code == 200
    assert admin.delete(topic).status_code == 204


def test_a_tenant_of_another_cluster_is_refused(admin: httpx.Client) -> None:
    answer = admin.put(f"{TENANTS}/far", json={"allowedClusters": ["mars"]})
    assert answer.status_code == 412


@pytest.mark.parametrize("name", ["..", "a%2Fb", "a%00", "x" * 300])
def test_a_tenants_name_is_checked(admin: httpx.Client, name: str) -> None:
    assert admin.put(f"{TENANTS}/{name}").status_code in (404, 412)


def test_names_of_tenants_and_namespaces_are_refused_in_words_of_their_own(
    admin: httpx.Client,
) -> None:
    for method in ("GET", "PUT"):
        refused = admin.request(method, f"{TENANTS}/a%00").json()
        assert refused["reason"] == "Tenant name is not valid"
        assert refused["advice"].startswith(r"'a\x00': only 1 to 255 letters")
    refused = admin.get("/admin/v2/namespaces/public/a%20b").json()
    assert refused["reason"] == "Namespace name is not valid"
    assert refused["advice"].startswith("'public/a b' must be tenant/namespace; only")


@pytest.mark.parametrize("body", ["{", "[" * 5000, '"text"', "[1]"])
def test_a_body_that_is_no_json_object_is_refused(admin: httpx.Client, body: str) -> None:
    assert admin.put(f"{TENANTS}/odd", content=body).status_code == 400


def test_a_lookup_names_this_broker(
    admin: httpx.Client, admin_broker: RunningBroker, topic: str
) -> None:
    answer = admin.get(f"/lookup/v2/topic/persistent/{topic}").json()
    assert answer["brokerUrl"] == admin_broker.service_url
    assert answer["httpUrl"] == admin_broker.admin_url


def test_a_lookup_in_a_missing_namespace_is_not_found(admin: httpx.Client) -> None:
    assert admin.get("/lookup/v2/topic/persistent/public/none/t").status_code == 404
