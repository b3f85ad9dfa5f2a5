"""Answers KAFKA_TRANSACTION: another broker asks for the transaction of a producer of this one."""

from pybroker.base.names import TopicName
from pybroker.kafka.errors import KafkaError
from pybroker.kafka.transactions.kafka_transactions import KafkaTransactions
from pybroker.kafka.transactions.live_producer import Claim
from pybroker.kafka.transactions.remote_producers import Part
from pybroker.kafka.transactions.surroundings import TxnClient
from pybroker.kafka.transactions.values import ProducerKey
from pybroker.transaction.coordinator.sessions.transactional_ids import TransactionalId
from pybroker.wire import pulsar_api_pb2 as pb


async def answer(
    transactions: KafkaTransactions, command: pb.CommandKafkaTransaction
) -> pb.CommandKafkaTransactionResponse:
    """Puts a KafkaError into the answer. Raises the PulsarErrors of `take_part`."""
    owner = command.owner if command.HasField("owner") else None
    principal = command.principal if command.HasField("principal") else None
    client = TxnClient(owner, principal, command.peer, command.client_version)
    key = ProducerKey(command.producer_id, command.producer_epoch)
    claim = Claim(TransactionalId(owner, command.transactional_id), key)
    topic = TopicName.parse(command.topic) if command.HasField("topic") else None
    found = pb.CommandKafkaTransactionResponse(request_id=command.request_id)
    try:
        txn_id = await transactions.take_part(
            client, claim, Part(topic, command.group), command.adds
        )
    except KafkaError as error:
        found.kafka_error, found.message = error.code, str(error)
    else:
        found.txnid_most_bits, found.txnid_least_bits = txn_id
    return found
