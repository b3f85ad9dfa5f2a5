"""Connects to the broker, by pulsar-client's general options, which override client.conf."""

import argparse
import re
from argparse import Namespace
from collections.abc import Mapping
from typing import Any, Final

from pybroker.client import (
    Authentication,
    AuthenticationBasic,
    AuthenticationTLS,
    AuthenticationToken,
    Client,
)
from pybroker.commands.client_conf import VARIABLE, client_conf, switch
from pybroker.commands.credentials import Credentials, credentials

URL: Final = "pulsar://localhost:6650"
_TIMEOUT_S: Final = 15.0
_PORT: Final = re.compile(r":([^:\]/]*)(?:/.*)?$")  # in host:port or [::1]:port


def add_service(parser: argparse.ArgumentParser) -> None:
    """Adds the options without defaults, because they may stand before and after the command."""
    group = parser.add_argument_group("broker and credentials")

    def add(*names: str, **how: Any) -> None:
        group.add_argument(*names, default=argparse.SUPPRESS, **how)

    add("--url", metavar="URL", help=f"pulsar://host:port or pulsar+ssl://… (default {URL})")
    add("--auth-plugin", metavar="CLASS", help="AuthenticationToken, …Basic or …Tls")
    add("--auth-params", metavar="TEXT",
        help="token:…, file:///…, userId:…,password:… or tlsCertFile:…,tlsKeyFile:…")  # fmt: skip
    add("--tlsTrustCertsFilePath", metavar="FILE", help="CA file for pulsar+ssl://")
    add("--listener-name", metavar="NAME", help="advertised listener of the broker to use")
    add("--proxy-url", metavar="URL", help="not supported: pass the proxy's address as --url")
    add("--proxy-protocol", metavar="NAME", help="not supported")
    add("-ml", "--memory-limit", metavar="SIZE", help="no effect: queues have their own limits")
    add("--client-conf", metavar="FILE",
        help=f"file with defaults (default ${VARIABLE}; pybroker extension)")  # fmt: skip
    add("--timeout", type=float, metavar="SECONDS",
        help=f"time to wait for answers (default {_TIMEOUT_S:g}; pybroker extension)")  # fmt: skip


def connect(options: Namespace) -> Client:
    """The connected client. Raises ValueError, PulsarException."""
    said = vars(options)
    conf = client_conf(said.get("client_conf"))
    if said.get("proxy_url") or "proxyServiceUrl" in conf:
        raise ValueError("--proxy-url is not supported; pass the proxy's address as --url")
    shown = shown_credentials(said, conf)
    return Client(
        _url(said, conf),
        authentication=_authentication(shown),
        operation_timeout_seconds=said.get("timeout", _TIMEOUT_S),
        listener_name=said.get("listener_name"),
        tls_certificate_file_path=shown.certificate or conf.get("tlsCertificateFilePath"),
        tls_private_key_file_path=shown.key or conf.get("tlsKeyFilePath"),
        **_trust(said, conf),
    )


def shown_credentials(said: Mapping[str, Any], conf: Mapping[str, str]) -> Credentials:
    """The credentials to use. Raises ValueError."""
    return credentials(
        said.get("auth_plugin") or conf.get("authPlugin", ""),
        said.get("auth_params") or conf.get("authParams", ""),
    )


def _url(said: Mapping[str, Any], conf: Mapping[str, str]) -> str:
    url: str = said.get("url") or conf.get("brokerServiceUrl") or URL
    if url.startswith(("ws:", "wss:", "http:", "https:")):
        raise ValueError(f"{url} is not a service URL: use pulsar://host:6650 or pulsar+ssl://…")
    for address in url.partition("://")[2].split(","):
        port = _PORT.search(address)
        if port is not None and not (port[1].isdecimal() and 0 < int(port[1][:6]) <= 65_535):
            raise ValueError(f"{url}: {port[1]!r} is not a port (1 to 65535)")
    return url


def _trust(said: Mapping[str, Any], conf: Mapping[str, str]) -> dict[str, Any]:
    """Differs: host names are verified unless client.conf disables this."""
    path = said.get("tlsTrustCertsFilePath") or conf.get("tlsTrustCertsFilePath")
    return {
        "tls_trust_certs_file_path": path,
        "tls_allow_insecure_connection": switch(conf, "tlsAllowInsecureConnection", False),
        "tls_validate_hostname": switch(conf, "tlsEnableHostnameVerification", True),
    }


def _authentication(shown: Credentials) -> Authentication | None:
    if shown.way == "token":
        return AuthenticationToken(shown.token)
    if shown.way == "basic":
        return AuthenticationBasic(shown.user, shown.password)
    return AuthenticationTLS() if shown.way == "tls" else None
