"""DescribeUserScramCredentials (KIP-554): which users have SCRAM passwords, never the passwords.

- 0: null, or no user, asks for all.
"""

from typing import Any

from pybroker.kafka.errors import ErrorCode
from pybroker.kafka.pacing import paced
from pybroker.kafka.permissions import require_admin
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Request, Session


async def handle(services: KafkaServices, session: Session, request: Request) -> dict[str, Any]:
    require_admin(services, session, "DescribeUserScramCredentials")
    asked = [each["name"] for each in request["users"] or ()]
    users = asked or services.logins.scram_users.users()
    return {
        "error_message": None,
        "results": [_described(services, user) async for user in paced(dict.fromkeys(users))],
    }


def _described(services: KafkaServices, user: str) -> dict[str, Any]:
    known = services.logins.scram_users.credentials(user)
    if not known:
        code = ErrorCode.RESOURCE_NOT_FOUND
        return {"user": user, "error_code": code, "error_message": f"{user} has no SCRAM password"}
    infos = [
        {"mechanism": mechanism, "iterations": each.iterations} for mechanism, each in known.items()
    ]
    return {"user": user, "error_message": None, "credential_infos": infos}
