"""Commands for topics, persistent or not: operations and policies."""

import itertools
import json
import re
import sys
import time
from argparse import Namespace
from typing import Any, Final

from pybroker.commands.admin.command import Command, filled, topic_parts
from pybroker.commands.admin.rest import Answer, Rest, RestError
from pybroker.commands.admin.tables.policies import of_topic, switched, value
from pybroker.commands.admin.values import message_id
from pybroker.commands.entry_answers import HEADER, id_in_batch, is_end_of_backlog, singles

_PLACE: Final = "<topicName>"
_SUB: Final = f"{_PLACE} -s|--subscription String"
_S: Final = "{topic}/subscription/{subscription}"
_STATS: Final = {
    "getPreciseBacklog": "get_precise_backlog",
    "subscriptionBacklogSize": "get_subscription_backlog_size",
    "getEarliestTimeInBacklog": "get_earliest_time_in_backlog",
}
_STATS_OPTIONS: Final = (
    "[-gpb|--get-precise-backlog] [-sbs|--get-subscription-backlog-size] "
    "[-etb|--get-earliest-time-in-backlog]"
)
_ENDS: Final = {"earliest": "-1:-1", "latest": f"{2**63 - 1}:{2**63 - 1}"}
_SHADOW_SOURCE: Final = "PULSAR.SHADOW_SOURCE"  # the property that names the source
_POLL_S: Final = 1.0
_LONGEST_WAIT_S: Final = 3600.0


def _create_partitioned(rest: Rest, options: Namespace) -> None:
    body: Any = options.partitions
    if getattr(options, "metadata", None):
        body = {"partitions": options.partitions, "properties": dict(options.metadata)}
    rest.ask("PUT", filled("{topic}/partitions", options), body)


def _create_shadow(rest: Rest, options: Namespace) -> None:
    """Creates a shadow topic with as many partitions as its source."""
    properties = dict(options.properties or ()) | {_SHADOW_SOURCE: options.source}
    count = rest.ask("GET", filled("{topic}/partitions", Namespace(topicName=options.source)))
    if partitions := count["partitions"]:
        body = {"partitions": partitions, "properties": properties}
        rest.ask("PUT", filled("{topic}/partitions", options), body)
    else:
        rest.ask("PUT", filled("{topic}", options), properties)


def _shadow_source(rest: Rest, options: Namespace) -> str | None:
    properties = rest.ask("GET", filled("{topic}/properties", options)) or {}
    source: str | None = properties.get(_SHADOW_SOURCE)
    return source


def _create_subscription(rest: Rest, options: Namespace) -> None:
    text = options.messageId or "latest"
    body: Any = text if text in ("latest", "earliest") else message_id(text)
    if options.property:
        body = message_id(_ENDS.get(text, text)) | {"properties": dict(options.property)}
    rest.ask("PUT", filled(_S, options), body, {"replicated": "true"} if options.replicated else {})


def _delete(rest: Rest, options: Namespace) -> Any:
    """Deletes one topic; with -r, all topics of the namespace that match the pattern; with
    --from-file, the topics listed in a file.
    """
    names = _meant(rest, options)
    for done, name in enumerate(names, 1):
        query = {"force": str(options.force).lower()}
        rest.ask("DELETE", filled("{topic}", Namespace(topicName=name)), query=query)
        if len(names) > 1:
            print(f"{done} of {len(names)}: {name} deleted", file=sys.stderr)


def _meant(rest: Rest, options: Namespace) -> list[str]:
    if options.from_file:
        with open(options.topic, encoding="utf-8") as lines:
            return [line.strip() for line in lines if line.strip()]
    if not options.regex:
        return [options.topic]
    _, quoted = topic_parts(options.topic)
    namespace = quoted.rsplit("/", 1)[0]
    fits, names = re.compile(options.topic), rest.ask("GET", f"namespaces/{namespace}/topics")
    return [name for name in names if fits.fullmatch(name)]


def _reset_cursor(rest: Rest, options: Namespace) -> None:
    if (options.time is None) == (options.messageId is None):
        raise ValueError("Give either --time or --messageId")
    if options.time is not None:
        at_ms = int((time.time() - options.time) * 1000)
        rest.ask("POST", filled(f"{_S}/resetcursor/{at_ms}", options))
        return
    excluded = getattr(options, "exclude_reset_position", False)
    body = message_id(_ENDS.get(options.messageId, options.messageId)) | {"excluded": excluded}
    rest.ask("POST", filled(f"{_S}/resetcursor", options), body)


def _expire(rest: Rest, options: Namespace) -> None:
    position = getattr(options, "position", None)
    if (options.expireTime is None) == (position is None):
        raise ValueError("Give either --expireTime or --position")
    if position is None:
        rest.ask("POST", filled(f"{_S}/expireMessages/{options.expireTime}", options))
        return
    body = message_id(position) | {"excluded": options.exclude_reset_position}
    rest.ask("POST", filled(f"{_S}/expireMessages", options), body)


