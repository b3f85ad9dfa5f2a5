"""Clusters: this one and what is written down of others, with their failure domains, isolation
policies and peers. Nothing is replicated or migrated.
"""

from typing import Any, Final, NoReturn

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pybroker.admin.routing import read_json, read_object, route
from pybroker.admin.services import AdminServices
from pybroker.broker.clusters import FAILURE_DOMAINS, ISOLATION_POLICIES, Clusters

_CLUSTER: Final = "/admin/v2/clusters/{cluster:segment}"
_PEERS: Final = "peerClusterNames"  # a field of the cluster's data


class ClusterRoutes:
    def __init__(self, services: AdminServices) -> None:
        self._services = services
        self._clusters = services.clusters

    def routes(self) -> list[Route]:
        isolation = f"{_CLUSTER}/{ISOLATION_POLICIES}"
        return [
            route("GET", "/admin/v2/clusters", self.clusters),
            route("GET", _CLUSTER, self.cluster),
            route("PUT", _CLUSTER, self.create),
            route("POST", _CLUSTER, self.update),
            route("DELETE", _CLUSTER, self.delete),
            route("GET", f"{_CLUSTER}/peers", self.peers),
            route("POST", f"{_CLUSTER}/peers", self.set_peers),
            route("GET", f"{_CLUSTER}/migrate", self.migration),
            route("POST", f"{_CLUSTER}/migrate", self.migrate),
            *self._belongings(f"{_CLUSTER}/{FAILURE_DOMAINS}", FAILURE_DOMAINS, _failure_domain),
            route("GET", f"{isolation}/brokers", self.isolated_brokers),
            route("GET", f"{isolation}/brokers/{{broker:segment}}", self.isolated_broker),
            *self._belongings(isolation, ISOLATION_POLICIES, _isolation_policy),
        ]

    def _belongings(self, path: str, kind: str, checked: Any) -> list[Route]:
        """What a cluster has several of, by name: listed, read, written, deleted."""
        clusters, one = self._clusters, f"{path}/{{name:segment}}"

        async def every(request: Request) -> dict[str, Any]:
            return clusters.belongings(request.path_params["cluster"], kind)

        async def get(request: Request) -> Any:
            name = request.path_params["name"]
            found = (await every(request)).get(name)
            if found is None:
                raise HTTPException(404, f"There is no {name} among {kind}")
            return found

        async def put(request: Request) -> None:
            cluster, name = request.path_params["cluster"], request.path_params["name"]
            others = {n: v for n, v in (await every(request)).items() if n != name}
            await clusters.put_belonging(
                cluster, kind, name, checked(await read_object(request), others)
            )

        async def delete(request: Request) -> None:
            params = request.path_params
            await clusters.delete_belonging(params["cluster"], kind, params["name"])

        verbs = (("GET", get), ("POST", put), ("DELETE", delete))
        return [route("GET", path, every), *(route(verb, one, does) for verb, does in verbs)]

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
        await self._clusters.create(request.path_params["cluster"], await read_object(request))
        return Response(status_code=200)

    async def update(self, request: Request) -> Response:
        await self._clusters.update(request.path_params["cluster"], await read_object(request))
        return Response(status_code=200)

    async def delete(self, request: Request) -> None:
        await self._clusters.delete(request.path_params["cluster"])

    async def peers(self, request: Request) -> list[str]:
        return list(self._clusters.data(request.path_params["cluster"]).get(_PEERS) or ())

    async def set_peers(self, request: Request) -> None:
        name, peers = request.path_params["cluster"], await read_json(request, [])
        data = self._clusters.data(name)
        for peer in _texts(peers, "The body"):
            if peer == name or peer not in self._clusters.names():
                raise HTTPException(412, f"{peer} cannot be a peer of {name}: no other cluster")
        data.pop(_PEERS, None)
        await self._clusters.update(name, data | ({_PEERS: peers} if peers else {}))

    async def migration(self, request: Request) -> dict[str, Any]:
        self._clusters.check(request.path_params["cluster"])
        return {"migrated": False, "migratedClusterUrl": None}

    async def migrate(self, request: Request) -> NoReturn:
        self._clusters.check(request.path_params["cluster"])
        raise HTTPException(400, "This broker migrates no cluster: move its clients over yourself")

    async def isolated_brokers(self, request: Request) -> list[dict[str, Any]]:
        return [self._isolation(request.path_params["cluster"])]

    async def isolated_broker(self, request: Request) -> dict[str, Any]:
        broker = request.path_params["broker"]
        if broker != self._services.broker_id:
            raise HTTPException(404, f"Broker {broker} does not exist")
        return self._isolation(request.path_params["cluster"])

    def _isolation(self, cluster: str) -> dict[str, Any]:
        """What policies say of this broker; with one broker they change nothing."""
        policies = self._clusters.belongings(cluster, ISOLATION_POLICIES)
        regexes = [text for policy in policies.values() for text in policy["namespaces"]]
        return {
            "brokerName": self._services.broker_id,
            "namespaceRegex": regexes,
            "policyName": ",".join(policies) or None,
            "primary": True,
        }


def _failure_domain(body: dict[str, Any], others: dict[str, Any]) -> dict[str, Any]:
    brokers = _texts(body.get("brokers") or [], "brokers")
    for name, domain in others.items():
        if taken := set(brokers) & set(domain["brokers"]):
            raise HTTPException(409, f"{', '.join(sorted(taken))} already belongs to {name}")
    return {"brokers": brokers}


def _isolation_policy(body: dict[str, Any], _: dict[str, Any]) -> dict[str, Any]:
    failover = body.get("auto_failover_policy")
    if not isinstance(failover, dict):
        raise HTTPException(400, "auto_failover_policy must be an object: policy_type, parameters")
    fields = {name: _texts(body.get(name) or [], name) for name in _ISOLATION_LISTS}
    if not fields["namespaces"] or not fields["primary"]:
        raise HTTPException(400, "namespaces and primary must name something")
    return fields | {"auto_failover_policy": failover}


_ISOLATION_LISTS: Final = ("namespaces", "primary", "secondary")


def _texts(value: Any, name: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise HTTPException(400, f"{name} must be a list of text")
    return value


def known_cluster(clusters: Clusters, request: Request) -> str:
    """From the path. Raises NotFound."""
    name: str = request.path_params["cluster"]
    clusters.check(name)
    return name
