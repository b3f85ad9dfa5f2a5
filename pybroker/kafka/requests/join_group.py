"""JoinGroup: a member joins the next generation of its group; the answer may take long.

Versions: from 1 on a rebalance timeout; from 4 on a new member needs an id first (KIP-394); from 5
on group.instance.id; from 9 on a static leader is told to skip the assignment (KIP-814).
"""

import uuid
from collections.abc import Mapping
from random import Random
from typing import Any, Final

from pybroker.kafka.groups.values import JoinAnswer, JoinRequest, Protocol
from pybroker.kafka.permissions import require_group
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Request, Session

_KNOWS_ITS_ID: Final = 4
_SKIPS_ASSIGNMENT: Final = 9


async def handle(services: KafkaServices, session: Session, request: Request) -> Mapping[str, Any]:
    require_group(services, session, request["group_id"])
    # One too many is refused as a hundred thousand are, and takes no time.
    protocols = request["protocols"][: services.groups.limits.group.max_protocols + 1]
    asked = JoinRequest(
        request["member_id"],
        fresh_id(services.rng, request["group_instance_id"] or request.client_id),
        request["protocol_type"],
        tuple(Protocol(each["name"], bytes(each["metadata"])) for each in protocols),
        request["session_timeout_ms"],
        _rebalance_timeout_ms(request),
        request["group_instance_id"],
        request.client_id or "",
        f"/{session.address}",
        request.version >= _KNOWS_ITS_ID,
        request.version >= _SKIPS_ASSIGNMENT,
        session.user,
    )
    return _response(await services.groups.join(request["group_id"], asked))


def fresh_id(rng: Random, name: str | None) -> str:
    return f"{name or ''}-{uuid.UUID(int=rng.getrandbits(128), version=4)}"


def _rebalance_timeout_ms(request: Request) -> int:
    given: int = request["rebalance_timeout_ms"]
    session_timeout_ms: int = request["session_timeout_ms"]
    return given if given >= 0 else session_timeout_ms


def _response(answer: JoinAnswer) -> Mapping[str, Any]:
    return {
        "error_code": answer.error,
        "generation_id": answer.generation,
        "protocol_type": answer.protocol_type or None,
        "protocol_name": answer.protocol,
        "leader": answer.leader,
        "skip_assignment": answer.skips_assignment,
        "member_id": answer.member_id,
        "members": [
            {
                "member_id": each.member_id,
                "group_instance_id": each.instance_id,
                "metadata": each.metadata,
            }
            for each in answer.members
        ],
    }
