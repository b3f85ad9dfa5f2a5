"""A broker with TLS on both ports, and clients for it."""

import ssl
from typing import Any
from urllib.parse import urlsplit

from certificates import Authority

from pybroker.client import Client
from pybroker.testing import RunningBroker


def settings(authority: Authority, **more: Any) -> dict[str, Any]:
    certificate, key = (str(authority.directory / f"broker.{end}") for end in ("crt", "key"))
    return {
        "broker_service_port_tls": 0,
        "web_service_port_tls": 0,
        "tls_certificate_file_path": certificate,
        "tls_key_file_path": key,
    } | more


def client(broker: RunningBroker, authority: Authority, **options: Any) -> Client:
    trust = {"tls_trust_certs_file_path": str(authority.path)}
    return Client(broker.service_url_tls, **trust | options)


def context(authority: Authority, *certificate: str) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=str(authority.path))
    if certificate:
        made.load_cert_chain(*certificate)
    return made


def address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return "127.0.0.1", parts.port or 0
