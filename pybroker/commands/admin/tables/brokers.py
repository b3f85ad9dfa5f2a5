"""Commands for brokers, clusters, isolation policies, resource groups and quotas, tenants."""

from argparse import Namespace
from typing import Any, Final

from pybroker.commands.admin.command import Command
from pybroker.commands.admin.rest import Rest

_CLUSTER_FIELDS: Final = {
    "url": "serviceUrl",
    "url_secure": "serviceUrlTls",
    "broker_url": "brokerServiceUrl",
    "broker_url_secure": "brokerServiceUrlTls",
    "proxy_url": "proxyServiceUrl",
    "proxy_protocol": "proxyProtocol",
    "auth_plugin": "authenticationPlugin",
    "auth_parameters": "authenticationParameters",
    "tls_enable": "brokerClientTlsEnabled",
    "tls_allow_insecure": "tlsAllowInsecureConnection",
    "tls_enable_keystore": "brokerClientTlsEnabledWithKeyStore",
    "tls_trust_store_type": "brokerClientTlsTrustStoreType",
    "tls_trust_store": "brokerClientTlsTrustStore",
    "tls_trust_store_pwd": "brokerClientTlsTrustStorePassword",
    "tls_key_store_type": "brokerClientTlsKeyStoreType",
    "tls_key_store": "brokerClientTlsKeyStore",
    "tls_key_store_pwd": "brokerClientTlsKeyStorePassword",
    "tls_trust_certs_filepath": "brokerClientTrustCertsFilePath",
    "tls_key_filepath": "brokerClientKeyFilePath",
    "tls_certs_filepath": "brokerClientCertificateFilePath",
    "tls_factory_plugin": "brokerClientSslFactoryPlugin",
    "tls_factory_plugin_params": "brokerClientSslFactoryPluginParams",
    "listener_name": "listenerName",
}
_CLUSTER: Final = (
    "<clusterName> [--url String] [--url-secure String] [--broker-url String] "
    "[--broker-url-secure String] [--proxy-url String] [--auth-plugin String] "
    "[--auth-parameters String] [--proxy-protocol String] [--tls-enable Boolean] "
    "[--tls-allow-insecure Boolean] [--tls-enable-keystore Boolean] "
    "[--tls-trust-store-type String] [--tls-trust-store String] [--tls-trust-store-pwd String] "
    "[--tls-key-store-type String] [--tls-key-store String] [--tls-key-store-pwd String] "
    "[--tls-trust-certs-filepath String] [--tls-key-filepath String] "
    "[--tls-certs-filepath String] [--tls-factory-plugin String] "
    "[--tls-factory-plugin-params String] [--listener-name String]"
)
_RESOURCE_GROUP: Final = (
    "<resourceGroupName> [--msg-publish-rate|-mp Integer] [--byte-publish-rate|-bp Long] "
    "[--msg-dispatch-rate|-md Integer] [--byte-dispatch-rate|-bd Long]"
)
_TENANT: Final = "<tenant> [--admin-roles|-r List] [--allowed-clusters|-c List]"


def said(options: Namespace, fields: dict[str, str]) -> dict[str, Any]:
    """The given options, by the names of JSON fields."""
    values = {field: getattr(options, option) for option, field in fields.items()}
    return {field: value for field, value in values.items() if value is not None}


def _cluster(options: Namespace) -> dict[str, Any]:
    return said(options, _CLUSTER_FIELDS)


def _domain(options: Namespace) -> dict[str, Any]:
    brokers = options.broker_list or ""
    return {"brokers": [broker for broker in brokers.split(",") if broker]}


def _isolation(options: Namespace) -> dict[str, Any]:
    return {
        "namespaces": options.namespaces,
        "primary": options.primary,
        "secondary": options.secondary or [],
        "auto_failover_policy": {
            "policy_type": options.auto_failover_policy_type,
            "parameters": dict(options.auto_failover_policy_params),
        },
    }


def _group(options: Namespace) -> dict[str, Any]:
    return said(
        options,
        {
            "msg_publish_rate": "publishRateInMsgs",
            "byte_publish_rate": "publishRateInBytes",
            "msg_dispatch_rate": "dispatchRateInMsgs",
            "byte_dispatch_rate": "dispatchRateInBytes",
        },
    )


def _tenant(options: Namespace) -> dict[str, Any]:
    return said(options, {"admin_roles": "adminRoles", "allowed_clusters": "allowedClusters"})


