"""DescribeCluster (KIP-700): the brokers and what the client may do with the cluster.

- 1 (KIP-919): the type of the endpoint; brokers are 1, controllers 2. There are no controllers.
- 2 (KIP-1073): fenced brokers, of which there are none.
"""

from typing import Any, Final

from pybroker.kafka.errors import ErrorCode
from pybroker.kafka.permissions import cluster_operations
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Request, Session

_BROKERS: Final = 1


async def handle(services: KafkaServices, session: Session, request: Request) -> dict[str, Any]:
    if request["endpoint_type"] != _BROKERS:
        return {
            "error_code": ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            "error_message": "this is a broker: name its address with --bootstrap-server",
        }
    found: dict[str, Any] = {
        "cluster_id": services.config.cluster_name,
        "controller_id": services.nodes.own_id,
        "brokers": [
            {"broker_id": node.id, "host": node.host, "port": node.port}
            for node in services.nodes.seen_by(session)
        ],
    }
    if request["include_cluster_authorized_operations"]:
        found["cluster_authorized_operations"] = cluster_operations(services, session)
    return found
