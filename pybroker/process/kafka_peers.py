"""Asks other brokers about transactional producers of Kafka's that they have."""

from pybroker.base.errors import PulsarError
from pybroker.base.names import TxnId
from pybroker.kafka.errors import ErrorCode, KafkaError, code_of
from pybroker.kafka.offsets.logs import topic_of_group
from pybroker.kafka.transactions.live_producer import Claim
from pybroker.kafka.transactions.remote_producers import Part
from pybroker.kafka.transactions.surroundings import TxnClient
from pybroker.process.membership import Membership
from pybroker.wire import pulsar_api_pb2 as pb


class KafkaPeers:
    """Implements AsksBroker."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership

    async def __call__(self, client: TxnClient, claim: Claim, part: Part, adds: bool) -> TxnId:
        try:
            answer = await self._answer(_command(client, claim, part, adds))
        except PulsarError as error:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error)) from error
        if answer.kafka_error:
            raise KafkaError(code_of(answer.kafka_error), answer.message)
        return TxnId(answer.txnid_most_bits, answer.txnid_least_bits)

    async def _answer(
        self, command: pb.CommandKafkaTransaction
    ) -> pb.CommandKafkaTransactionResponse:
        log = topic_of_group(command.transactional_id)
        broker = await self._membership.ownership.owner_of(log)
        if broker is None:
            raise KafkaError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "this broker has just taken the producer"
            )
        return await self._membership.ask_kafka(broker, command)


def _command(client: TxnClient, claim: Claim, part: Part, adds: bool) -> pb.CommandKafkaTransaction:
    return pb.CommandKafkaTransaction(
        transactional_id=claim.id.name,
        owner=claim.id.owner,
        producer_id=claim.key.producer_id,
        producer_epoch=claim.key.epoch,
        topic=None if part.topic is None else str(part.topic),
        group=part.group,
        adds=adds,
        principal=client.principal,
        peer=client.peer,
        client_version=client.version,
    )
