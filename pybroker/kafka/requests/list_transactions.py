"""ListTransactions: the transactional producers of this broker, filtered as the client wishes.

Versions: from 1 on by how long they run; from 2 on by a pattern of the transactional id.
"""

from collections.abc import Mapping
from typing import Any

from pybroker.broker.topic_lists.pattern import BadPattern, TopicPattern
from pybroker.kafka.errors import ErrorCode
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Request, Session
from pybroker.kafka.transactions.requesting import client_of
from pybroker.kafka.transactions.showing import STATES, Shown, shown


async def handle(services: KafkaServices, session: Session, request: Request) -> Mapping[str, Any]:
    principal = client_of(services, session).principal
    try:
        pattern = request["transactional_id_pattern"]
        matches = TopicPattern(pattern).matches if pattern else lambda name: True
    except BadPattern:
        return {"error_code": ErrorCode.INVALID_REGULAR_EXPRESSION}
    found = [
        each
        for each in await shown(services.groups, services.coordinators)
        if principal in (None, each.id.owner) and matches(each.id.name)
    ]
    now_ms = services.clock.now_ms()
    return {
        "unknown_state_filters": [each for each in request["state_filters"] if each not in STATES],
        "transaction_states": [
            {
                "transactional_id": each.id.name,
                "producer_id": each.stored.key.producer_id,
                "transaction_state": each.state,
            }
            for each in found
            if _is_wanted(each, request, now_ms)
        ],
    }


def _is_wanted(each: Shown, request: Request, now_ms: int) -> bool:
    states, ids = request["state_filters"], request["producer_id_filters"]
    longer_ms = request["duration_filter"]
    if states and each.state not in states:
        return False
    if ids and each.stored.key.producer_id not in ids:
        return False
    return longer_ms < 0 or (each.live is not None and now_ms - each.started_ms >= longer_ms)
