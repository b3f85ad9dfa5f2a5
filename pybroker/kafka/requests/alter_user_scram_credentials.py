"""AlterUserScramCredentials (KIP-554): users' passwords for SCRAM, salted by the client.

- 0: deletions and upsertions, of which one request has at most one for a user and mechanism.
"""

from typing import Any, Final

from pybroker.base.errors import NamingError
from pybroker.broker.namespaces.permissions import check_role
from pybroker.kafka.errors import ErrorCode, KafkaError
from pybroker.kafka.pacing import paced
from pybroker.kafka.permissions import require_admin
from pybroker.kafka.sasl.scram import (
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    Mechanism,
    ScramCredential,
    credential,
)
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Request, Session
from pybroker.logs import audit

_MAX_SALT_BYTES: Final = 1024
Credentials = dict[Mechanism, ScramCredential]


async def handle(services: KafkaServices, session: Session, request: Request) -> dict[str, Any]:
    by_user: dict[str, list[dict[str, Any]]] = {}
    for each in (*request["deletions"], *request["upsertions"]):
        by_user.setdefault(each["name"], []).append(each)
    results = []
    async for user, mine in paced(by_user.items()):
        try:
            require_admin(services, session, "AlterUserScramCredentials")
            if len({each["mechanism"] for each in mine}) < len(mine):
                raise KafkaError(ErrorCode.DUPLICATE_RESOURCE, "the request names it twice")
            await _change(services, user, mine)
        except (KafkaError, NamingError) as error:
            code = getattr(error, "code", ErrorCode.UNACCEPTABLE_CREDENTIAL)
            code = code if isinstance(code, ErrorCode) else ErrorCode.UNACCEPTABLE_CREDENTIAL
            results.append({"user": user, "error_code": code, "error_message": str(error)})
        else:
            results.append({"user": user, "error_message": None})
    return {"results": results}


async def _change(services: KafkaServices, user: str, changes: list[dict[str, Any]]) -> None:
    check_role(user)
    known = services.logins.scram_users.credentials(user)
    for each in changes:
        known = _changed(known, each)
    await services.logins.scram_users.put(user, known)
    audit.done("change the SCRAM password", user)


def _changed(known: Credentials, change: dict[str, Any]) -> Credentials:
    """Raises KafkaError for an unknown mechanism, a password that is not there, and too few or too
    many iterations.
    """
    if change["mechanism"] not in list(Mechanism):
        raise KafkaError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "use SCRAM-SHA-256 or SCRAM-SHA-512")
    mechanism = Mechanism(change["mechanism"])
    if "salted_password" not in change:
        if mechanism not in known:
            raise KafkaError(ErrorCode.RESOURCE_NOT_FOUND, "the user has no such password")
        return {each: known[each] for each in known if each is not mechanism}
    iterations, salt = change["iterations"], change["salt"]
    if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS or not 0 < len(salt) <= _MAX_SALT_BYTES:
        raise KafkaError(
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            f"{MIN_ITERATIONS} to {MAX_ITERATIONS} iterations and a salt are needed",
        )
    return known | {mechanism: credential(mechanism, salt, iterations, change["salted_password"])}
