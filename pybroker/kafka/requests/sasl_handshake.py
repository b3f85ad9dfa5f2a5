"""SaslHandshake: the client chooses a mechanism.

- 0: the client's tokens follow as they are, without requests around them.
- 1: they follow in SaslAuthenticate (KIP-152).
"""

from typing import Any, Final

from pybroker.kafka.errors import ErrorCode
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Request, Session

_FIRST_WITH_REQUESTS: Final = 1


async def handle(services: KafkaServices, session: Session, request: Request) -> dict[str, Any]:
    mechanism = request["mechanism"]
    session.exchange = services.logins.exchange(mechanism, session.address)
    if session.exchange is None:
        code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
        return {"error_code": code, "mechanisms": services.logins.mechanisms}
    session.mechanism = mechanism
    session.sends_raw_tokens = request.version < _FIRST_WITH_REQUESTS
    return {"mechanisms": services.logins.mechanisms}
