"""The cluster's addresses and credentials, from which drivers and tasks create their clients."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Self

from pybroker.base.errors import NotAllowed
from pybroker.client import (
    Authentication,
    AuthenticationBasic,
    AuthenticationTLS,
    AuthenticationToken,
    Client,
    aio,
)
from pybroker.spark.options import Chosen, Mode, chosen, required
from pybroker.spark.session import Connect

_OF_CLIENTS: Final = "pulsar.client."


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Pickled to executors; its repr omits credentials."""

    service_url: str
    auth_plugin: str | None = None
    auth_params: str = field(default="", repr=False)
    tls_trust_certs_file_path: str | None = None
    tls_allow_insecure_connection: bool = False
    tls_validate_hostname: bool = True
    operation_timeout_s: float = 30.0
    connection_timeout_ms: int = 10_000
    listener_name: str | None = None
    tls_certificate_file_path: str | None = None
    tls_key_file_path: str | None = None

    @classmethod
    def of(cls, options: Chosen) -> Self:
        """Raises NotAllowed without the option service.url."""
        return cls(
            required(options, "service.url"),
            options["pulsar.client.authPluginClassName"],
            options["pulsar.client.authParams"] or "",
            options["pulsar.client.tlsTrustCertsFilePath"],
            options["pulsar.client.tlsAllowInsecureConnection"],
            options["pulsar.client.tlsHostnameVerificationEnable"],
            options["pulsar.client.operationTimeoutMs"] / 1000,
            options["pulsar.client.connectionTimeoutMs"],
            options["pulsar.client.listenerName"],
            options["pulsar.client.tlsCertificateFilePath"],
            options["pulsar.client.tlsKeyFilePath"],
        )

    def connect(self) -> Client:
        """Raises NotAllowed for unknown kinds of credentials."""
        return Client(self.service_url, **self._client_options())

    def connect_on_loop(self) -> aio.Client:
        """The same for asyncio."""
        return aio.Client(self.service_url, **self._client_options())

    def _client_options(self) -> dict[str, Any]:
        certificate, key = self._tls_identity()
        return {
            "authentication": self._authentication(),
            "operation_timeout_seconds": self.operation_timeout_s,
            "connection_timeout_ms": self.connection_timeout_ms,
            "listener_name": self.listener_name,
            "tls_trust_certs_file_path": self.tls_trust_certs_file_path,
            "tls_allow_insecure_connection": self.tls_allow_insecure_connection,
            "tls_validate_hostname": self.tls_validate_hostname,
            "tls_certificate_file_path": certificate,
            "tls_private_key_file_path": key,
            "enable_transaction": True,
        }

    def _authentication(self) -> Authentication | None:
        if self.auth_plugin is None:
            if self.auth_params:
                raise NotAllowed(
                    "pulsar.client.authParams also needs pulsar.client.authPluginClassName"
                )
            return None
        name = self.auth_plugin.rpartition(".")[2]
        if name not in _AUTHENTICATIONS:
            raise NotAllowed(
                f"pulsar.client.authPluginClassName is {self.auth_plugin}; use one of "
                f"{', '.join(_AUTHENTICATIONS)}, with or without the package name"
            )
        return _AUTHENTICATIONS[name](self.auth_params)

    def _tls_identity(self) -> tuple[str | None, str | None]:
        if self.auth_plugin is None or not self.auth_plugin.endswith("AuthenticationTls"):
            return self.tls_certificate_file_path, self.tls_key_file_path
        paths = _parameters(self.auth_params)
        return paths.get("tlsCertFile"), paths.get("tlsKeyFile")


def connecting(service_url: str, client_options: Mapping[str, str] | None) -> Connect:
    """Returns a function that connects to a service URL with the source's client options. Raises
    NotAllowed."""
    given = dict(client_options or {})
    for name in given:
        if not name.lower().startswith(_OF_CLIENTS):
            raise NotAllowed(
                f"client_options contains {name}; it accepts only options of {_OF_CLIENTS}*"
            )
    return partial(_connect, Endpoint.of(chosen({"service.url": service_url} | given, Mode.ALL)))


def _connect(endpoint: Endpoint, service_url: str) -> Client:
    return replace(endpoint, service_url=service_url).connect()


def _token(params: str) -> Authentication:
    """token:…, file:/…, or {"token": …}, as in the Java client."""
    if params.startswith("file:"):
        path = "/" + params.removeprefix("file:").lstrip("/")

        def current() -> str:
            with open(path) as lines:
                return lines.read().strip()

        return AuthenticationToken(current)
    if params.startswith("{"):
        return AuthenticationToken(_parameters(params).get("token", ""))
    return AuthenticationToken(params.removeprefix("token:"))


def _basic(params: str) -> Authentication:
    given = _parameters(params)
    return AuthenticationBasic(given.get("userId", ""), given.get("password", ""))


def _tls(params: str) -> Authentication:
    return AuthenticationTLS()


_AUTHENTICATIONS: Final[Mapping[str, Callable[[str], Authentication]]] = {
    "AuthenticationToken": _token,
    "AuthenticationBasic": _basic,
    "AuthenticationTls": _tls,
}


def _parameters(params: str) -> Mapping[str, str]:
    """JSON, or name:value separated by commas, as in the Java client."""
    if params.lstrip().startswith("{"):
        try:
            return {str(name): str(value) for name, value in json.loads(params).items()}
        except ValueError:
            raise NotAllowed("pulsar.client.authParams starts like JSON but is not JSON") from None
    pairs = (part.partition(":") for part in params.split(",") if part)
    return {name.strip(): value.strip() for name, _, value in pairs}
