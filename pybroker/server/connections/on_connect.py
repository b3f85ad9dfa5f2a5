"""CONNECT and authentication; AUTH_CHALLENGE and AUTH_RESPONSE once credentials have expired."""

from typing import Any, Final

from pybroker.base.errors import AuthenticationError, UnsupportedVersionError
from pybroker.security.authentication import Authentication
from pybroker.security.identity import Credentials
from pybroker.server.connections.connection import Connection, Rest
from pybroker.server.connections.live_login import LiveLogin
from pybroker.wire import pulsar_api_pb2 as pb

_TYPE = pb.BaseCommand
PROTOCOL_VERSION: Final = 21
SERVER_VERSION: Final = "pybroker"
MAX_CREDENTIALS_BYTES: Final = 32 * 1024
REFRESH: Final = b"PulsarAuthRefresh"  # the data of a challenge that only asks for new credentials
_NO_METHOD: Final = "none"
_TLS: Final = "tls"


def connect(session: Connection, command: pb.CommandConnect) -> Rest | None:
    if command.protocol_version < 0:
        raise UnsupportedVersionError(f"Protocol version {command.protocol_version} does not exist")
    authentication = session.services.authentication
    if authentication is None or session.login is not None:  # logged in: within this process
        _welcome(session, command)
        return None
    return _connect_with_login(session, command, authentication)


async def _connect_with_login(
    session: Connection, command: pb.CommandConnect, authentication: Authentication
) -> None:
    method, data = _method(command), command.auth_data
    original = None
    if command.HasField("original_principal") or command.HasField("original_auth_data"):
        original = Credentials(
            command.original_auth_method, _checked(command.original_auth_data.encode())
        )
    identity = await authentication.identify(
        Credentials(method, _checked(data), session.certificate),
        session.address,
        command.original_principal,
        original,
    )
    if session.closed:
        return
    # A proxy would send its own credentials, which do not identify its client. A certificate
    # belongs to the connection: a new certificate needs a new connection.
    can_refresh = (
        command.feature_flags.supports_auth_refresh and identity.original is None and method != _TLS
    )
    session.login = LiveLogin(
        identity, method, can_refresh, session.services.is_super_user(identity)
    )
    _welcome(session, command)


def _method(command: pb.CommandConnect) -> str:
    """The client's authentication method; older clients send a number."""
    if command.HasField("auth_method_name"):
        return command.auth_method_name
    if command.HasField("auth_method"):
        name = pb.AuthMethod.Name(command.auth_method)
        return name.removeprefix("AuthMethod").lower()
    return _NO_METHOD


def _checked(data: bytes) -> bytes:
    if len(data) > MAX_CREDENTIALS_BYTES:
        raise AuthenticationError(f"Credentials may have at most {MAX_CREDENTIALS_BYTES} bytes")
    return data


def _welcome(session: Connection, command: pb.CommandConnect) -> None:
    session.protocol_version = min(command.protocol_version, PROTOCOL_VERSION)
    session.client_version = command.client_version[:64]
    session.supports_partial_producer = command.feature_flags.supports_partial_producer
    session.sees_entry_metadata = (
        command.feature_flags.supports_broker_entry_metadata
        and session.services.config.exposing_broker_entry_metadata_to_client_enabled
    )
    session.connected()
    config = session.services.config
    answer = pb.CommandConnected(
        server_version=SERVER_VERSION,
        protocol_version=session.protocol_version,
        max_message_size=config.max_message_size,
        feature_flags=pb.FeatureFlags(
            supports_auth_refresh=session.login is not None,
            supports_partial_producer=True,
            supports_topic_watchers=config.enable_broker_side_subscription_pattern_evaluation,
            supports_get_partitioned_metadata_without_auto_creation=True,
            supports_scalable_topics=config.scalable_topics_enabled,
            supports_tc_metadata_discovery=(
                config.scalable_topics_enabled
                and config.transaction_coordinator_enabled
                and config.transaction_coordinator_scalable_topics_enabled
            ),
            supports_committing_together=True,
            supports_transactional_ids=True,
            supports_asking_topics=True,
            supports_spanning_namespaces=True,
            supports_committing_across=True,
            supports_aborting_on_disconnect=True,
            supports_asking_transactions=True,
            supports_transaction_groups=True,
            supports_covered_messages=True,
            supports_preparing=True,
            supports_kafka_transactions=session.services.answer_kafka is not None,
        ),
    )
    session.send_command(answer)


def ping(session: Connection, command: pb.CommandPing) -> None:
    session.write_pong()


def ignore(session: Connection, command: Any) -> None:
    """PONG only shows that the peer is alive, as any received byte does."""


# -- expired credentials


def check_login(session: Connection, now_ms: int) -> None:
    """Called periodically: expired clients are asked once for new credentials, then closed."""
    login = session.login
    if login is None or not login.has_expired(now_ms):
        return
    if login.challenged or not login.can_refresh:
        session.close("the client's credentials have expired")
        return
    login.challenged = True
    challenge = pb.CommandAuthChallenge(
        server_version=SERVER_VERSION,
        challenge=pb.AuthData(auth_method_name=login.method, auth_data=REFRESH),
        protocol_version=session.protocol_version,
    )
    session.send_command(challenge)


def auth_response(session: Connection, command: pb.CommandAuthResponse) -> Rest | None:
    """Ignores an unsolicited response."""
    login = session.login
    if login is None or not login.challenged:
        return None
    return _log_in_again(session, command, login)


async def _log_in_again(
    session: Connection, command: pb.CommandAuthResponse, login: LiveLogin
) -> None:
    authentication = session.services.authentication
    assert authentication is not None
    shown = command.response
    method = shown.auth_method_name or login.method
    identity = await authentication.identify(
        Credentials(method, _checked(shown.auth_data), session.certificate), session.address
    )
    if identity.roles != login.identity.roles:
        raise AuthenticationError(
            "A connection cannot change its role: these credentials belong to another role"
        )
    login.identity = identity
    login.challenged = False
