"""SaslAuthenticate: one message of the mechanism that SaslHandshake chose.

- 1: the response says how long the login lasts; the client logs in again on the same connection
  before that (KIP-368).
- 2: flexible.

After a refusal the connection is closed, as the client expects.
"""

from typing import Any

from pybroker.base.errors import AuthenticationError, AuthorizationError, PulsarError
from pybroker.base.errors import TooManyRequests as TooMany
from pybroker.kafka.errors import ErrorCode
from pybroker.kafka.permissions import actor_of
from pybroker.kafka.sasl.exchange import Step
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Request, Session
from pybroker.logs import audit
from pybroker.security.identity import Identity


async def handle(services: KafkaServices, session: Session, request: Request) -> dict[str, Any]:
    try:
        answer = await next_step(session, request["auth_bytes"])
    except (AuthenticationError, AuthorizationError, TooMany) as error:
        return _refused(session, error)
    return {"auth_bytes": answer, "session_lifetime_ms": _lifetime_ms(services, session)}


async def next_step(session: Session, data: bytes) -> bytes:
    """The answer to the client's message; afterwards the session may have its identity.

    Raises AuthenticationError, AuthorizationError, TooManyRequests.
    """
    if session.exchange is None:
        raise AuthenticationError("SaslHandshake comes first: it chooses the mechanism")
    step = await session.exchange.step(data)
    if step.done:
        session.exchange, session.sends_raw_tokens = None, False
        _log_in(session, step)
    return step.answer


def _log_in(session: Session, step: Step) -> None:
    before: Identity | None = session.identity
    if before is not None and step.identity is not None and before.roles != step.identity.roles:
        raise AuthenticationError(
            "A connection cannot change its role: these credentials belong to another role"
        )
    session.identity = step.identity
    audit.act_as(actor_of(session))


def _refused(session: Session, error: PulsarError) -> dict[str, Any]:
    kind = type(error).__name__
    audit.refused(actor_of(session), "login", session.mechanism, kind, str(error))
    session.closing = f"its login was refused: {error}"
    message = error.on_the_wire
    return {"error_code": ErrorCode.SASL_AUTHENTICATION_FAILED, "error_message": message}


def _lifetime_ms(services: KafkaServices, session: Session) -> int:
    """0: for ever, or the login is not over."""
    if session.identity is None or session.identity.expires_ms is None:
        return 0
    return max(1, session.identity.expires_ms - services.clock.now_ms())
