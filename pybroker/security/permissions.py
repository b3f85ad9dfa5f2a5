"""The table of permissions: what each wire command and each HTTP route needs.

A command's row extracts the objects from its body. A route's row is the first one whose method and
path match: `*` stands for any method, or at a path's end for everything below. A broker with a
command or route without a row does not start.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, NamedTuple

from pybroker.base.names import TopicName, any_topic, whole_topic
from pybroker.security.authorization import Need, Target
from pybroker.wire import pulsar_api_pb2 as pb

_T = pb.BaseCommand


def _nowhere(body: Any) -> Iterable[Target]:
    return (Target(),)


def _on_topic(body: Any) -> Iterable[Target]:
    return (Target.of_topic(TopicName.parse(body.topic)),)


def _on_subscription(body: Any) -> Iterable[Target]:
    return (Target.of_topic(TopicName.parse(body.topic), body.subscription),)


def _on_any_topic(body: Any) -> Iterable[Target]:
    return (Target.of_topic(any_topic(body.topic)),)


def _on_whole_topic(body: Any) -> Iterable[Target]:
    return (Target.of_topic(whole_topic(body.topic)),)


def _on_whole_subscription(body: Any) -> Iterable[Target]:
    return (Target.of_topic(whole_topic(body.topic), body.subscription),)


def _in_namespace(body: Any) -> Iterable[Target]:
    return (Target.of_namespace(body.namespace),)


def _on_partitions(body: Any) -> Iterable[Target]:
    return [Target.of_topic(TopicName.parse(topic)) for topic in body.partitions]


def _on_subscriptions(body: Any) -> Iterable[Target]:
    return [
        Target.of_topic(TopicName.parse(each.topic), each.subscription)
        for each in body.subscription
    ]


def _on_questions(body: Any) -> Iterable[Target]:
    subscription = body.subscription if body.HasField("subscription") else None
    return [Target.of_topic(TopicName.parse(each.topic), subscription) for each in body.question]


@dataclass(frozen=True, slots=True)
class CommandRow:
    """`doing` completes "Client is not authorized to …"."""

    need: Need
    doing: str = ""
    about: Callable[[Any], Iterable[Target]] = _nowhere


# OWN: the command names a producer or consumer of its own connection, which PRODUCER or SUBSCRIBE
# admitted; or a transaction, whose owner the coordinator checks.
_OWN: Final = CommandRow(Need.OWN)
_SUPER_USER: Final = CommandRow(Need.SUPER_USER, "end a part of a transaction")

COMMANDS: Final[Mapping[int, CommandRow]] = {
    _T.CONNECT: CommandRow(Need.NOTHING),
    _T.AUTH_RESPONSE: CommandRow(Need.LOGIN),
    _T.PING: CommandRow(Need.LOGIN),
    _T.PONG: CommandRow(Need.LOGIN),
    _T.LOOKUP: CommandRow(Need.LOOKUP, "Lookup", _on_any_topic),
    _T.PARTITIONED_METADATA: CommandRow(Need.LOOKUP, "Get Partition Metadata", _on_topic),
    _T.GET_TOPICS_OF_NAMESPACE: CommandRow(
        Need.USE_NAMESPACE, "GetTopicsOfNamespace", _in_namespace
    ),
    _T.WATCH_TOPIC_LIST: CommandRow(Need.USE_NAMESPACE, "WatchTopicList", _in_namespace),
    _T.WATCH_TOPIC_LIST_CLOSE: _OWN,
    _T.SCALABLE_TOPIC_LOOKUP: CommandRow(Need.LOOKUP, "Lookup", _on_whole_topic),
    _T.SCALABLE_TOPIC_CLOSE: _OWN,
    _T.SCALABLE_TOPIC_SUBSCRIBE: CommandRow(Need.CONSUME, "subscribe", _on_whole_subscription),
    _T.SCALABLE_TOPIC_UNSUBSCRIBE: _OWN,
    _T.WATCH_SCALABLE_TOPICS: CommandRow(Need.USE_NAMESPACE, "WatchScalableTopics", _in_namespace),
    _T.WATCH_SCALABLE_TOPICS_CLOSE: _OWN,
    _T.WATCH_TC_ASSIGNMENTS: CommandRow(Need.LOGIN),  # as the lookup of a coordinator
    _T.WATCH_TC_ASSIGNMENTS_CLOSE: _OWN,
    _T.ASK_TOPICS: CommandRow(Need.CONSUME, "ask about", _on_questions),
    _T.GET_SCHEMA: CommandRow(Need.LOOKUP, "get the schema", _on_topic),
    _T.GET_OR_CREATE_SCHEMA: CommandRow(Need.PRODUCE, "get or create the schema", _on_topic),
    _T.PRODUCER: CommandRow(Need.PRODUCE, "Produce", _on_topic),
    _T.SEND: _OWN,
    _T.CLOSE_PRODUCER: _OWN,
    _T.SUBSCRIBE: CommandRow(Need.CONSUME, "subscribe", _on_subscription),
    _T.FLOW: _OWN,
    _T.ACK: _OWN,
    _T.REDELIVER_UNACKNOWLEDGED_MESSAGES: _OWN,
    _T.SEEK: _OWN,
    _T.UNSUBSCRIBE: _OWN,
    _T.CLOSE_CONSUMER: _OWN,
    _T.GET_LAST_MESSAGE_ID: _OWN,
    _T.CONSUMER_STATS: _OWN,
    _T.TC_CLIENT_CONNECT_REQUEST: CommandRow(Need.LOGIN),
    _T.NEW_TXN: CommandRow(Need.LOGIN),
    _T.ADD_PARTITION_TO_TXN: CommandRow(
        Need.PRODUCE, "add the partition to a transaction", _on_partitions
    ),
    _T.ADD_SUBSCRIPTION_TO_TXN: CommandRow(
        Need.CONSUME, "add the subscription to a transaction", _on_subscriptions
    ),
    _T.END_TXN: _OWN,
    _T.PREPARE_TXN: _OWN,  # and prepareTransactionRoles
    _T.LIST_PREPARED_TXNS: CommandRow(Need.LOGIN),
    _T.ASK_TRANSACTION: CommandRow(Need.SUPER_USER, "ask about a transaction"),
    _T.TRANSACTION_GROUP: CommandRow(Need.SUPER_USER, "commit transactions of other brokers"),
    _T.FENCE_SESSIONS: CommandRow(Need.SUPER_USER, "fence sessions of a transactional id"),
    _T.KAFKA_TRANSACTION: CommandRow(Need.SUPER_USER, "act for a Kafka producer"),
    _T.END_TXN_ON_PARTITION: _SUPER_USER,
    _T.END_TXN_ON_SUBSCRIPTION: _SUPER_USER,
}


def initial_subscription(body: Any) -> Iterable[Target]:
    """What PRODUCER needs in addition, because it may create a subscription."""
    if not body.initial_subscription_name:
        return ()
    return (Target.of_topic(TopicName.parse(body.topic), body.initial_subscription_name),)


# -- HTTP: the path's parts {tenant}, {namespace}, {topic} and {subscription} are the object


class RouteRow(NamedTuple):
    """A refusal is Apache Pulsar's. It has status 401 if it names the `operation` on a topic, the
    tenant (`of_tenant`) or super-user access; all others have status 403.
    """

    method: str
    path: str
    need: Need
    operation: str = ""
    of_tenant: bool = False


_BROKERS: Final = "/admin/v2/brokers"
_NAMESPACES: Final = "/admin/v2/namespaces"
_NAMESPACE: Final = _NAMESPACES + "/{tenant}/{namespace}"
_TOPICS: Final = "/admin/v2/{domain}/{tenant}/{namespace}"
_TOPIC: Final = _TOPICS + "/{topic}"
_SUBSCRIPTION: Final = _TOPIC + "/subscription/{subscription}"
_SCALABLES: Final = "/admin/v2/scalable/{tenant}/{namespace}"
_SCALABLE: Final = _SCALABLES + "/{topic}"
_SCHEMAS: Final = "/admin/v2/schemas/{tenant}/{namespace}/{topic}"
_TRANSACTIONS: Final = "/admin/v3/transactions"
_IN_TOPIC: Final = "/{tenant}/{namespace}/{topic}"
_IN_SUBSCRIPTION: Final = _IN_TOPIC + "/{subscription}"

ROUTES: Final[tuple[RouteRow, ...]] = tuple(
    RouteRow(*row)
    for row in (
        ("GET", "/metrics", Need.NOTHING),  # authenticateMetricsEndpoint asks for a login
        ("GET", "/metrics/", Need.NOTHING),
        ("GET", "/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}*", Need.LOOKUP, "LOOKUP"),
        ("GET", "/admin/openapi.json", Need.LOGIN),
        # the cluster
        ("GET", "/admin/v2/clusters", Need.LOGIN),
        ("*", "/admin/v2/clusters/*", Need.SUPER_USER),
        ("GET", _BROKERS + "/version", Need.LOGIN),
        ("GET", _BROKERS + "/ready", Need.LOGIN),
        ("GET", _BROKERS + "/health", Need.LOGIN),
        ("*", _BROKERS + "*", Need.SUPER_USER),
        ("*", "/admin/v2/broker-stats*", Need.SUPER_USER),
        ("*", "/admin/v2/bookies/*", Need.SUPER_USER),
        ("*", "/admin/v2/metadata/*", Need.SUPER_USER),
        ("*", "/admin/v2/resource-quotas*", Need.SUPER_USER),
        ("*", "/admin/v2/resourcegroups*", Need.SUPER_USER),
        # tenants and namespaces; policies are for admins
        ("*", "/admin/v2/tenants*", Need.SUPER_USER),
        ("POST", _NAMESPACES + "/grantPermissionsOnTopics", Need.LOGIN),  # the handler checks
        ("POST", _NAMESPACES + "/revokePermissionsOnTopics", Need.LOGIN),  # each topic in the body
        ("GET", _NAMESPACES + "/{cluster}/antiAffinity/{group}", Need.SUPER_USER),
        ("GET", "/admin/namespaces/{cluster}/antiAffinity/{group}", Need.SUPER_USER),
        ("GET", "/admin/namespaces/{tenant}/{cluster}", Need.TENANT_ADMIN),
        ("GET", _NAMESPACES + "/{tenant}", Need.TENANT_ADMIN),
        ("GET", _NAMESPACE + "/topics", Need.USE_NAMESPACE),
        ("PUT", _NAMESPACE + "/unload", Need.SUPER_USER),
        ("PUT", _NAMESPACE + "/{bundle}/unload", Need.SUPER_USER),
        ("PUT", _NAMESPACE + "/{bundle}/split", Need.SUPER_USER),
        ("POST", _NAMESPACE + "/clearBacklog/{subscription}", Need.CONSUME),
        ("POST", _NAMESPACE + "/{bundle}/clearSubscriptionBacklog/{subscription}", Need.CONSUME),
        ("POST", _NAMESPACE + "/unsubscribe/{subscription}", Need.CONSUME),
        ("*", _NAMESPACE + "*", Need.TENANT_ADMIN),
        # scalable topics
        ("GET", _SCALABLES, Need.USE_NAMESPACE),
        ("GET", _SCALABLE, Need.LOOKUP, "GET_METADATA"),
        ("GET", _SCALABLE + "/stats", Need.LOOKUP, "GET_STATS"),
        ("GET", _SCALABLE + "/segments/{segment}/stats", Need.LOOKUP, "GET_STATS"),
        ("PUT", _SCALABLE + "/subscriptions/{subscription}", Need.CONSUME, "SUBSCRIBE"),
        ("DELETE", _SCALABLE + "/subscriptions/{subscription}", Need.CONSUME, "UNSUBSCRIBE"),
        ("POST", _SCALABLE + "/subscriptions/{subscription}/seek", Need.CONSUME, "RESET_CURSOR"),
        ("POST", _SCALABLE + "/subscriptions/{subscription}/skip-all", Need.CONSUME, "SKIP"),
        ("POST", _SCALABLE + "/split/*", Need.SUPER_USER),
        ("POST", _SCALABLE + "/merge/*", Need.SUPER_USER),
        ("POST", _SCALABLE + "/rebucket/*", Need.SUPER_USER),
        ("POST", _SCALABLE + "/migrate", Need.SUPER_USER),
        ("*", _SCALABLE + "/permissions*", Need.TENANT_ADMIN, "", True),
        ("*", _SCALABLE + "*", Need.TENANT_ADMIN),
        ("*", "/admin/v2/segments/*", Need.SUPER_USER),
        # topics: producing or consuming permits viewing, consuming permits moving cursors
        ("GET", _TOPICS, Need.USE_NAMESPACE),
        ("GET", _TOPICS + "/partitioned", Need.USE_NAMESPACE),
        ("GET", _TOPICS + "/{bundle}", Need.USE_NAMESPACE),
        ("GET", _TOPIC + "/partitions", Need.LOOKUP, "LOOKUP"),
        ("GET", _TOPIC + "/stats", Need.LOOKUP, "GET_STATS"),
        ("GET", _TOPIC + "/partitioned-stats", Need.LOOKUP, "GET_STATS"),
        ("GET", _TOPIC + "/internalStats", Need.LOOKUP, "GET_STATS"),
        ("GET", _TOPIC + "/partitioned-internalStats", Need.LOOKUP, "GET_STATS"),
        ("GET", _TOPIC + "/internal-info", Need.LOOKUP, "GET_STATS"),
        ("GET", _TOPIC + "/properties", Need.LOOKUP, "GET_METADATA"),
        ("GET", _TOPIC + "/subscriptions", Need.CONSUME, "GET_SUBSCRIPTIONS"),
        ("GET", _TOPIC + "/lastMessageId", Need.CONSUME, "PEEK_MESSAGES"),
        ("GET", _TOPIC + "/messageid/*", Need.CONSUME, "PEEK_MESSAGES"),
        ("GET", _TOPIC + "/getMessageIdByIndex", Need.CONSUME, "PEEK_MESSAGES"),
        ("GET", _TOPIC + "/examinemessage", Need.CONSUME, "PEEK_MESSAGES"),
        ("GET", _TOPIC + "/ledger/*", Need.CONSUME, "PEEK_MESSAGES"),
        ("GET", _TOPIC + "/backlog", Need.CONSUME, "GET_BACKLOG_SIZE"),
        ("PUT", _TOPIC + "/backlogSize", Need.CONSUME, "GET_BACKLOG_SIZE"),
        ("GET", _SUBSCRIPTION + "/position/*", Need.CONSUME, "PEEK_MESSAGES"),
        ("POST", _SUBSCRIPTION + "/skip/*", Need.CONSUME, "SKIP"),
        ("POST", _SUBSCRIPTION + "/skip_all", Need.CONSUME, "SKIP"),
        ("POST", _SUBSCRIPTION + "/expireMessages*", Need.CONSUME, "EXPIRE_MESSAGES"),
        ("POST", _SUBSCRIPTION + "/resetcursor*", Need.CONSUME, "RESET_CURSOR"),
        ("PUT", _SUBSCRIPTION, Need.CONSUME, "SUBSCRIBE"),
        ("DELETE", _SUBSCRIPTION, Need.CONSUME, "UNSUBSCRIBE"),
        ("*", _SUBSCRIPTION + "*", Need.CONSUME, "CONSUME"),
        ("PUT", _TOPIC + "/unload", Need.TENANT_ADMIN, "UNLOAD"),
        ("POST", _TOPIC + "/terminate*", Need.TENANT_ADMIN, "TERMINATE"),
        ("*", _TOPIC + "/compaction", Need.TENANT_ADMIN, "COMPACT"),
        ("*", _TOPIC + "/offload", Need.TENANT_ADMIN, "OFFLOAD"),
        ("POST", _TOPIC + "/all_subscription/*", Need.TENANT_ADMIN, "EXPIRE_MESSAGES"),
        ("*", _TOPIC + "/permissions*", Need.TENANT_ADMIN, "", True),
        ("*", _TOPIC + "*", Need.TENANT_ADMIN),
        ("*", "/topics/{domain}" + _IN_TOPIC + "/subscriptions/*", Need.CONSUME, "CONSUME"),
        ("POST", "/topics/{domain}" + _IN_TOPIC + "*", Need.PRODUCE, "PRODUCE"),
        ("GET", "/ws/v2/producer/{domain}" + _IN_TOPIC, Need.PRODUCE, "PRODUCE"),
        ("GET", "/ws/v2/consumer/{domain}" + _IN_SUBSCRIPTION, Need.CONSUME, "CONSUME"),
        ("GET", "/ws/v2/reader/{domain}" + _IN_TOPIC, Need.CONSUME, "CONSUME"),
        ("GET", "/ws/v3/consumer/{subscription}", Need.LOGIN),  # its client needs CONSUME of each
        # schemas
        ("GET", _SCHEMAS + "/*", Need.LOOKUP, "GET_METADATA"),
        ("POST", _SCHEMAS + "/compatibility", Need.LOOKUP),
        ("POST", _SCHEMAS + "/version", Need.LOOKUP, "GET_METADATA"),
        ("POST", _SCHEMAS + "/schema", Need.PRODUCE),
        ("DELETE", _SCHEMAS + "/schema", Need.TENANT_ADMIN, "", True),
        ("*", _SCHEMAS + "/*", Need.TENANT_ADMIN),
        # transactions: superusers see what tenants share
        ("GET", _TRANSACTIONS + "/pendingAckStats" + _IN_SUBSCRIPTION, Need.CONSUME),
        ("GET", _TRANSACTIONS + "/pendingAckInternalStats" + _IN_SUBSCRIPTION, Need.CONSUME),
        ("GET", _TRANSACTIONS + "/transactionInPendingAckStats" + _IN_SUBSCRIPTION + "/*",
         Need.CONSUME),
        ("GET", _TRANSACTIONS + "/positionStatsInPendingAck" + _IN_SUBSCRIPTION + "/*",
         Need.CONSUME),
        ("GET", _TRANSACTIONS + "/transactionBufferStats" + _IN_TOPIC, Need.LOOKUP),
        ("GET", _TRANSACTIONS + "/transactionBufferInternalStats" + _IN_TOPIC, Need.LOOKUP),
        ("GET", _TRANSACTIONS + "/transactionInBufferStats" + _IN_TOPIC + "/*", Need.LOOKUP),
        ("GET", _TRANSACTIONS + "/transactionMetadata/{most}/{least}", Need.LOGIN),  # its owner's
        ("GET", _TRANSACTIONS + "/transactionalIds*", Need.LOGIN),  # its owner's
        ("GET", _TRANSACTIONS + "/live", Need.LOGIN),  # its owner's
        ("GET", _TRANSACTIONS + "/ended", Need.LOGIN),  # its owner's
        ("GET", _TRANSACTIONS + "/timeline/{most}/{least}", Need.LOGIN),  # its owner's
        ("GET", _TRANSACTIONS + "/segments" + _IN_TOPIC, Need.LOOKUP),
        ("POST", _TRANSACTIONS, Need.LOGIN),
        ("GET", _TRANSACTIONS + "/{most}/{least}", Need.LOGIN),  # its owner's
        ("POST", _TRANSACTIONS + "/{most}/{least}/commit", Need.LOGIN),  # its owner's
        ("POST", _TRANSACTIONS + "/{most}/{least}/abort", Need.LOGIN),  # its owner's
        # its owner's, and prepareTransactionRoles
        ("POST", _TRANSACTIONS + "/{most}/{least}/prepare", Need.LOGIN),
        # its owner's, and the permission consume
        ("POST", _TRANSACTIONS + "/{most}/{least}/kafkaOffsets", Need.LOGIN),
        ("*", _TRANSACTIONS + "*", Need.SUPER_USER),
        ("*", "/admin/v3/kafka/*", Need.SUPER_USER),
        ("*", "/admin/v3/migrations/*", Need.SUPER_USER),
        # test mode
        ("*", "/admin/v3/faults/*", Need.SUPER_USER),
        ("*", "/admin/v3/clock*", Need.SUPER_USER),
    )
)  # fmt: skip


@cache
def route_row(method: str, path: str) -> RouteRow:
    """The row of a route, by its path without the types of parts. Raises LookupError."""
    for row in ROUTES:
        if row.method in (method, "*") and _fits(path, row.path):
            return row
    raise LookupError(f"{method} {path} has no row in pybroker/security/permissions.py: add one")


def _fits(path: str, pattern: str) -> bool:
    """`/a*` matches /a and everything below it; `/a/*` only what is below."""
    if not pattern.endswith("*"):
        return path == pattern
    base = pattern[:-1]
    return path.startswith(base if base.endswith("/") else base + "/") or path == base
