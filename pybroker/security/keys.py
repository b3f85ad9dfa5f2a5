"""Keys and files as broker.conf names them: `file:` and `data:` URLs, a path, or plain base64.

Source: Apache Pulsar's AuthTokenUtils.readKeyFromUrl; PEM is understood where it takes DER.
"""

import base64
import binascii
import os
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote_to_bytes, urlsplit

_MAX_BYTES: Final = 1024 * 1024
_INSTALL: Final = (
    "{package} is not installed, and {purpose} needs it; install it with: "
    "pip install 'pybroker[security]'"
)


class KeyFailure(ValueError):
    """The error's text names the setting and says what it accepts."""


class _TooLong(ValueError):
    pass


def missing(package: str, purpose: str) -> KeyFailure:
    return KeyFailure(_INSTALL.format(package=package, purpose=purpose))


def read_source(source: str, setting: str) -> bytes:
    """The content of `source`. Raises KeyFailure."""
    try:
        found = _read(source)
    except (OSError, ValueError) as error:
        # Do not repeat the source: it may itself be the secret.
        raise KeyFailure(f"{setting} cannot be read: {_why(error)}") from None
    if not found:
        raise KeyFailure(f"{setting} is empty")
    return found


def _why(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{error.strerror}: {error.filename}"
    if isinstance(error, _TooLong):
        return f"the file has more than {_MAX_BYTES} bytes"
    return (
        "it is neither an existing file nor base64; use file:///path, data:;base64,…, the path of "
        "an existing file, or base64"
    )


def _read(source: str) -> bytes:
    if source.startswith("data:"):
        return _of_data_url(source)
    if source.startswith("file:"):
        return _of_path(Path(unquote_to_bytes(urlsplit(source).path).decode()))
    return _of_path(Path(source)) if _is_path(source) else _of_base64(source)


def _is_path(source: str) -> bool:
    """Names of missing files count as paths, too: many of them would pass for base64, and a key
    derived from a path could be guessed.
    """
    path = Path(source)
    beginning = Path(*path.parts[: 2 if path.is_absolute() else 1])
    return os.path.isfile(path) or (beginning != path and os.path.isdir(beginning))


def _of_path(path: Path) -> bytes:
    with path.open("rb") as file:
        found = file.read(_MAX_BYTES + 1)
    if len(found) > _MAX_BYTES:
        raise _TooLong
    return found


def _of_data_url(source: str) -> bytes:
    head, comma, data = source.removeprefix("data:").partition(",")
    if not comma:
        raise ValueError
    return _of_base64(data) if head.endswith(";base64") else unquote_to_bytes(data)


def _of_base64(text: str) -> bytes:
    text = text.strip().replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError from None


def public_key(data: bytes, setting: str) -> Any:
    """From DER (SubjectPublicKeyInfo) or PEM. Raises KeyFailure."""
    serialization = _serialization(setting)
    pem = data.lstrip().startswith(b"-----BEGIN")
    load = serialization.load_pem_public_key if pem else serialization.load_der_public_key
    try:
        return load(data)
    except Exception as error:  # cryptography raises different ones
        raise KeyFailure(f"{setting} is not a public key in DER or PEM: {error}") from None


def private_key(data: bytes, setting: str) -> Any:
    """From DER (PKCS#8) or PEM, without a password. Raises KeyFailure."""
    serialization = _serialization(setting)
    pem = data.lstrip().startswith(b"-----BEGIN")
    load = serialization.load_pem_private_key if pem else serialization.load_der_private_key
    try:
        return load(data, None)
    except Exception as error:  # cryptography raises different ones
        raise KeyFailure(f"{setting} is not a private key in DER or PEM: {error}") from None


def is_of_a_pair(data: bytes) -> bool:
    """Whether this is a public or a private key."""
    for load in (public_key, private_key):
        try:
            load(data, "")
        except KeyFailure:
            continue
        return True
    return False


def _serialization(setting: str) -> Any:
    try:
        from cryptography.hazmat.primitives import serialization
    except ImportError:
        raise missing("cryptography", setting) from None
    return serialization
