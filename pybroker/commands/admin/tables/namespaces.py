"""Commands for namespaces: operations and policies."""

from argparse import Namespace
from typing import Any, Final

from pybroker.commands.admin.command import Command, filled, segment
from pybroker.commands.admin.rest import Rest
from pybroker.commands.admin.tables.policies import of_namespace

_NS: Final = "namespaces/{namespace}"
_PLACE: Final = "<namespaceName>"


def _create(rest: Rest, options: Namespace) -> None:
    body: dict[str, Any] = {}
    if options.clusters:
        body["replication_clusters"] = options.clusters
    if options.bundles:
        body["bundles"] = {"numBundles": options.bundles}
    rest.ask("PUT", filled(_NS, options), body)


def _for_bundle(verb: str, path: str) -> Any:
    """A request for the namespace, or for one of its bundles if the option --bundle is given."""

    def run(rest: Rest, options: Namespace) -> Any:
        base = _NS + ("/{bundle}" if options.bundle else "")
        return rest.ask(verb, filled(f"{base}/{path}", options))

    return run


def _unload(rest: Rest, options: Namespace) -> Any:
    broker = options.destinationBroker
    if broker and not options.bundle:
        raise ValueError("--destinationBroker is for one bundle: name it with --bundle")
    path = filled(_NS + ("/{bundle}" if options.bundle else "") + "/unload", options)
    return rest.ask("PUT", path, query={"destinationBroker": broker} if broker else {})


def _split_boundaries(options: Namespace) -> Any:
    """The hashes as numbers, as Apache Pulsar's admin sends them."""
    said = options.split_boundaries
    return [int(each, 0) for each in said] if said else None


def _clear_backlog(rest: Rest, options: Namespace) -> Any:
    if not options.force:
        raise ValueError("Clearing a whole namespace's backlog cannot be undone: add --force")
    return _for_bundle("POST", "clearBacklog" + ("/{sub}" if options.sub else ""))(rest, options)


def _list_cluster(rest: Rest, options: Namespace) -> Any:
    """For names with a cluster, as in old versions of Apache Pulsar."""
    tenant, slash, cluster = options.params.partition("/")
    if not slash:
        raise ValueError(f"{options.params!r} is not tenant/cluster")
    return rest.ask("GET", f"/admin/namespaces/{segment(tenant)}/{segment(cluster)}")


def _topic_positions(rest: Rest, options: Namespace) -> Any:
    path = _NS + "/" + (options.bundle or "0x00000000_0xffffffff") + "/topicHashPositions"
    topics = {"topics": ",".join(options.topic_list)} if options.topic_list else {}
    return rest.ask("GET", filled(path, options), query=topics)


_SUBSCRIPTION: Final = "-s|--subscription String"
NAMESPACES: Final = (
    Command("list", "<tenant>", "GET namespaces/{tenant}"),
    Command("list-cluster", "<params>", run=_list_cluster),
    Command("update-migration-state", f"{_PLACE} [--migrated]", f"POST {_NS}/migration", lambda o: o.migrated),
    Command("topics", f"{_PLACE} [-m|--mode String] [-ist|--include-system-topic]", f"GET {_NS}/topics",
            query={"mode": "mode", "includeSystemTopic": "include_system_topic"}),
    Command("destinations", _PLACE, f"GET {_NS}/topics"),
    Command("bundles", _PLACE, f"GET {_NS}/bundles"),
    Command("policies", _PLACE, f"GET {_NS}"),
    Command("create", f"{_PLACE} [--clusters|-c List] [--bundles|-b int]", run=_create),
    Command("delete", f"{_PLACE} [-f|--force]", f"DELETE {_NS}", query={"force": "force"}),
    Command("unload", f"{_PLACE} [--bundle|-b String] [--destinationBroker|-d String]", run=_unload),
    Command(
        "split-bundle",
        f"{_PLACE} --bundle|-b String [--bundle-type|-bt String] [--unload|-u] "
        "[--split-algorithm-name|-san String] [--split-boundaries|-sb List]",
        f"PUT {_NS}/{{bundle}}/split",
        _split_boundaries,
        query={"unload": "unload", "splitAlgorithmName": "split_algorithm_name"},
    ),
    Command("get-topic-positions", f"{_PLACE} [--bundle|-b String] [--topic-list|-tl List]", run=_topic_positions),
    Command("clear-backlog", f"{_PLACE} [--sub|-s String] [--bundle|-b String] [--force|-force]", run=_clear_backlog),
    Command("unsubscribe", f"{_PLACE} --sub|-s String [--bundle|-b String]", run=_for_bundle("POST", "unsubscribe/{sub}")),
    Command("permissions", _PLACE, f"GET {_NS}/permissions"),
    Command("grant-permission", f"{_PLACE} --role String --actions List", f"POST {_NS}/permissions/{{role}}", lambda o: o.actions),
    Command("revoke-permission", f"{_PLACE} --role String", f"DELETE {_NS}/permissions/{{role}}"),
    Command("subscription-permission", _PLACE, f"GET {_NS}/permissions/subscription"),
    Command("grant-subscription-permission", f"{_PLACE} {_SUBSCRIPTION} -rs|--roles List", f"POST {_NS}/permissions/subscription/{{subscription}}", lambda o: o.roles),
    Command("revoke-subscription-permission", f"{_PLACE} {_SUBSCRIPTION} -r|--role String", f"DELETE {_NS}/permissions/{{subscription}}/{{role}}"),
    Command("get-anti-affinity-namespaces", "[--tenant|-p String] --cluster|-c String --group|-g String",
            "GET namespaces/{cluster}/antiAffinity/{group}", query={"tenant": "tenant"}),
    Command("delete-anti-affinity-group", _PLACE, f"DELETE {_NS}/antiAffinity"),
    Command("delete-bookie-affinity-group", _PLACE, f"DELETE {_NS}/persistence/bookieAffinity"),
    Command("get-resource-group", _PLACE, f"GET {_NS}/resourcegroup"),
    Command("set-resource-group", f"{_PLACE} --resource-group-name|-rgn String", f"POST {_NS}/resourcegroup/{{resource_group_name}}"),
    Command("remove-resource-group", _PLACE, f"DELETE {_NS}/resourcegroup"),
    Command("get-property", f"{_PLACE} --key|-k String", f"GET {_NS}/property/{{key}}"),
    Command("set-property", f"{_PLACE} --key|-k String --value|-v String", f"PUT {_NS}/property/{{key}}/{{value}}"),
    Command("remove-property", f"{_PLACE} --key|-k String", f"DELETE {_NS}/property/{{key}}"),
    Command("clear-properties", _PLACE, f"DELETE {_NS}/properties"),
    Command("get-schema-validation-enforce", f"{_PLACE} [-ap|--applied]", f"GET {_NS}/schemaValidationEnforced", query={"applied": "applied"}),
    Command("remove-offload-policies", _PLACE, f"DELETE {_NS}/removeOffloadPolicies"),
    Command("clear-offload-deletion-lag", _PLACE, f"DELETE {_NS}/offloadDeletionLagMs"),
    *of_namespace(),
)  # fmt: skip
