"""TxnOffsetCommit: offsets that are the group's when the transaction commits.

Versions: from 3 on the member and its generation (KIP-447), so that zombies are fenced; from 5 on
the group joins the transaction without AddOffsetsToTxn (KIP-890).
"""

from collections.abc import Mapping
from typing import Any, Final

from pybroker.kafka.coordinator.committing import Committer
from pybroker.kafka.errors import KafkaError
from pybroker.kafka.permissions import require_group
from pybroker.kafka.requests.offset_commit import (
    topics_with_errors,
    unknown_partitions,
    wanted_offsets,
)
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Request, Session
from pybroker.kafka.transactions.requesting import claim_in, client_of, code_for

_ADDS: Final = 5


async def handle(services: KafkaServices, session: Session, request: Request) -> Mapping[str, Any]:
    wanted = await wanted_offsets(request)
    unknown = await unknown_partitions(services, session, wanted)
    known = {place: each for place, each in wanted.items() if place not in unknown}
    committer = Committer(
        request["member_id"],
        request["group_instance_id"],
        request["generation_id"],
        session.user,
    )
    try:
        require_group(services, session, request["group_id"])
        errors = await services.transactions.commit_offsets(
            client_of(services, session),
            claim_in(session, request),
            request["group_id"],
            committer,
            known,
            adds=request.version >= _ADDS,
        )
    except KafkaError as error:
        errors = dict.fromkeys(known, code_for(request, error.code))
    return {"topics": await topics_with_errors(request, {**errors, **unknown})}
