"""The login of this broker on other brokers: the brokerClient… keys of broker.conf."""

from managed_ledger.storage.tls_files import ClientTls, TlsFiles
from pybroker.base.configuration.config import BrokerConfig
from pybroker.client.connection.auth import (
    Authentication,
    AuthenticationBasic,
    AuthenticationTLS,
    AuthenticationToken,
)
from pybroker.cluster.transactions.peers import PeerOptions
from pybroker.commands.credentials import Credentials, credentials

_DISABLED = "AuthenticationDisabled"  # Apache Pulsar's default


class BadBrokerClient(ValueError):
    """The message names the keys and says what to write."""


def peer_options(config: BrokerConfig) -> PeerOptions:
    """Raises BadBrokerClient if other brokers could not let this one in; the message names the
    setting.
    """
    plugin = config.broker_client_authentication_plugin
    if plugin.rpartition(".")[2] == _DISABLED:
        plugin = ""
    try:
        found = credentials(plugin, config.broker_client_authentication_parameters)
        tls = _tls(config, found) if config.broker_client_tls_enabled else None
    except (OSError, ValueError) as error:
        raise BadBrokerClient(
            "brokerClientAuthenticationPlugin and …Parameters, or brokerClientTrustCertsFilePath "
            f"and the certificate beside it, cannot be used: {error}"
        ) from error
    may_be_anonymous = config.anonymous_user_role and not config.authorization_enabled
    needs_role = config.authentication_enabled or config.authorization_enabled
    if needs_role and not may_be_anonymous and found.way == "":
        raise BadBrokerClient(
            "with authenticationEnabled=true, brokers of a cluster need a role to end transactions "
            "on each other: set brokerClientAuthenticationPlugin and "
            "brokerClientAuthenticationParameters, and put that role into superUserRoles"
        )
    return PeerOptions(_authentication(found), tls)


def _authentication(found: Credentials) -> Authentication | None:
    match found.way:
        case "token":
            return AuthenticationToken(found.token)
        case "basic":
            return AuthenticationBasic(found.user, found.password)
        case "tls":
            return AuthenticationTLS()
    return None


def _tls(config: BrokerConfig, found: Credentials) -> ClientTls:
    files = TlsFiles(
        config.broker_client_trust_certs_file_path,
        found.certificate or config.broker_client_certificate_file_path,
        found.key or config.broker_client_key_file_path,
    )
    return ClientTls(files, config.tls_cert_refresh_check_duration_sec)
