"""AddPartitionsToTxn: topics in which the producer will write.

Versions to 3 are clients'; the later ones are for Kafka's brokers among each other, and left out.
Either all partitions are added or none.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pybroker.base.names import TopicName
from pybroker.kafka.errors import ErrorCode, KafkaError
from pybroker.kafka.offsets.records import TopicPartition
from pybroker.kafka.pacing import paced
from pybroker.kafka.permissions import Operation, require_topic
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Request, Session
from pybroker.kafka.topics import found_partition
from pybroker.kafka.transactions.requesting import claim_of, client_of, code_for

Codes = dict[TopicPartition, ErrorCode]


async def handle(services: KafkaServices, session: Session, request: Request) -> Mapping[str, Any]:
    codes: Codes = {}
    places = paced(_places(request))
    topics = [await _name(services, session, place, codes) async for place in places]
    if any(code is not ErrorCode.NONE for code in codes.values()):
        for place, code in codes.items():
            codes[place] = ErrorCode.OPERATION_NOT_ATTEMPTED if code is ErrorCode.NONE else code
        return _response(request, codes)
    claim = claim_of(
        session,
        request["v3_and_below_transactional_id"],
        request["v3_and_below_producer_id"],
        request["v3_and_below_producer_epoch"],
    )
    known = [each for each in topics if each is not None]
    try:
        await services.transactions.add_partitions(client_of(services, session), claim, known)
    except KafkaError as error:
        codes = dict.fromkeys(codes, code_for(request, error.code))
    return _response(request, codes)


def _places(request: Request) -> Iterator[TopicPartition]:
    for topic in request["v3_and_below_topics"]:
        for partition in topic["partitions"]:
            yield TopicPartition(topic["name"], partition)


async def _name(
    services: KafkaServices, session: Session, place: TopicPartition, codes: Codes
) -> TopicName | None:
    try:
        require_topic(services, session, Operation.WRITE, services.names.topic(place.topic))
        name = await found_partition(services, place.topic, place.partition)
    except KafkaError as error:
        codes[place] = error.code
        return None
    codes[place] = ErrorCode.NONE
    return name


def _response(request: Request, codes: Codes) -> Mapping[str, Any]:
    results = [
        {
            "name": topic["name"],
            "results_by_partition": [
                {
                    "partition_index": partition,
                    "partition_error_code": codes[TopicPartition(topic["name"], partition)],
                }
                for partition in topic["partitions"]
            ],
        }
        for topic in request["v3_and_below_topics"]
    ]
    return {"results_by_topic_v3_and_below": results}