def _new_tenant(rest: Rest, options: Namespace) -> None:
    """A new tenant is allowed all clusters, unless some are named."""
    clusters = options.allowed_clusters or rest.ask("GET", "clusters")
    body = {"adminRoles": options.admin_roles or [], "allowedClusters": clusters}
    rest.ask("PUT", f"tenants/{options.tenant}", body)


def _clusters(rest: Rest, options: Namespace) -> Any:
    """The clusters; --current marks the broker's own."""
    names = rest.ask("GET", "clusters")
    if not options.current:
        return names
    own = rest.ask("GET", "brokers/configuration/runtime")["clusterName"]
    return [f"{name}(*)" if name == own else name for name in names]


def _quota_path(options: Namespace) -> str:
    if not options.namespace:
        return "resource-quotas"
    if not options.bundle:
        raise ValueError("--namespace and --bundle must be given together")
    return f"resource-quotas/{options.namespace}/{options.bundle}"


def _quota(rest: Rest, options: Namespace) -> Any:
    return rest.ask("GET", _quota_path(options))


def _set_quota(rest: Rest, options: Namespace) -> None:
    fields = ("msgRateIn", "msgRateOut", "bandwidthIn", "bandwidthOut", "memory", "dynamic")
    body = {field: getattr(options, field) for field in fields}
    rest.ask("POST", _quota_path(options), body)


