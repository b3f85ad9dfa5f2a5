"""Who may send a request: whoever has logged in, by SASL, by certificate, or as anonymous."""

from pybroker.base.errors import AuthenticationError, AuthorizationError, PulsarError
from pybroker.base.errors import TooManyRequests as TooMany
from pybroker.kafka.permissions import actor_of
from pybroker.kafka.requests.sasl_authenticate import next_step
from pybroker.kafka.requests.table import Row
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Session
from pybroker.logs import audit


class Closing(Exception):
    """Why the broker closes the connection: a sentence for the log."""


def must_log_in(services: KafkaServices, session: Session) -> bool:
    return services.logins.required and session.identity is None


async def admit(services: KafkaServices, session: Session, row: Row) -> None:
    """Raises Closing, unless the client may send this request."""
    if row.before_login or not services.logins.required:
        return
    if session.identity is None:
        await _log_in_without_sasl(services, session, row)
    expires_ms = None if session.identity is None else session.identity.expires_ms
    if expires_ms is not None and services.clock.now_ms() >= expires_ms:
        raise Closing("the client's credentials have expired")


async def _log_in_without_sasl(services: KafkaServices, session: Session, row: Row) -> None:
    try:
        session.identity = await services.logins.without_sasl(session.certificate, session.address)
    except (AuthenticationError, AuthorizationError, TooMany) as error:
        _say_refused(session, error)
        raise Closing(
            f"it sent {row.name} without logging in: set security.protocol to SASL_PLAINTEXT or "
            f"SASL_SSL ({error})"
        ) from None
    audit.act_as(actor_of(session))


async def raw_step(session: Session, token: bytes) -> bytes:
    """A message of SASL without a request around it. Raises Closing."""
    try:
        return await next_step(session, token)
    except (AuthenticationError, AuthorizationError, TooMany) as error:
        _say_refused(session, error)
        raise Closing(f"its login was refused: {error}") from None


def _say_refused(session: Session, error: PulsarError) -> None:
    kind = type(error).__name__
    audit.refused(actor_of(session), "login", session.mechanism, kind, str(error))
