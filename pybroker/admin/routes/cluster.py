"""Clusters: this one and records of others, with their failure domains, isolation policies and
peers. Nothing is replicated or migrated.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NoReturn

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from pybroker.admin.operation import DONE, Body, DescribedRoute, flags
from pybroker.admin.routing import read_json, read_object, route
from pybroker.admin.services import AdminServices
from pybroker.admin.shapes.common import TEXTS
from pybroker.base.json_schema import (
    OBJECT,
    TEXT,
    TRUTH,
    Schema,
    choice,
    fields,
    list_of,
    map_of,
    or_null,
    record,
    taken,
)
from pybroker.broker.brokers.clusters import FAILURE_DOMAINS, ISOLATION_POLICIES, Clusters

_CLUSTER: Final = "/admin/v2/clusters/{cluster:segment}"
_PEERS: Final = "peerClusterNames"  # a field of the cluster's data
_DATA: Final = {
    **fields(
        TEXT,
        "serviceUrl serviceUrlTls brokerServiceUrl brokerServiceUrlTls proxyServiceUrl "
        "authenticationPlugin authenticationParameters brokerClientTlsTrustStoreType "
        "brokerClientTlsTrustStore brokerClientTlsTrustStorePassword brokerClientTlsKeyStoreType "
        "brokerClientTlsKeyStore brokerClientTlsKeyStorePassword brokerClientTrustCertsFilePath "
        "brokerClientKeyFilePath brokerClientCertificateFilePath brokerClientSslFactoryPlugin "
        "brokerClientSslFactoryPluginParams listenerName",
    ),
    **fields(
        TRUTH,
        "brokerClientTlsEnabled tlsAllowInsecureConnection brokerClientTlsEnabledWithKeyStore",
    ),
    "proxyProtocol": choice("SNI"),
    _PEERS: list_of(TEXT),
}


class ClusterRoutes:
    def __init__(self, services: AdminServices) -> None:
        self._services = services
        self._clusters = services.clusters

    def routes(self) -> list[DescribedRoute]:
        isolation, data = f"{_CLUSTER}/{ISOLATION_POLICIES}", Body(taken(_DATA), required=False)
        migration = record(
            "ClusterPolicies", {"migrated": TRUTH, "migratedClusterUrl": {"type": "null"}}
        )
        isolated = record(
            "BrokerNamespaceIsolationData",
            {
                "brokerName": TEXT,
                "namespaceRegex": TEXTS,
                "policyName": or_null(TEXT),
                "primary": TRUTH,
            },
        )
        return [
            route("GET", "/admin/v2/clusters", self.clusters, TEXTS),
            route("GET", _CLUSTER, self.cluster, record("ClusterData", _DATA, _DATA)),
            route("PUT", _CLUSTER, self.create, DONE, body=data, refuses=(409, 412)),
            route("POST", _CLUSTER, self.update, DONE, body=data),
            route("DELETE", _CLUSTER, self.delete, refuses=(412,)),
            route("GET", f"{_CLUSTER}/peers", self.peers, TEXTS),
            route(
                "POST",
                f"{_CLUSTER}/peers",
                self.set_peers,
                body=Body(list_of(TEXT), required=False),
                refuses=(412,),
            ),
            route("GET", f"{_CLUSTER}/migrate", self.migration, migration),
            route(
                "POST",
                f"{_CLUSTER}/migrate",
                self.migrate,
                query=flags("migrated"),
                body=Body(OBJECT, required=False),
            ),
            *self._part_routes(f"{_CLUSTER}/{FAILURE_DOMAINS}", FAILURE_DOMAINS, _DOMAIN),
            route(
                "GET", f"{isolation}/brokers", self.isolated_brokers, list_of(isolated, most=None)
            ),
            route(
                "GET",
                f"{isolation}/brokers/{{broker:segment}}",
                self.isolated_broker,
                isolated,
                refuses=(412,),
            ),
            *self._part_routes(isolation, ISOLATION_POLICIES, _ISOLATION),
        ]

    def _part_routes(self, path: str, kind: str, part: "_Part") -> list[DescribedRoute]:
        """Routes to list, read, write and delete named objects of a cluster."""
        clusters, one = self._clusters, f"{path}/{{name:segment}}"

        async def every(request: Request) -> dict[str, Any]:
            return clusters.parts(request.path_params["cluster"], kind)

        async def get(request: Request) -> Any:
            name = request.path_params["name"]
            found = (await every(request)).get(name)
            if found is None:
                raise HTTPException(404, f"There is no {name} among {kind}")
            return found

        async def put(request: Request) -> None:
            cluster, name = request.path_params["cluster"], request.path_params["name"]
            clusters.check(cluster)
            made = partial(part.of, await read_object(request))
            await clusters.put_part(cluster, kind, name, made)

        async def delete(request: Request) -> None:
            params = request.path_params
            await clusters.delete_part(params["cluster"], kind, params["name"])

        return [
            route("GET", path, every, map_of(part.shown, most=None)),
            route("GET", one, get, part.shown),
            route("POST", one, put, body=part.body, refuses=(409, 412)),
            route("DELETE", one, delete, refuses=(412,)),
        ]

    async def clusters(self, _: Request) -> list[str]:
        return self._clusters.names()

    async def cluster(self, request: Request) -> dict[str, Any]:
        name = request.path_params["cluster"]
        return (self._own_urls() if name == self._clusters.own else {}) | self._clusters.data(name)

    def _own_urls(self) -> dict[str, str]:
        services = self._services
        urls = {
            "serviceUrl": services.admin_url,
            "serviceUrlTls": services.admin_url_tls,
            "brokerServiceUrl": services.service_url,
            "brokerServiceUrlTls": services.service_url_tls,
        }
        return {name: url for name, url in urls.items() if url}

    async def create(self, request: Request) -> Response:
        await self._clusters.create(request.path_params["cluster"], await _data(request))
        return Response(status_code=200)

    async def update(self, request: Request) -> Response:
        await self._clusters.update(request.path_params["cluster"], await _data(request))
        return Response(status_code=200)

    async def delete(self, request: Request) -> None:
        await self._clusters.delete(request.path_params["cluster"])

    async def peers(self, request: Request) -> list[str]:
        return list(self._clusters.data(request.path_params["cluster"]).get(_PEERS) or ())

    async def set_peers(self, request: Request) -> None:
        name, peers = request.path_params["cluster"], await read_json(request, [])
        data = self._clusters.data(name)
        for peer in peers:
            if peer == name or peer not in self._clusters.names():
                raise HTTPException(
                    412, f"{peer} cannot be a peer of {name}: it is not another registered cluster"
                )
        data.pop(_PEERS, None)
        await self._clusters.update(name, data | ({_PEERS: peers} if peers else {}))

    async def migration(self, request: Request) -> dict[str, Any]:
        self._clusters.check(request.path_params["cluster"])
        return {"migrated": False, "migratedClusterUrl": None}

    async def migrate(self, request: Request) -> NoReturn:
        self._clusters.check(request.path_params["cluster"])
        raise HTTPException(400, "Cluster migration is not supported: move the clients yourself")

    async def isolated_brokers(self, request: Request) -> list[dict[str, Any]]:
        return [self._isolation(request.path_params["cluster"])]

    async def isolated_broker(self, request: Request) -> dict[str, Any]:
        broker = request.path_params["broker"]
        if broker != self._services.broker_id:
            raise HTTPException(404, f"Broker {broker} does not exist")
        return self._isolation(request.path_params["cluster"])

    def _isolation(self, cluster: str) -> dict[str, Any]:
        """How isolation policies apply to this broker; with one broker they have no effect."""
        policies = self._clusters.parts(cluster, ISOLATION_POLICIES)
        regexes = [text for policy in policies.values() for text in policy["namespaces"]]
        return {
            "brokerName": self._services.broker_id,
            "namespaceRegex": regexes,
            "policyName": ",".join(policies) or None,
            "primary": True,
        }


async def _data(request: Request) -> dict[str, Any]:
    body = await read_object(request)
    return {name: body[name] for name in _DATA if body.get(name) is not None}


@dataclass(frozen=True, slots=True)
class _Part:
    """A kind of named objects of a cluster: the schemas of its body and answer, and a function that
    builds an object from a body and checks it against the other objects.
    """

    body: Body
    shown: Schema
    of: Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]]


def _failure_domain(body: dict[str, Any], others: dict[str, Any]) -> dict[str, Any]:
    brokers = body.get("brokers") or []
    for name, domain in others.items():
        if taken := set(brokers) & set(domain["brokers"]):
            raise HTTPException(409, f"{', '.join(sorted(taken))} already belongs to {name}")
    return {"brokers": brokers}


def _isolation_policy(body: dict[str, Any], _: dict[str, Any]) -> dict[str, Any]:
    named = {name: body.get(name) or [] for name in _ISOLATION_LISTS}
    if not named["namespaces"] or not named["primary"]:
        raise HTTPException(400, "namespaces and primary must not be empty")
    return named | {"auto_failover_policy": body["auto_failover_policy"]}


_ISOLATION_LISTS: Final = ("namespaces", "primary", "secondary")
_DOMAIN: Final = _Part(
    Body(taken({"brokers": list_of(TEXT)}), required=False),
    record("FailureDomain", {"brokers": TEXTS}),
    _failure_domain,
)
_ISOLATION: Final = _Part(
    Body(
        taken(
            {**dict.fromkeys(_ISOLATION_LISTS, list_of(TEXT)), "auto_failover_policy": OBJECT},
            required=("auto_failover_policy",),
        )
    ),
    record(
        "NamespaceIsolationData",
        {**dict.fromkeys(_ISOLATION_LISTS, TEXTS), "auto_failover_policy": OBJECT},
    ),
    _isolation_policy,
)


def known_cluster(clusters: Clusters, request: Request) -> str:
    """The cluster in the path. Raises NotFound."""
    name: str = request.path_params["cluster"]
    clusters.check(name)
    return name