BROKERS: Final = (
    Command("list", "[<cluster>]", run=lambda rest, o: rest.ask("GET", f"brokers/{o.cluster or ''}".rstrip("/"))),
    Command("leader-broker", "", "GET brokers/leaderBroker"),
    Command("namespaces", "<cluster> -u|--url String", "GET brokers/{cluster}/{url}/ownedNamespaces"),
    Command("healthcheck", "[-tv|--topic-version String]", "GET brokers/health"),
    Command("version", "", "GET brokers/version"),
    Command("backlog-quota-check", "", "GET brokers/backlog-quota-check"),
    Command("get-runtime-config", "", "GET brokers/configuration/runtime"),
    Command("get-internal-config", "", "GET brokers/internal-configuration"),
    Command("list-dynamic-config", "", "GET brokers/configuration"),
    Command("get-all-dynamic-config", "", "GET brokers/configuration/values"),
    Command("update-dynamic-config", "-c|--config String -v|--value String", "POST brokers/configuration/{config}/{value}"),
    Command("delete-dynamic-config", "-c|--config String", "DELETE brokers/configuration/{config}"),
    Command(
        "shutdown",
        "[--max-concurrent-unload-per-sec|-m int] [--forced-terminate-topic|-f]",
        "POST brokers/shutdown",
        query={
            "maxConcurrentUnloadPerSec": "max_concurrent_unload_per_sec",
            "forcedTerminateTopic": "forced_terminate_topic",
        },
    ),
)  # fmt: skip
BROKER_STATS: Final = (
    Command("monitoring-metrics", "[-i|--indent]", "GET broker-stats/metrics"),
    Command("mbeans", "[-i|--indent]", "GET broker-stats/mbeans"),
    Command("topics", "[-i|--indent]", "GET broker-stats/topics"),
    Command("destinations", "[-i|--indent]", "GET broker-stats/topics"),
    Command(
        "allocator-stats", "<allocatorName>", "GET broker-stats/allocator-stats/{allocatorName}"
    ),
    Command("load-report", "", "GET broker-stats/load-report"),
)
_DOMAIN: Final = "clusters/{cluster}/failureDomains/{domain_name}"
CLUSTERS: Final = (
    Command("list", "[-c|--current]", run=_clusters),
    Command("get", "<cluster>", "GET clusters/{cluster}"),
    Command("create", _CLUSTER, "PUT clusters/{clusterName}", _cluster),
    Command("update", _CLUSTER, "POST clusters/{clusterName}", _cluster),
    Command("delete", "<cluster> [-a|--all]", "DELETE clusters/{cluster}"),
    Command("get-peer-clusters", "<cluster>", "GET clusters/{cluster}/peers"),
    Command("update-peer-clusters", "<cluster> --peer-clusters List", "POST clusters/{cluster}/peers", lambda o: o.peer_clusters),
    Command("get-cluster-migration", "<cluster>", "GET clusters/{cluster}/migrate"),
    Command(
        "update-cluster-migration",
        "<cluster> [--migrated] [--service-url String] [--service-url-secure String] "
        "[--broker-url String] [--broker-url-secure String]",
        "POST clusters/{cluster}/migrate",
        lambda o: said(o, {"service_url": "serviceUrl", "service_url_secure": "serviceUrlTls",
                           "broker_url": "brokerServiceUrl", "broker_url_secure": "brokerServiceUrlTls"}),
        {"migrated": "migrated"},
    ),
    Command("list-failure-domains", "<cluster>", "GET clusters/{cluster}/failureDomains"),
    Command("get-failure-domain", "<cluster> --domain-name String", f"GET {_DOMAIN}"),
    Command("create-failure-domain", "<cluster> --domain-name String [--broker-list String]", f"POST {_DOMAIN}", _domain),
    Command("update-failure-domain", "<cluster> --domain-name String [--broker-list String]", f"POST {_DOMAIN}", _domain),
    Command("delete-failure-domain", "<cluster> --domain-name String", f"DELETE {_DOMAIN}"),
)  # fmt: skip
_ISOLATION: Final = "clusters/{clusterName}/namespaceIsolationPolicies"
ISOLATION: Final = (
    Command("list", "<clusterName>", f"GET {_ISOLATION}"),
    Command("get", "<clusterName> <policyName>", f"GET {_ISOLATION}/{{policyName}}"),
    Command(
        "set",
        "<clusterName> <policyName> --namespaces List --primary List [--secondary List] "
        "--auto-failover-policy-type String --auto-failover-policy-params Map "
        "[--unload-scope String]",
        f"POST {_ISOLATION}/{{policyName}}",
        _isolation,
    ),
    Command("delete", "<clusterName> <policyName>", f"DELETE {_ISOLATION}/{{policyName}}"),
    Command("brokers", "<clusterName>", f"GET {_ISOLATION}/brokers"),
    Command("broker", "<clusterName> --broker String", f"GET {_ISOLATION}/brokers/{{broker}}"),
)
RESOURCE_GROUPS: Final = (
    Command("list", "", "GET resourcegroups"),
    Command("get", "<resourceGroupName>", "GET resourcegroups/{resourceGroupName}"),
    Command("create", _RESOURCE_GROUP, "PUT resourcegroups/{resourceGroupName}", _group),
    Command("update", _RESOURCE_GROUP, "PUT resourcegroups/{resourceGroupName}", _group),
    Command("delete", "<resourceGroupName>", "DELETE resourcegroups/{resourceGroupName}"),
)
RESOURCE_QUOTAS: Final = (
    Command("get", "[--namespace|-n String] [--bundle|-b String]", run=_quota),
    Command(
        "set",
        "[--namespace|-n String] [--bundle|-b String] --msgRateIn|-mi long --msgRateOut|-mo long "
        "--bandwidthIn|-bi long --bandwidthOut|-bo long --memory|-mem long [--dynamic|-d]",
        run=_set_quota,
    ),
    Command(
        "reset-namespace-bundle-quota",
        "--namespace|-n String --bundle|-b String",
        "DELETE resource-quotas/{namespace}/{bundle}",
    ),
)
TENANTS: Final = (
    Command("list", "", "GET tenants"),
    Command("get", "<tenant>", "GET tenants/{tenant}"),
    Command("create", _TENANT, run=_new_tenant),
    Command("update", _TENANT, "POST tenants/{tenant}", _tenant),
    Command("delete", "<tenant> [-f|--force]", "DELETE tenants/{tenant}", query={"force": "force"}),
)


_RACK: Final = "bookies/racks-info/{bookie}"
_BOOKIE: Final = "-b|--bookie String"
BOOKIES: Final = (
    Command("list-bookies", "", "GET bookies/all"),
    Command("racks-placement", "", "GET bookies/racks-info"),
    Command("get-bookie-rack", _BOOKIE, f"GET {_RACK}"),
    Command("delete-bookie-rack", _BOOKIE, f"DELETE {_RACK}"),
    Command(
        "set-bookie-rack",
        f"[-g|--group String] {_BOOKIE} -r|--rack String [-hn|--hostname String]",
        f"POST {_RACK}",
        lambda o: {"rack": o.rack, "hostname": o.hostname},
        {"group": "group"},
    ),
)
