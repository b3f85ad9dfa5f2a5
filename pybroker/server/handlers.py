"""Maps commands to handlers: one table, the broker's whole wire interface."""

from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

from pybroker.base.errors import PulsarError
from pybroker.server.connections import on_connect
from pybroker.server.connections.connection import Connection
from pybroker.server.consuming import on_acknowledge, on_consume
from pybroker.server.handler import Handler, OrderedBy, error_in
from pybroker.server.publishing import on_producer
from pybroker.server.topics import on_metadata
from pybroker.server.transactions import on_transaction
from pybroker.wire import commands
from pybroker.wire import pulsar_api_pb2 as pb

_T = pb.BaseCommand


def _close_on_error(session: Connection, body: Any, error: PulsarError) -> None:
    session.write(commands.error(2**64 - 1, error))
    session.close(str(error))


def _ignore(session: Connection, body: Any, error: PulsarError) -> None:
    """The command has no answer."""


def _late(module: str, name: str) -> Callable[..., Any]:
    """A function for commands that most brokers never receive. Its module is imported with the
    first of them.
    """

    def call(*arguments: Any) -> Any:
        return getattr(import_module(f"pybroker.server.{module}"), name)(*arguments)

    return call


def _ordered_by(kind: str, field: str) -> OrderedBy:
    return lambda body: (kind, getattr(body, field))


_OF_PRODUCER: Final = _ordered_by("producer", "producer_id")
_OF_CONSUMER: Final = _ordered_by("consumer", "consumer_id")
_OF_WATCHER: Final = _ordered_by("watcher", "watcher_id")
_OF_LAYOUT: Final = _ordered_by("layout", "session_id")
_OF_GROUP: Final = _ordered_by("group", "consumer_id")
_OF_NAMESPACE: Final = _ordered_by("scalable topics", "watch_id")
_OF_COORDINATORS: Final = _ordered_by("coordinators", "watch_id")


def _of_readings(body: Any) -> tuple[str, int] | None:
    """The next piece is built only after the previous one has been sent."""
    return ("reading", 0) if body.read_bytes else None


