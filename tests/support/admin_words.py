"""The words of every pulsar-admin command, derived from its arguments as text: `<topicName>
-s|--subscription String [-n|--count int] [--force|-f]`.

All required arguments are given; the tables below have the values of arguments and options.
"""

import re
from collections.abc import Mapping
from typing import Final

CLUSTER, TENANT, NAMESPACE = "standalone", "acme", "acme/shop"
TOPIC, WIDE = f"persistent://{NAMESPACE}/orders", f"persistent://{NAMESPACE}/wide"
FLEETING: Final = f"non-persistent://{NAMESPACE}/fleeting"
PLACES: Final = {
    "topicName": TOPIC,
    "topic": TOPIC,
    "group": "readers",
    "namespaceName": NAMESPACE,
    "namespace": NAMESPACE,
    "tenant": TENANT,
    "cluster": CLUSTER,
    "clusterName": CLUSTER,
    "policyName": "own",
    "resourceGroupName": "batch",
    "allocatorName": "default",
    "params": f"{TENANT}/{CLUSTER}",
}
OPTIONS: Final = {
    "--bundle": "0x00000000_0xffffffff",
    "--domain-name": "left",
    "--broker-list": "b1,b2",
    "--auto-failover-policy-type": "min_available",
    "--auto-failover-policy-params": "min_limit=1,usage_threshold=100",
    "--actions": "produce,consume",
    "--types": "Shared,Failover",
    "--clusters": CLUSTER,
    "--cluster": CLUSTER,
    "--replicas": "16",
    "--entryId": "0",
    "--entry-id": "0",
    "--peer-clusters": "",
    "--resource-group-name": "batch",
    "--namespace": NAMESPACE,
    "--subscription": "audit",
    "--sub": "audit",
    "--sub-name": "audit",
    "--subscription-name": "audit",
    "--topic": TOPIC,
    "--messageId": "earliest",
    "--datetime": "2026-01-01T00:00:00+00:00",
    "--policy": "consumer_backlog_eviction",
    "--strategy": "BACKWARD",
    "--delete-mode": "delete_when_no_subscriptions",
    "--subscription-auth-mode": "Prefix",
    "--properties": "a=b",
    "--set": "maxSegments=8",
    "--property": "a=b",
    "--initialPosition": "earliest",
    "--topics": TOPIC,
    "--source": TOPIC,
    "--coordinator-id": "0",
    "--max-message-size": "1048576",
    "--messageTTL": "1h",
    "--ttl": "1h",
    "--time": "1h",
    "--expireTime": "1h",
    "--max-inactive-duration": "86400",  # otherwise topics are deleted while other commands run
    "--size": "10M",
    "--partitions": "3",
    "--group": "apart",
    "--role": "alice",
    "--roles": "alice",
    "--driver": "filesystem",
    "--order": "commitOrder",
    "--primary-group": "left",
}
# Required options of commands whose options are all optional one by one.
SAID: Final = {
    ("topics", "reset-cursor"): ["--time", "1h"],
    ("persistent", "reset-cursor"): ["--time", "1h"],
    ("topics", "expire-messages"): ["--expireTime", "1h"],
    ("persistent", "expire-messages"): ["--expireTime", "1h"],
    ("topics", "update-subscription-properties"): ["--property", "a=b"],
    ("topics", "update-properties"): ["--property", "a=b"],
    ("topics", "remove-properties"): ["--key", "a"],
    ("topics", "set-backlog-quota"): ["--limit", "1M"],
    ("topicPolicies", "set-backlog-quota"): ["--limit", "1M"],
    ("namespaces", "set-backlog-quota"): ["--limit", "1M"],
    ("namespaces", "clear-backlog"): ["--force"],
    ("namespaces", "get-topic-positions"): ["--bundle", "0x00000000_0xffffffff"],
    ("namespaces", "split-bundle"): ["--bundle", "0x00000000_0xffffffff"],
    ("transactions", "scale-transactionCoordinators"): ["--replicas", "16"],
    ("namespaces", "set-schema-compatibility-strategy"): ["--compatibility", "BACKWARD"],
    ("namespaces", "set-schema-autoupdate-strategy"): ["--compatibility", "Full"],
}
_INSTEAD: Final[Mapping[tuple[str, str], Mapping[str, str]]] = {
    ("namespaces", "set-subscription-expiration-time"): {"--time": "7"},
    ("persistent", "grant-permission"): {"--actions": "produce"},
    ("topics", "create-shadow-topic"): {"--source": TOPIC},
}
_PART: Final = re.compile(r"(\[)?(?:<(?P<place>[^>]+)>|(?P<names>-[^\s\]]+)(?: (?P<type>\w+))?)\]?")
_ON_WIDE: Final = re.compile(r"partitioned-(?!topics$)|missed-partitions")
_ENABLED: Final = {"--enable", "--enable-delete-while-inactive"}


def words_of(
    group: str, command: str, arguments: str, known: Mapping[str, str] | None = None
) -> list[str]:
    """The command's words; `known` has the values that only the broker knows, by name."""
    options = OPTIONS | dict(_INSTEAD.get((group, command), {})) | dict(known or {})
    places = PLACES | {"topicName": _topic(group, command)} | dict(known or {})
    words = [group, command]
    for part in _PART.finditer(arguments):
        optional, place, names = (
            part[1] is not None,
            part["place"],
            (part["names"] or "").split("|"),
        )
        name = max(names, key=len)
        if place is not None and not optional:
            words.append(places[place])
        elif name in _ENABLED:
            words.append("--disable" if "encryption" in command else name)
        elif place is None and not optional:
            words += [name] if part["type"] is None else [name, options.get(name, "7")]
    said = SAID.get((group, command), [])
    return words if set(said[:1]) & set(words) else words + said


def _topic(group: str, command: str) -> str:
    if group == "non-persistent":
        return f"{FLEETING}-wide" if command == "create-partitioned-topic" else FLEETING
    return WIDE if _ON_WIDE.search(command) else TOPIC
