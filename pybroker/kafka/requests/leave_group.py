"""LeaveGroup: members leave, or an administrator removes static ones.

Versions: from 3 on several members, each with an error of its own.
"""

from collections.abc import Mapping
from typing import Any, Final

from pybroker.base.runtime import Pace
from pybroker.kafka.permissions import require_group
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Request, Session

_SEVERAL: Final = 3
_A_TURN: Final = 50


async def handle(services: KafkaServices, session: Session, request: Request) -> Mapping[str, Any]:
    require_group(services, session, request["group_id"])
    if request.version < _SEVERAL:
        (error,) = await services.groups.leave(request["group_id"], [(request["member_id"], None)])
        return {"error_code": error}
    answers: list[dict[str, Any]] = []
    pace = Pace(_A_TURN)
    for begin in range(0, len(request["members"]), _A_TURN):
        some = request["members"][begin : begin + _A_TURN]
        members = [(each["member_id"], each["group_instance_id"]) for each in some]
        errors = await services.groups.leave(request["group_id"], members)
        answers += [
            {"member_id": member_id, "group_instance_id": instance_id, "error_code": error}
            for (member_id, instance_id), error in zip(members, errors, strict=True)
        ]
        await pace.step(len(some))
    return {"members": answers}
