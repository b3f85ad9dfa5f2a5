"""The description of the admin API is made from its routes, and covers Apache Pulsar's types."""

import ast
import asyncio
import json
import re
from pathlib import Path
from typing import Any

import httpx
from described import route_of, routes
from rows import check_each
from syntax import syntax_tree

import pybroker.admin.routes
from pybroker.admin.description import described
from pybroker.admin.http.permitted import plain_path
from pybroker.admin.operation import DescribedRoute

DOCUMENT = json.loads(asyncio.run(described(routes())))
SCHEMAS = DOCUMENT["components"]["schemas"]
TYPES = {
    line.split("\t")[0]: line.split("\t")[1].split()
    for line in (Path(__file__).parent / "apache_types.tsv").read_text().splitlines()[1:]
}
# Apache Pulsar's fields of systems that are not here; OURS are fields that only this broker has.
NOT_HERE = {
    "InternalConfigurationData": {
        "zookeeperServers",
        "configurationStoreServers",
        "bookkeeperMetadataServiceUri",
        "stateStorageServiceUrl",
    },
    "Policies": {"clusterDispatchRate", "latency_stats_sample_rate"},
}
OURS = {
    "TopicStats": {"blockedEntries", "lastStablePosition", "oldestOpenTransaction"},
    "PartitionedTopicStats": {"blockedEntries", "lastStablePosition", "oldestOpenTransaction"},
    "SubscriptionStats": {
        "isolationLevel",
        "lastStablePosition",
        "committedBacklog",
        "blockedBacklog",
    },
    "LedgerInfo": {"damaged"},
    "TransactionMetadata": {"abortReason"},
    "TransactionCoordinatorStats": {
        "createdCount",
        "committedCount",
        "abortedCount",
        "timeoutCount",
        "retries",
        "givenUp",
    },
    "Policies": {
        "scalableTopicAutoScalePolicy",  # of 5.0; the list is that of 4.2
        "antiAffinityGroup",
        "bookieAffinityGroup",
        "compaction_delete_retention",
        "transaction_buffer",
        "transaction_coordinators",
        "transaction_limits",
    },
}


def test_the_broker_serves_its_description(admin: httpx.Client) -> None:
    served = admin.get("/admin/openapi.json").json()
    assert served == DOCUMENT
    assert served["openapi"].startswith("3.1")


def test_every_route_is_described() -> None:
    by_bare_path: dict[str, list[tuple[str, Any]]] = {}
    for path, item in DOCUMENT["paths"].items():
        by_bare_path.setdefault(_bare(path), []).append((path, item))

    def check(route: DescribedRoute) -> None:
        ((path, item),) = by_bare_path[_bare(plain_path(route.path))]
        operation = item[route.method.lower()]
        names = [each["name"] for each in operation["parameters"] if each["in"] == "path"]
        assert sorted(names) == sorted(re.findall(r"{(\w+)}", path))
        assert {"401", "403", "500"} < set(operation["responses"])

    check_each(routes(), check, name=lambda route: f"{route.method} {plain_path(route.path)}")


def _bare(path: str) -> str:
    """The path without the names of its variables."""
    return re.sub(r"{\w+}", "{}", path)


def test_operations_have_names_of_their_own() -> None:
    names = [op["operationId"] for item in DOCUMENT["paths"].values() for op in item.values()]
    assert len(set(names)) == len(names) == len(routes())


def test_every_reference_leads_somewhere() -> None:
    for kind, name in re.findall(r'"#/components/(\w+)/(\w+)"', json.dumps(DOCUMENT)):
        assert DOCUMENT["components"][kind][name]


def test_a_type_has_the_fields_that_apache_pulsars_has() -> None:
    def check(name: str) -> None:
        ours, missing = OURS.get(name, set()), NOT_HERE.get(name, set())
        assert set(SCHEMAS[name]["properties"]) == set(TYPES[name]) - missing | ours

    check_each(TYPES, check, name=str)


def test_a_path_belongs_to_the_route_that_the_broker_finds() -> None:
    found = route_of("GET", "/admin/v2/persistent/public/default/a%2Fb/stats")
    assert found is not None
    assert found.path.endswith("/{topic:form}/stats")


def test_handlers_read_queries_and_bodies_as_they_are_declared() -> None:
    """They use the functions of routing.py, which follow the declaration."""
    for path in Path(pybroker.admin.routes.__file__).parent.glob("*.py"):
        tree = syntax_tree(path.read_text())
        read = {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "request"
        }
        assert not read & {"query_params", "body", "stream", "form"}, path.name
