"""Parses --auth-plugin and --auth-params, as pulsar-client and pulsar-admin do.

There the plugin is a Java class; here its name selects one of three methods. Parameters are JSON or
`key1:value1,key2:value2`. A token may also be given directly, or in a file: it is read again at
each use, so that the token can be replaced.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote

_WAYS: Final = {
    "AuthenticationToken": "token",
    "AuthenticationBasic": "basic",
    "AuthenticationTls": "tls",
    "AuthenticationTLS": "tls",
    "token": "token",
    "basic": "basic",
    "tls": "tls",
}


@dataclass(frozen=True, slots=True)
class Credentials:
    """`way` is token, basic, tls, or empty for none."""

    way: str = ""
    token: Callable[[], str] = field(default=str, repr=False)
    user: str = ""
    password: str = field(default="", repr=False)
    certificate: str = ""
    key: str = field(default="", repr=False)


NOBODY: Final = Credentials()


def credentials(plugin: str, params: str) -> Credentials:
    """The credentials. Without a plugin, the parameters are a token. Raises ValueError."""
    if not plugin and not params:
        return NOBODY
    way = _WAYS.get(plugin.rpartition(".")[2]) if plugin else "token"
    if way is None:
        known = ", ".join(name for name in _WAYS if name.startswith("A"))
        raise ValueError(f"unknown --auth-plugin {plugin}; use one of: {known}")
    return _MADE[way](params)


def _token(params: str) -> Credentials:
    if params.startswith("{"):
        params = _pairs(params).get("token", "")
    if params.startswith("file:"):
        path = unquote(params.removeprefix("file:").removeprefix("//"))
        read_token(path)  # reports errors in the file before anything else is tried
        return Credentials("token", token=lambda: read_token(path))
    token = params.removeprefix("token:").strip()
    if not token:
        raise ValueError("--auth-params has no token: use token:… or file:///…")
    return Credentials("token", token=lambda: token)


def read_token(path: str) -> str:
    """The token in a file. Raises ValueError."""
    try:
        with open(path, encoding="ascii") as file:
            return file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"the token in {path} cannot be read: {error}") from None


def _basic(params: str) -> Credentials:
    said = _pairs(params)
    if not said.get("userId") or "password" not in said:
        raise ValueError("AuthenticationBasic needs --auth-params userId:…,password:…")
    return Credentials("basic", user=said["userId"], password=said["password"])


def _tls(params: str) -> Credentials:
    said = _pairs(params)
    if not said.get("tlsCertFile") or not said.get("tlsKeyFile"):
        raise ValueError("AuthenticationTls needs --auth-params tlsCertFile:…,tlsKeyFile:…")
    return Credentials("tls", certificate=said["tlsCertFile"], key=said["tlsKeyFile"])


_MADE: Final = {"token": _token, "basic": _basic, "tls": _tls}


def _pairs(params: str) -> dict[str, str]:
    """Parameters as pairs. Raises ValueError."""
    if not params.startswith("{"):
        return {
            key.strip(): value
            for key, _, value in (part.partition(":") for part in params.split(","))
        }
    try:
        said = json.loads(params)
        return {str(key): str(value) for key, value in said.items()}
    except (ValueError, AttributeError):
        raise ValueError("--auth-params starts with a brace but is not a JSON object") from None