HANDLERS: Final[dict[int, Handler]] = {
    _T.CONNECT: Handler("connect", immediate=on_connect.connect, answer_error=_close_on_error),
    _T.PING: Handler("ping", immediate=on_connect.ping),
    _T.PONG: Handler("pong", immediate=on_connect.ignore),
    _T.AUTH_RESPONSE: Handler(
        "authResponse", immediate=on_connect.auth_response, answer_error=_close_on_error
    ),
    # lookup and metadata
    _T.LOOKUP: Handler(
        "lookupTopic", deferred=on_metadata.lookup, answer_error=on_metadata.lookup_failed
    ),
    _T.PARTITIONED_METADATA: Handler(
        "partitionMetadata",
        deferred=on_metadata.partitioned_metadata,
        answer_error=error_in(
            pb.CommandPartitionedTopicMetadataResponse,
            response=pb.CommandPartitionedTopicMetadataResponse.Failed,
        ),
    ),
    _T.GET_TOPICS_OF_NAMESPACE: Handler(
        "getTopicsOfNamespace", immediate=_late("topics.on_topic_list", "topics_of_namespace")
    ),
    _T.WATCH_TOPIC_LIST: Handler(
        "watchTopicList", deferred=_late("topics.on_topic_list", "watch"), ordered_by=_OF_WATCHER
    ),
    _T.WATCH_TOPIC_LIST_CLOSE: Handler(
        "watchTopicListClose",
        deferred=_late("topics.on_topic_list", "close_watch"),
        ordered_by=_OF_WATCHER,
    ),
    _T.ASK_TOPICS: Handler(
        "askTopics", deferred=_late("topics.on_ask_topics", "ask_topics"), ordered_by=_of_readings
    ),
    _T.GET_SCHEMA: Handler(
        "getSchema",
        deferred=on_metadata.get_schema,
        answer_error=error_in(pb.CommandGetSchemaResponse),
    ),
    _T.GET_OR_CREATE_SCHEMA: Handler(
        "getOrCreateSchema",
        deferred=on_metadata.get_or_create_schema,
        answer_error=error_in(pb.CommandGetOrCreateSchemaResponse),
    ),
    # producers
    _T.PRODUCER: Handler("producer", deferred=on_producer.producer, ordered_by=_OF_PRODUCER),
    _T.CLOSE_PRODUCER: Handler(
        "close_producer", deferred=on_producer.close_producer, ordered_by=_OF_PRODUCER
    ),
    # consumers
    _T.SUBSCRIBE: Handler("subscribe", deferred=on_consume.subscribe, ordered_by=_OF_CONSUMER),
    _T.FLOW: Handler("flow", immediate=on_consume.flow),
    _T.ACK: Handler("ack", immediate=on_acknowledge.ack, answer_error=on_acknowledge.ack_failed),
    _T.REDELIVER_UNACKNOWLEDGED_MESSAGES: Handler(
        "redeliverUnacknowledgedMessages", immediate=on_consume.redeliver
    ),
    _T.SEEK: Handler("seek", deferred=on_consume.seek, ordered_by=_OF_CONSUMER),
    _T.UNSUBSCRIBE: Handler(
        "unsubscribe", deferred=on_consume.unsubscribe, ordered_by=_OF_CONSUMER
    ),
    _T.CLOSE_CONSUMER: Handler(
        "close_consumer", deferred=on_consume.close_consumer, ordered_by=_OF_CONSUMER
    ),
    _T.GET_LAST_MESSAGE_ID: Handler("getLastMessageId", deferred=on_consume.get_last_message_id),
    _T.CONSUMER_STATS: Handler(
        "consumerStats",
        deferred=on_consume.consumer_stats,
        answer_error=error_in(pb.CommandConsumerStatsResponse),
    ),
    # the V5 SDK
    _T.SCALABLE_TOPIC_LOOKUP: Handler(
        "scalableTopicLookup",
        deferred=_late("scalable.on_layout", "lookup"),
        answer_error=_late("scalable.on_layout", "failed"),
        ordered_by=_OF_LAYOUT,
    ),
    _T.SCALABLE_TOPIC_CLOSE: Handler(
        "scalableTopicClose",
        deferred=_late("scalable.on_layout", "close"),
        answer_error=_ignore,
        ordered_by=_OF_LAYOUT,
    ),
    _T.SCALABLE_TOPIC_SUBSCRIBE: Handler(
        "scalableTopicSubscribe",
        deferred=_late("scalable.on_assignment", "subscribe"),
        answer_error=error_in(pb.CommandScalableTopicSubscribeResponse),
        ordered_by=_OF_GROUP,
    ),
    _T.SCALABLE_TOPIC_UNSUBSCRIBE: Handler(
        "scalableTopicUnsubscribe",
        deferred=_late("scalable.on_assignment", "unsubscribe"),
        ordered_by=_OF_GROUP,
    ),
    _T.WATCH_SCALABLE_TOPICS: Handler(
        "watchScalableTopics",
        deferred=_late("scalable.on_namespace", "watch"),
        answer_error=error_in(pb.CommandWatchScalableTopicsUpdate, "watch_id"),
        ordered_by=_OF_NAMESPACE,
    ),
    _T.WATCH_SCALABLE_TOPICS_CLOSE: Handler(
        "watchScalableTopicsClose",
        ordered_by=_OF_NAMESPACE,
        deferred=_late("scalable.on_namespace", "close"),
        answer_error=_ignore,
    ),
    _T.WATCH_TC_ASSIGNMENTS: Handler(
        "watchTcAssignments",
        deferred=_late("scalable.on_coordinators", "watch"),
        answer_error=error_in(pb.CommandWatchTcAssignmentsUpdate, "watch_id"),
        ordered_by=_OF_COORDINATORS,
    ),
    _T.WATCH_TC_ASSIGNMENTS_CLOSE: Handler(
        "watchTcAssignmentsClose",
        ordered_by=_OF_COORDINATORS,
        deferred=_late("scalable.on_coordinators", "close"),
        answer_error=_ignore,
    ),
    # transactions
    _T.TC_CLIENT_CONNECT_REQUEST: Handler(
        "tcClientConnectRequest",
        begun=on_transaction.tc_client_connect,
        answer=on_transaction.connected,
        answer_error=on_transaction.failed,
    ),
    _T.NEW_TXN: Handler(
        "newTxn",
        begun=on_transaction.new_txn,
        answer=on_transaction.begun,
        answer_error=on_transaction.failed,
    ),
    _T.ADD_PARTITION_TO_TXN: Handler(
        "addPartitionToTxn",
        begun=on_transaction.add_partition,
        answer=on_transaction.done,
        answer_error=on_transaction.failed,
    ),
    _T.ADD_SUBSCRIPTION_TO_TXN: Handler(
        "addSubscriptionToTxn",
        begun=on_transaction.add_subscription,
        answer=on_transaction.done,
        answer_error=on_transaction.failed,
    ),
    _T.END_TXN: Handler(
        "endTxn",
        begun=on_transaction.end_txn,
        answer=on_transaction.ended,
        answer_error=on_transaction.failed,
    ),
    _T.PREPARE_TXN: Handler(
        "prepareTxn",
        deferred=_late("transactions.on_prepare", "prepare"),
        answer_error=error_in(
            pb.CommandPrepareTxnResponse, "request_id", "txnid_most_bits", "txnid_least_bits"
        ),
    ),
    _T.LIST_PREPARED_TXNS: Handler(
        "listPreparedTxns",
        deferred=_late("transactions.on_prepare", "list_prepared"),
        answer_error=error_in(pb.CommandListPreparedTxnsResponse),
    ),
    _T.ASK_TRANSACTION: Handler(
        "askTransaction",
        deferred=_late("transactions.on_ask_transaction", "ask_transaction"),
        answer_error=error_in(pb.CommandAskTransactionResponse),
    ),
    _T.TRANSACTION_GROUP: Handler(
        "transactionGroup",
        deferred=_late("transactions.on_transaction_group", "transaction_group"),
        answer_error=error_in(pb.CommandTransactionGroupResponse),
    ),
    _T.FENCE_SESSIONS: Handler(
        "fenceSessions",
        deferred=_late("transactions.on_fence_sessions", "fence_sessions"),
        answer_error=error_in(pb.CommandFenceSessionsResponse),
    ),
    _T.KAFKA_TRANSACTION: Handler(
        "kafkaTransaction",
        deferred=_late("transactions.on_kafka_transaction", "kafka_transaction"),
        answer_error=error_in(pb.CommandKafkaTransactionResponse),
    ),
    _T.END_TXN_ON_PARTITION: Handler(
        "endTxnOnPartition",
        deferred=on_transaction.end_on_partition,
        answer_error=on_transaction.failed,
    ),
    _T.END_TXN_ON_SUBSCRIPTION: Handler(
        "endTxnOnSubscription",
        deferred=on_transaction.end_on_subscription,
        answer_error=on_transaction.failed,
    ),
}
