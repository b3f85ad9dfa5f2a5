"""The sockets on which a broker listens. They are bound before the storage is opened."""

import socket
from typing import Final

from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.runtime import Clock
from pybroker.security.tls_connection import TlsListener
from pybroker.security.tls_contexts import TlsContexts, TlsSettings

_OPTIONS: Final = {
    "broker_service_port": "--port",
    "broker_service_port_tls": "brokerServicePortTls",
    "web_service_port": "--http-port",
    "web_service_port_tls": "webServicePortTls",
    "kafka_service_port": "--kafka-port",
    "kafka_service_port_tls": "kafkaServicePortTls",
}
_BINARY: Final = ("broker_service_port", "broker_service_port_tls")
_WEB: Final = ("web_service_port", "web_service_port_tls")
_KAFKA: Final = ("kafka_service_port", "kafka_service_port_tls")


class StartFailed(Exception):
    """The broker did not start; the message says why and what to do."""


class Ports:
    """The ports in the configuration, by key."""

    def __init__(self, config: BrokerConfig, http: bool) -> None:
        self.bound: dict[str, socket.socket] = {}
        self._host = config.bind_address
        names = _BINARY + (_WEB if http else ()) + _KAFKA
        self._wanted = {name: getattr(config, name) for name in names}

    def bind(self) -> None:
        """Bind all configured ports. Raises StartFailed."""
        if all(self._wanted[name] is None for name in _BINARY):
            raise StartFailed("no port to listen on: set brokerServicePort or brokerServicePortTls")
        for name, port in self._wanted.items():
            if port is not None:
                self.bound[name] = _bind(self._host, port, _OPTIONS[name])

    def with_tls(self, name: str, contexts: TlsContexts | None) -> TlsListener | None:
        bound = self.bound.get(name)
        return None if bound is None or contexts is None else TlsListener(bound, contexts)

    def close(self) -> None:
        for bound in self.bound.values():
            bound.close()


def _bind(host: str, port: int, option: str) -> socket.socket:
    """A bound socket that does not listen yet. Raises StartFailed."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With IPPROTO_TCP, asyncio sets TCP_NODELAY on accepted connections.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise StartFailed(
            f"cannot listen on {host}:{port}: {error.strerror}; stop what listens there or use "
            f"another port with {option} (0 picks a free one)"
        ) from None
    return listener


def tls_contexts(config: BrokerConfig, clock: Clock) -> TlsContexts | None:
    """The TLS contexts of the binary protocol and of Kafka's; None if neither has a TLS port.

    Raises KeyFailure.
    """
    if config.broker_service_port_tls is None and config.kafka_service_port_tls is None:
        return None
    return _contexts(config, clock, config.tls_protocols, config.tls_ciphers)


def web_tls_contexts(config: BrokerConfig, clock: Clock) -> TlsContexts | None:
    if config.web_service_port_tls is None:
        return None
    protocols = config.web_service_tls_protocols or config.tls_protocols
    return _contexts(config, clock, protocols, config.web_service_tls_ciphers or config.tls_ciphers)


def _contexts(
    config: BrokerConfig, clock: Clock, protocols: tuple[str, ...], ciphers: tuple[str, ...]
) -> TlsContexts:
    settings = TlsSettings(
        certificate_file_path=config.tls_certificate_file_path,
        key_file_path=config.tls_key_file_path,
        trust_certs_file_path=config.tls_trust_certs_file_path,
        require_trusted_client_cert=config.tls_require_trusted_client_cert_on_connect,
        protocols=protocols,
        ciphers=ciphers,
    )
    return TlsContexts(settings, config.tls_cert_refresh_check_duration_sec, clock)
