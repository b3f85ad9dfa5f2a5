"""Which requests are served, in which versions, by which module; and which are left out, and why.

A row's module is imported when the first request of its kind arrives. It has `async def
handle(services, session, request)`, which returns one of:

- the response's body, a dict;
- a future of it, if the request's row is `pipelined`: the request has been accepted in its order,
  and the next one may begin;
- None: the client expects no response.

Versions that are advertised below the first one that a row serves satisfy clients that look for
them; such a request closes the connection.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Final

from pybroker.kafka.codec.messages import decode_request, encode_response
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Request, Session

Body = Mapping[str, Any]
Response = Body | Awaitable[Body | None] | None
Handle = Callable[[KafkaServices, Session, Request], Awaitable[Response]]
Decode = Callable[[int, int, bytes, int], dict[str, Any]]  # key, version, bytes, where it begins
Encode = Callable[[int, int, Body], bytes]
_PACKAGE: Final = "pybroker.kafka.requests"
# For every request but Produce, whose limit comes with the size of a message.
MOST_BYTES: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    key: int
    first: int  # the versions that are served
    last: int
    module: str  # in this package
    advertised: int | None = None  # the first version that is advertised, if not `first`
    before_login: bool = False
    pipelined: bool = False
    carries_records: bool = False  # its size is limited by that of messages
    codec: str = ""  # a module with these functions, written by hand


ROWS: Final = {
    row.key: row
    for row in (
        Row(
            "Produce",
            0,
            3,
            13,
            "produce",
            advertised=0,
            pipelined=True,
            carries_records=True,
            codec="pybroker.kafka.codec.produce",
        ),
        Row("Fetch", 1, 4, 18, "fetch", codec="pybroker.kafka.codec.fetch"),
        Row("ListOffsets", 2, 1, 11, "list_offsets"),
        Row("Metadata", 3, 0, 13, "metadata"),
        Row("OffsetCommit", 8, 2, 10, "offset_commit"),
        Row("OffsetFetch", 9, 1, 10, "offset_fetch"),
        Row("FindCoordinator", 10, 0, 6, "find_coordinator"),
        Row("JoinGroup", 11, 0, 9, "join_group"),
        Row("Heartbeat", 12, 0, 4, "heartbeat"),
        Row("LeaveGroup", 13, 0, 5, "leave_group"),
        Row("SyncGroup", 14, 0, 5, "sync_group"),
        Row("DescribeGroups", 15, 0, 6, "describe_groups"),
        Row("ListGroups", 16, 0, 5, "list_groups"),
        Row("SaslHandshake", 17, 0, 1, "sasl_handshake", before_login=True),
        Row("ApiVersions", 18, 0, 4, "api_versions", before_login=True),
        Row("CreateTopics", 19, 2, 7, "create_topics"),
        Row("DeleteTopics", 20, 1, 6, "delete_topics"),
        Row("DeleteRecords", 21, 0, 2, "delete_records"),
        Row("InitProducerId", 22, 0, 6, "init_producer_id"),
        Row("OffsetForLeaderEpoch", 23, 2, 4, "offset_for_leader_epoch"),
        Row("AddPartitionsToTxn", 24, 0, 3, "add_partitions_to_txn"),
        Row("AddOffsetsToTxn", 25, 0, 4, "add_offsets_to_txn"),
        Row("EndTxn", 26, 0, 5, "end_txn"),
        Row("TxnOffsetCommit", 28, 0, 5, "txn_offset_commit"),
        Row("DescribeAcls", 29, 1, 3, "describe_acls"),
        Row("CreateAcls", 30, 1, 3, "create_acls"),
        Row("DeleteAcls", 31, 1, 3, "delete_acls"),
        Row("DescribeConfigs", 32, 1, 4, "describe_configs"),
        Row("AlterConfigs", 33, 0, 2, "alter_configs"),
        Row("DescribeLogDirs", 35, 1, 5, "describe_log_dirs"),
        Row("SaslAuthenticate", 36, 0, 2, "sasl_authenticate", before_login=True),
        Row("CreatePartitions", 37, 0, 3, "create_partitions"),
        Row("DeleteGroups", 42, 0, 2, "delete_groups"),
        Row("IncrementalAlterConfigs", 44, 0, 1, "incremental_alter_configs"),
        Row("OffsetDelete", 47, 0, 0, "offset_delete"),
        Row("DescribeUserScramCredentials", 50, 0, 0, "describe_user_scram_credentials"),
        Row("AlterUserScramCredentials", 51, 0, 0, "alter_user_scram_credentials"),
        Row("DescribeCluster", 60, 0, 2, "describe_cluster"),
        Row("DescribeProducers", 61, 0, 0, "describe_producers"),
        Row("DescribeTransactions", 65, 0, 0, "describe_transactions"),
        Row("ListTransactions", 66, 0, 2, "list_transactions"),
        Row("ConsumerGroupHeartbeat", 68, 0, 1, "consumer_group_heartbeat"),
        Row("ConsumerGroupDescribe", 69, 0, 1, "consumer_group_describe"),
        Row("ListConfigResources", 74, 0, 1, "list_config_resources"),
        Row("DescribeTopicPartitions", 75, 0, 0, "describe_topic_partitions"),
        Row("ShareGroupHeartbeat", 76, 1, 1, "share_group_heartbeat"),
        Row("ShareGroupDescribe", 77, 1, 1, "share_group_describe"),
        Row("ShareFetch", 78, 1, 2, "share_fetch"),
        Row("ShareAcknowledge", 79, 1, 2, "share_acknowledge"),
        Row("DescribeShareGroupOffsets", 90, 0, 1, "describe_share_group_offsets"),
        Row("AlterShareGroupOffsets", 91, 0, 0, "alter_share_group_offsets"),
        Row("DeleteShareGroupOffsets", 92, 0, 0, "delete_share_group_offsets"),
    )
}

# Requests of clients that this broker does not serve. They are not advertised.
LEFT_OUT: Final = {
    38: "CreateDelegationToken: tokens come from `pybroker tokens`",
    39: "RenewDelegationToken: the same",
    40: "ExpireDelegationToken: the same",
    41: "DescribeDelegationToken: the same",
    43: "ElectLeaders: a partition has one broker at a time, and the cluster chooses it",
    45: "AlterPartitionReassignments: bundles move, by `pybroker admin namespaces`",
    46: "ListPartitionReassignments: the same",
    48: "DescribeClientQuotas: rates are policies of topics and namespaces: `pybroker admin`",
    49: "AlterClientQuotas: the same",
    55: "DescribeQuorum: there is no KRaft quorum",
    71: "GetTelemetrySubscriptions: clients' metrics are not collected",
    72: "PushTelemetry: the same",
    88: "StreamsGroupHeartbeat: Kafka Streams uses the classic protocol of groups",
    89: "StreamsGroupDescribe: the same",
}


@cache
def handler(key: int) -> Handle:
    found: Handle = import_module(f"{_PACKAGE}.{ROWS[key].module}").handle
    return found


@cache
def codec(key: int) -> tuple[Decode, Encode]:
    if not ROWS[key].codec:
        return decode_request, encode_response
    module = import_module(ROWS[key].codec)
    return module.decode_request, module.encode_response


def decode_usual(key: int, version: int, data: bytes, at: int) -> dict[str, Any] | None:
    """Reads what a codec written by hand can read; None for everything else."""
    if not ROWS[key].codec:
        return None
    body: dict[str, Any] | None = import_module(ROWS[key].codec).decode_usual(version, data, at)
    return body