def _peek(rest: Rest, options: Namespace) -> list[dict[str, Any]]:
    """As many messages as were asked for, or all that there are."""
    wanted = 1 if options.count is None else options.count
    found: list[dict[str, Any]] = []
    for number in itertools.count(1):
        if len(found) >= wanted:
            break
        try:
            answer = rest.raw("GET", filled(f"{_S}/position/{number}", options))
        except RestError as error:
            if not is_end_of_backlog(error):
                raise
            break
        found += _messages(answer)
    return found[:wanted]


def _by_id(rest: Rest, options: Namespace) -> Any:
    """A message; a list of the messages of a batch."""
    path = filled("{topic}/ledger/{ledgerId}/entry/{entryId}", options)
    found = _messages(rest.raw("GET", path))
    return found[0] if len(found) == 1 else found


def _examine(rest: Rest, options: Namespace) -> dict[str, Any]:
    query = {
        "initialPosition": options.initialPosition or "latest",
        "messagePosition": str(options.messagePosition or 1),
    }
    return _messages(rest.raw("GET", filled("{topic}/examinemessage", options), query=query))[0]


def _messages(answer: Answer) -> list[dict[str, Any]]:
    """For each message its headers, and its payload as text or in hexadecimal."""
    said = answer.described(HEADER)
    found = singles({name.lower(): text for name, text in said.items()}, answer.data)
    if found is None:
        return [said | _payload(answer.data)]
    return [
        said | _own_headers(single, id_in_batch(said["Message-ID"], index)) | _payload(data)
        for index, (single, data) in enumerate(found)
    ]


def _payload(data: bytes) -> dict[str, str]:
    try:
        return {"payload": data.decode()}
    except UnicodeDecodeError:
        return {"payload in hex": data.hex()}


def _own_headers(single: Any, message_id: str) -> dict[str, str]:
    """What a message of a batch has for itself, named as in an entry's headers."""
    said = {"Message-ID": message_id}
    if single.HasField("sequence_id"):
        said["sequence-id"] = str(single.sequence_id)
    if single.HasField("partition_key"):
        said["partition-key"] = single.partition_key
    if single.event_time:
        said["event-time"] = str(single.event_time)
    if single.null_value:
        said["null-value"] = "true"
    properties = {pair.key: pair.value for pair in single.properties}
    if properties:
        said["PROPERTY"] = json.dumps(properties)
    return said | {f"PROPERTY-{key}": value for key, value in properties.items()}


def _message_id_at(rest: Rest, options: Namespace) -> Any:
    from datetime import datetime

    try:
        at = datetime.fromisoformat(options.datetime)
    except ValueError:
        raise ValueError(
            f"{options.datetime!r} is not a time like 2026-11-21T10:00:00+00:00"
        ) from None
    at_ms = int(at.timestamp() * 1000)
    return rest.ask("GET", filled(f"{{topic}}/messageid/{at_ms}", options))


def _backlog_size(rest: Rest, options: Namespace) -> Any:
    body = message_id(options.messageId or "-1:-1")
    return rest.ask("PUT", filled("{topic}/backlogSize", options), body)


def _status(path: str) -> Any:
    """The status of a process; with --wait-complete, when it no longer runs."""

    def run(rest: Rest, options: Namespace) -> Any:
        until_s = time.monotonic() + _LONGEST_WAIT_S
        while True:
            status = rest.ask("GET", filled(f"{{topic}}/{path}", options))
            if not options.wait_complete or status["status"] != "RUNNING":
                return status
            if time.monotonic() > until_s:
                raise ValueError("Still running after an hour: check again later")
            print("still running", file=sys.stderr)
            time.sleep(_POLL_S)

    return run


def _lookup(rest: Rest, options: Namespace) -> Any:
    return rest.ask("GET", filled("/lookup/v2/topic/{topic}", options))["brokerUrl"]


def _partitioned_lookup(rest: Rest, options: Namespace) -> dict[str, Any]:
    domain, bare = topic_parts(options.topicName)
    count = rest.ask("GET", f"{domain}/{bare}/partitions")["partitions"]
    names = [f"{domain}/{bare}-partition-{number}" for number in range(count)]
    found = {name: rest.ask("GET", f"/lookup/v2/topic/{name}")["brokerUrl"] for name in names}
    if not options.sort_by_broker:
        return found
    return {url: [n for n, at in found.items() if at == url] for url in sorted({*found.values()})}


