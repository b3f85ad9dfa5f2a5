"""KAFKA_TRANSACTION: another broker asks for the transaction of a Kafka producer that this one has.

Differs: Apache Pulsar has no such command; CONNECTED announces it (`supports_kafka_transactions`).
"""

from pybroker.base.errors import ServiceNotReady
from pybroker.server.connections.connection import Connection
from pybroker.server.transactions.on_behalf_of import principal_of
from pybroker.transaction.coordinator.sessions.transactional_ids import check_id
from pybroker.wire import pulsar_api_pb2 as pb


async def kafka_transaction(session: Connection, command: pb.CommandKafkaTransaction) -> None:
    """Raises NotAllowed for a bad transactional id, ServiceNotReady if Kafka's clients are not
    served.
    """
    check_id(command.transactional_id)
    principal_of(session, command.owner if command.HasField("owner") else None)
    principal_of(session, command.principal if command.HasField("principal") else None)
    answer_kafka = session.services.answer_kafka
    if answer_kafka is None:
        raise ServiceNotReady("This broker has no Kafka producers: start it with --kafka")
    answer = await answer_kafka(command)
    session.send_command(answer)
