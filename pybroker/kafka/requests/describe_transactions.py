"""DescribeTransactions: transactional producers by their transactional ids."""

from collections.abc import Mapping
from typing import Any, Final

from pybroker.kafka.errors import ErrorCode, KafkaError
from pybroker.kafka.pacing import paced
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Request, Session
from pybroker.kafka.transactions.requesting import client_of, id_of
from pybroker.kafka.transactions.showing import Shown, by_topic, partitions_of, shown

_NO_TIMEOUT_MS: Final = 2**31 - 1  # as Kafka says it


async def handle(services: KafkaServices, session: Session, request: Request) -> Mapping[str, Any]:
    principal = client_of(services, session).principal
    try:
        known = await shown(services.groups, services.coordinators)
    except KafkaError as error:
        return {"transaction_states": [_failed(each, error.code) for each in _names(request)]}
    mine = id_of(session, "").owner
    found: dict[str, Shown] = {}
    for each in known:
        is_own = each.id.owner == mine
        if is_own or (principal is None and each.id.name not in found):
            found[each.id.name] = each
    names = paced(_names(request))
    return {"transaction_states": [_state(services, name, found) async for name in names]}


def _names(request: Request) -> list[str]:
    return list(dict.fromkeys(request["transactional_ids"]))


def _failed(name: str, code: ErrorCode) -> Mapping[str, Any]:
    return {"error_code": code, "transactional_id": name}


def _state(services: KafkaServices, name: str, found: Mapping[str, Shown]) -> Mapping[str, Any]:
    if name not in found:
        return _failed(name, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    each = found[name]
    places = [] if each.live is None else partitions_of(each.live, services.names)
    return {
        "error_code": ErrorCode.NONE,
        "transactional_id": name,
        "transaction_state": each.state,
        "transaction_timeout_ms": each.stored.timeout_ms or _NO_TIMEOUT_MS,
        "transaction_start_time_ms": each.started_ms,
        "producer_id": each.stored.key.producer_id,
        "producer_epoch": each.stored.key.epoch,
        "topics": [
            {"topic": topic, "partitions": partitions}
            for topic, partitions in by_topic(places).items()
        ],
    }