def _offload(rest: Rest, options: Namespace) -> Any:
    """Offloads all but the newest ledgers, of which it keeps just more than the given size."""
    ledgers = rest.ask("GET", filled("{topic}/internalStats", options))["ledgers"]
    kept, first = 0, ledgers[-1]["ledgerId"]
    for ledger in reversed(ledgers):
        kept += ledger["size"]
        first = ledger["ledgerId"]
        if kept > options.size_threshold:
            break
    return rest.ask("PUT", filled("{topic}/offload", options), message_id(f"{first}:0"))


def _subscription_properties(rest: Rest, options: Namespace) -> None:
    if bool(options.property) == options.clear:
        raise ValueError("Give either --property or --clear")
    body = {} if options.clear else dict(options.property)
    rest.ask("PUT", filled(f"{_S}/properties", options), body)


def _list(rest: Rest, options: Namespace) -> Any:
    domain = getattr(options, "topic_domain", None)
    domains = [domain] if domain else ["persistent", "non-persistent"]
    query = {"bundle": options.bundle} if getattr(options, "bundle", None) else {}
    return [
        name
        for domain in domains
        for name in rest.ask("GET", filled(f"{domain}/{{namespace}}", options), query=query)
    ]


_SHARED: Final = (
    Command("create-partitioned-topic", f"{_PLACE} -p|--partitions int [--metadata|-m Map]", run=_create_partitioned),
    Command("update-partitioned-topic", f"{_PLACE} -p|--partitions int [-ulo|--update-local-only] [-f|--force]",
            "POST {topic}/partitions", value("partitions"), {"updateLocalTopicOnly": "update_local_only", "force": "force"}),
    Command("delete-partitioned-topic", f"{_PLACE} [-f|--force] [-d|--deleteSchema]", "DELETE {topic}/partitions", query={"force": "force"}),
    Command("get-partitioned-topic-metadata", _PLACE, "GET {topic}/partitions"),
    Command("list-partitioned-topics", "<namespaceName> [-ist|--include-system-topic]", "GET persistent/{namespace}/partitioned",
            query={"includeSystemTopic": "include_system_topic"}),
    Command("lookup", _PLACE, run=_lookup),
    Command("bundle-range", _PLACE, "GET /lookup/v2/topic/{topic}/bundle"),
    Command("permissions", _PLACE, "GET {topic}/permissions"),
    Command("grant-permission", f"{_PLACE} -r|--role String -a|--actions List", "POST {topic}/permissions/{role}", value("actions")),
    Command("revoke-permission", f"{_PLACE} -r|--role String", "DELETE {topic}/permissions/{role}"),
    Command("stats", f"{_PLACE} {_STATS_OPTIONS}", "GET {topic}/stats", query=_STATS),
    Command("stats-internal", f"{_PLACE} [-m|--metadata]", "GET {topic}/internalStats", query={"metadata": "metadata"}),
    Command("info-internal", _PLACE, "GET {topic}/internal-info"),
    Command("partitioned-stats", f"{_PLACE} [--per-partition] {_STATS_OPTIONS}", "GET {topic}/partitioned-stats",
            query=_STATS | {"perPartition": "per_partition"}),
    Command("partitioned-stats-internal", _PLACE, "GET {topic}/partitioned-internalStats"),
    Command("create-subscription", f"{_SUB} [-m|--messageId String] [-r|--replicated] [--property|-p Map]", run=_create_subscription),
    Command("subscriptions", _PLACE, "GET {topic}/subscriptions"),
    Command("unsubscribe", f"{_SUB} [-f|--force]", f"DELETE {_S}", query={"force": "force"}),
    Command("skip", f"{_SUB} -n|--count long", f"POST {_S}/skip/{{count}}"),
    Command("expire-messages", f"{_SUB} [-t|--expireTime Seconds] [--position|-p String] [-e|--exclude-reset-position]", run=_expire),
    Command("expire-messages-all-subscriptions", f"{_PLACE} -t|--expireTime Seconds", "POST {topic}/all_subscription/expireMessages/{expireTime}"),
    Command("reset-cursor", f"{_SUB} [--time|-t Seconds] [--messageId|-m String] [-e|--exclude-reset-position]", run=_reset_cursor),
    Command("peek-messages", f"{_SUB} [-n|--count int] [-ssm|--show-server-marker] [-til|--transaction-isolation-level String]", run=_peek),
    Command("get-message-by-id", f"{_PLACE} -l|--ledgerId long -e|--entryId long", run=_by_id),
    Command("last-message-id", _PLACE, "GET {topic}/lastMessageId"),
    Command("terminate", _PLACE, "POST {topic}/terminate"),
    Command("truncate", _PLACE, "DELETE {topic}/truncate"),
    Command("unload", _PLACE, "PUT {topic}/unload"),
    Command("compact", _PLACE, "PUT {topic}/compaction"),
    Command("compaction-status", f"{_PLACE} [-w|--wait-complete]", run=_status("compaction")),
)  # fmt: skip
PERSISTENT: Final = (
    *_SHARED,
    Command("list", "<namespaceName>", "GET persistent/{namespace}"),
    Command("skip-all", _SUB, f"POST {_S}/skip_all"),
    Command("delete", f"{_PLACE} [--force|-f]", "DELETE {topic}", query={"force": "force"}),
)
NON_PERSISTENT: Final = (
    *(
        command
        for command in _SHARED
        if command.name
        in (
            "create-partitioned-topic",
            "get-partitioned-topic-metadata",
            "lookup",
            "stats",
            "stats-internal",
        )
    ),
    Command("list", "<namespace>", "GET non-persistent/{namespace}"),
    Command("list-in-bundle", "<namespace> -b|--bundle String", "GET non-persistent/{namespace}", query={"bundle": "bundle"}),
)  # fmt: skip
TOPICS: Final = (
    *_SHARED,
    Command("list", "<namespaceName> [-td|--topic-domain String] [-b|--bundle String] [-ist|--include-system-topic]", run=_list),
    Command("create", f"{_PLACE} [--metadata|-m Map]", "PUT {topic}", lambda o: dict(o.metadata or ())),
    Command("delete", "<topic> [-f|--force] [-d|--deleteSchema] [-r|--regex] [--from-file]", run=_delete),
    Command("create-missed-partitions", _PLACE, "POST {topic}/createMissedPartitions"),
    Command("clear-backlog", _SUB, f"POST {_S}/skip_all"),
    Command("partitioned-lookup", f"{_PLACE} [-s|--sort-by-broker]", run=_partitioned_lookup),
    Command("partitioned-terminate", _PLACE, "POST {topic}/terminate/partitions"),
    Command("trim-topic", _PLACE, "POST {topic}/trim"),
    Command("analyze-backlog", f"{_SUB} [-p|--position String]", f"POST {_S}/analyzeBacklog",
            lambda o: message_id(o.position) if o.position else None),
    Command("examine-messages", f"{_PLACE} [-i|--initialPosition String] [-m|--messagePosition long]", run=_examine),
    Command("get-message-id", f"{_PLACE} -d|--datetime String", run=_message_id_at),
    Command("get-backlog-size", f"{_PLACE} [--messageId|-m String]", run=_backlog_size),
    Command("get-properties", _PLACE, "GET {topic}/properties"),
    Command("update-properties", f"{_PLACE} --property|-p Map", "PUT {topic}/properties", lambda o: dict(o.property)),
    Command("remove-properties", f"{_PLACE} --key|-k String", "DELETE {topic}/properties", query={"key": "key"}),
    Command("get-subscription-properties", _SUB, f"GET {_S}/properties"),
    Command("update-subscription-properties", f"{_SUB} [--property|-p Map] [--clear|-c]", run=_subscription_properties),
    Command("get-replicated-subscription-status", _SUB, f"GET {_S}/replicatedSubscriptionStatus"),
    Command("set-replicated-subscription-status", f"{_SUB} [--enable|-e] [--disable|-d]", f"POST {_S}/replicatedSubscriptionStatus", switched),
    Command("offload", f"{_PLACE} -s|--size-threshold Bytes", run=_offload),
    Command("offload-status", f"{_PLACE} [-w|--wait-complete]", run=_status("offload")),
    Command("get-backlog-quotas", f"{_PLACE} [-ap|--applied]", "GET {topic}/backlogQuotaMap", query={"applied": "applied"}),
    Command("get-deduplication-enabled", _PLACE, "GET {topic}/deduplicationEnabled"),
    Command("enable-deduplication", _PLACE, "POST {topic}/deduplicationEnabled", lambda o: True),
    Command("disable-deduplication", _PLACE, "POST {topic}/deduplicationEnabled", lambda o: False),
    Command("get-schema-validation-enforce", f"{_PLACE} [-ap|--applied]", "GET {topic}/schemaValidationEnforced", query={"applied": "applied"}),
    Command("set-schema-validation-enforce", f"{_PLACE} [--enable|-e]", "POST {topic}/schemaValidationEnforced", value("enable")),
    Command("create-shadow-topic", f"{_PLACE} --source|-s String [--properties|-p Map]", run=_create_shadow),
    Command("get-shadow-source", _PLACE, run=_shadow_source),
    Command("get-shadow-topics", _PLACE, "GET {topic}/shadowTopics"),
    Command("set-shadow-topics", f"{_PLACE} --topics|-t List", "PUT {topic}/shadowTopics", value("topics")),
    Command("remove-shadow-topics", _PLACE, "DELETE {topic}/shadowTopics"),
    *of_topic("topics"),
)  # fmt: skip
TOPIC_POLICIES: Final = (
    Command("delete", _PLACE, "DELETE {topic}/policies"),
    *of_topic("topicPolicies"),
)
