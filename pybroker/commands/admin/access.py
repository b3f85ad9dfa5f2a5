"""The URL and the credentials of the admin REST API, from options, the environment and client.conf,
in this order.
"""

import argparse
import os
import ssl
from argparse import Namespace
from collections.abc import Mapping
from typing import Final

from pybroker.commands.admin.rest import Rest, basic, bearer
from pybroker.commands.client_conf import client_conf, switch
from pybroker.commands.credentials import Credentials, credentials

_URL: Final = "http://localhost:8080"


def add_access(parser: argparse._ActionsContainer, *, again: bool = False) -> None:
    """Adds the options. With `again` they may also stand before the command's name: the parser
    after the name then does not reset them.
    """
    add = parser.add_argument
    text, off, none = (argparse.SUPPRESS,) * 3 if again else ("", False, None)
    add("--admin-url", "--url", default=text, metavar="URL",
        help=f"URL of the broker's HTTP port (default PULSAR_ADMIN_URL, else {_URL})")  # fmt: skip
    add("--token", default=text, help="authentication token (default PULSAR_TOKEN)")
    add(
        "--auth-plugin",
        default=text,
        metavar="CLASS",
        help="as in pulsar-admin: …AuthenticationToken",
    )
    add("--auth-params", default=text, metavar="TEXT",
        help="token:…, file:///…, userId:…,password:… or tlsCertFile:…,tlsKeyFile:…")  # fmt: skip
    add("--tls-trust-cert-path", default=text, metavar="FILE", help="CA file for https://")
    add("--tls-allow-insecure", action="store_true", default=off,
        help="skip certificate verification")  # fmt: skip
    add("--client-conf", default=none, metavar="FILE",
        help="file with defaults (default: $PULSAR_CLIENT_CONF)")  # fmt: skip


def rest_of(options: Namespace) -> Rest:
    """The connection that the options describe. Raises ValueError, OSError."""
    conf = client_conf(options.client_conf)
    url = options.admin_url or os.environ.get("PULSAR_ADMIN_URL") or conf.get("webServiceUrl")
    shown = _shown(options, conf)
    return rest(url or _URL, shown, conf, options.tls_trust_cert_path, options.tls_allow_insecure)


def _shown(options: Namespace, conf: Mapping[str, str]) -> Credentials:
    """The credentials to use. Raises ValueError."""
    token = options.token or os.environ.get("PULSAR_TOKEN", "")
    if token and not options.auth_params:
        return credentials("token", f"token:{token}")
    return credentials(
        options.auth_plugin or conf.get("authPlugin", ""),
        options.auth_params or conf.get("authParams", ""),
    )


def rest(
    url: str, shown: Credentials, conf: Mapping[str, str], trusted: str = "", insecure: bool = False
) -> Rest:
    """A connection with these credentials. Raises ValueError, OSError."""
    return Rest(url, _authorization(shown), _tls(url, shown, conf, trusted, insecure))


def _authorization(shown: Credentials) -> str:
    if shown.way == "token":
        return bearer(shown.token())
    return basic(shown.user, shown.password) if shown.way == "basic" else ""


def _tls(
    url: str, shown: Credentials, conf: Mapping[str, str], trusted: str, insecure: bool
) -> ssl.SSLContext | None:
    if not url.startswith("https:"):
        return None
    trusted = trusted or conf.get("tlsTrustCertsFilePath", "")
    context = ssl.create_default_context(cafile=trusted or None)
    context.check_hostname = switch(conf, "tlsEnableHostnameVerification", True)
    if insecure or switch(conf, "tlsAllowInsecureConnection", False):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if shown.certificate:
        context.load_cert_chain(shown.certificate, shown.key)
    return context
