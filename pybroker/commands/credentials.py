"""--auth-plugin and --auth-params, as pulsar-client and pulsar-admin take them.

The plugin is a Java class there; here its name says which of three ways is meant. Parameters are
JSON or `key1:value1,key2:value2`; a token may also stand alone, or in a file that is read again
whenever it is shown, so that a new one can be put there.
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
    """Raises ValueError. Without a plugin, params are a token's."""
    if not plugin and not params:
        return NOBODY
    way = _WAYS.get(plugin.rpartition(".")[2]) if plugin else "token"
    if way is None:
        known = ", ".join(name for name in _WAYS if name.startswith("A"))
        raise ValueError(f"--auth-plugin {plugin} is not known; {known} are")
    return _MADE[way](params)


def _token(params: str) -> Credentials:
    if params.startswith("{"):
        params = _pairs(params).get("token", "")
    if params.startswith("file:"):
        path = unquote(params.removeprefix("file:").removeprefix("//"))
        read_token(path)  # what is wrong with it is said before anything is tried
        return Credentials("token", token=lambda: read_token(path))
    token = params.removeprefix("token:").strip()
    if not token:
        raise ValueError("--auth-params has no token: it is token:…, or file:///…")
    return Credentials("token", token=lambda: token)


def read_token(path: str) -> str:
    """Raises ValueError."""
    try:
        with open(path, encoding="ascii") as file:
            return file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"the token in {path} cannot be read: {error}") from None


def _basic(params: str) -> Credentials:
    said = _pairs(params)
    if not said.get("userId") or "password" not in said:
        raise ValueError("--auth-params of AuthenticationBasic are userId:…,password:…")
    return Credentials("basic", user=said["userId"], password=said["password"])


def _tls(params: str) -> Credentials:
    said = _pairs(params)
    if not said.get("tlsCertFile") or not said.get("tlsKeyFile"):
        raise ValueError("--auth-params of AuthenticationTls are tlsCertFile:…,tlsKeyFile:…")
    return Credentials("tls", certificate=said["tlsCertFile"], key=said["tlsKeyFile"])


_MADE: Final = {"token": _token, "basic": _basic, "tls": _tls}


def _pairs(params: str) -> dict[str, str]:
    """Raises ValueError."""
    if not params.startswith("{"):
        return {
            key.strip(): value
            for key, _, value in (part.partition(":") for part in params.split(","))
        }
    try:
        said = json.loads(params)
        return {str(key): str(value) for key, value in said.items()}
    except (ValueError, AttributeError):
        raise ValueError("--auth-params begins with a brace and is no JSON object") from None
