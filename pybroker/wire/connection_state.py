"""The commands that a connection accepts in each state. Source: the binary protocol's
"Connection establishment".
"""

from enum import IntEnum, auto
from typing import Final

from pybroker.wire import pulsar_api_pb2 as pb

_T = pb.BaseCommand


class ConnectionState(IntEnum):  # looked up for every command: integers hash fast
    AWAITING_CONNECT = auto()
    CONNECTED = auto()
    CLOSED = auto()


# SEND is absent: the decoder returns it in a SendRun, never as a command.
RECEIVED_WHEN_CONNECTED: Final = frozenset(
    {
        _T.LOOKUP,
        _T.PARTITIONED_METADATA,
        _T.PRODUCER,
        _T.SUBSCRIBE,
        _T.FLOW,
        _T.ACK,
        _T.REDELIVER_UNACKNOWLEDGED_MESSAGES,
        _T.UNSUBSCRIBE,
        _T.CLOSE_PRODUCER,
        _T.CLOSE_CONSUMER,
        _T.SEEK,
        _T.GET_LAST_MESSAGE_ID,
        _T.GET_TOPICS_OF_NAMESPACE,
        _T.GET_SCHEMA,
        _T.AUTH_RESPONSE,
        _T.PING,
        _T.PONG,
        _T.CONSUMER_STATS,
        _T.GET_OR_CREATE_SCHEMA,
        _T.TC_CLIENT_CONNECT_REQUEST,
        _T.NEW_TXN,
        _T.ADD_PARTITION_TO_TXN,
        _T.ADD_SUBSCRIPTION_TO_TXN,
        _T.END_TXN,
        _T.PREPARE_TXN,
        _T.LIST_PREPARED_TXNS,
        _T.ASK_TRANSACTION,
        _T.TRANSACTION_GROUP,
        _T.FENCE_SESSIONS,
        _T.KAFKA_TRANSACTION,
        _T.END_TXN_ON_PARTITION,
        _T.END_TXN_ON_SUBSCRIPTION,
        _T.WATCH_TOPIC_LIST,
        _T.WATCH_TOPIC_LIST_CLOSE,
        _T.ASK_TOPICS,
        _T.SCALABLE_TOPIC_LOOKUP,
        _T.SCALABLE_TOPIC_CLOSE,
        _T.SCALABLE_TOPIC_SUBSCRIBE,
        _T.SCALABLE_TOPIC_UNSUBSCRIBE,
        _T.WATCH_SCALABLE_TOPICS,
        _T.WATCH_SCALABLE_TOPICS_CLOSE,
        _T.WATCH_TC_ASSIGNMENTS,
        _T.WATCH_TC_ASSIGNMENTS_CLOSE,
    }
)

ACCEPTED: Final[dict[ConnectionState, frozenset[int]]] = {
    ConnectionState.AWAITING_CONNECT: frozenset({_T.CONNECT}),
    ConnectionState.CONNECTED: RECEIVED_WHEN_CONNECTED,
    ConnectionState.CLOSED: frozenset(),
}
