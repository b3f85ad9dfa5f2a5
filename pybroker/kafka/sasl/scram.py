"""SCRAM-SHA-256 and SCRAM-SHA-512: the password itself is neither sent nor stored.

An unknown user learns no more than a known one with a wrong password: the exchange goes on with a
salt made from the name, and fails at its end. Source: RFC 5802, RFC 7677, KIP-84.
"""

import base64
import hashlib
import hmac
import secrets
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Protocol

from pybroker.base.errors import AuthenticationError
from pybroker.kafka.sasl.exchange import Step
from pybroker.security.identity import Identity
from pybroker.security.refused_logins import RefusedLogins

MIN_ITERATIONS: Final = 4096
MAX_ITERATIONS: Final = 16_384
_NONCE_BYTES: Final = 24
_MAX_CHARS: Final = 4096
_UNKNOWN_KEY: Final = secrets.token_bytes(32)  # for the salts of unknown users
_BINDINGS: Final = ("n", "y")  # channel binding is not supported


class Mechanism(IntEnum):
    """Kafka's numbers."""

    SHA_256 = 1
    SHA_512 = 2

    @property
    def sasl_name(self) -> str:
        return "SCRAM-" + self.name.replace("_", "-")

    @property
    def hash_name(self) -> str:
        return self.name.replace("_", "").lower()


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """What is stored of a password."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes


def credential(
    mechanism: Mechanism, salt: bytes, iterations: int, salted_password: bytes
) -> ScramCredential:
    client_key = _mac(mechanism, salted_password, b"Client Key")
    server_key = _mac(mechanism, salted_password, b"Server Key")
    return ScramCredential(salt, iterations, _hash(mechanism, client_key), server_key)


def _mac(mechanism: Mechanism, key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, mechanism.hash_name)


def _hash(mechanism: Mechanism, data: bytes) -> bytes:
    return hashlib.new(mechanism.hash_name, data).digest()


def _credential_of_unknown(mechanism: Mechanism, user: str) -> ScramCredential:
    salt = _mac(mechanism, _UNKNOWN_KEY, user.encode())[:16]
    nothing = bytes(len(_hash(mechanism, b"")))
    return ScramCredential(salt, MIN_ITERATIONS, nothing, nothing)


class ScramUsers(Protocol):
    def credential(self, user: str, mechanism: Mechanism) -> ScramCredential | None:
        """None for an unknown user."""
        ...


class Scram:
    def __init__(
        self,
        mechanism: Mechanism,
        users: ScramUsers,
        refused: RefusedLogins,
        address: str,
    ) -> None:
        self._mechanism = mechanism
        self._users = users
        self._refused = refused
        self._address = address
        self._user = ""
        self._nonce = ""
        self._said = ""  # the messages so far, without the client's header
        self._header = ""
        self._credential: ScramCredential | None = None

    async def step(self, data: bytes) -> Step:
        text = _text(data)
        return self._last(text) if self._nonce else self._first(text)

    def _first(self, text: str) -> Step:
        """Of `n,,n=user,r=nonce`."""
        binding, _, rest = text.partition(",")
        name, _, bare = rest.partition(",")
        if binding not in _BINDINGS or name not in ("", f"a={_attribute(bare, 'n')}"):
            raise AuthenticationError("SCRAM without channel binding and for the own name only")
        self._user = _attribute(bare, "n").replace("=2C", ",").replace("=3D", "=")
        self._nonce = _attribute(bare, "r") + secrets.token_urlsafe(_NONCE_BYTES)
        self._header = f"{binding},{name},"
        self._refused.check(self._address, self._user)
        self._credential = self._users.credential(self._user, self._mechanism)
        used = self._credential or _credential_of_unknown(self._mechanism, self._user)
        salt = base64.b64encode(used.salt).decode()
        answer = f"r={self._nonce},s={salt},i={used.iterations}"
        self._said = f"{bare},{answer}"
        return Step(answer.encode())

    def _last(self, text: str) -> Step:
        """Of `c=header,r=nonce,p=proof`."""
        without_proof, _, _ = text.rpartition(",p=")
        used = self._credential or _credential_of_unknown(self._mechanism, self._user)
        said = f"{self._said},{without_proof}".encode()
        signature = _mac(self._mechanism, used.stored_key, said)
        proof = _decoded(_attribute(text, "p"))
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=False))
        is_right = hmac.compare_digest(_hash(self._mechanism, client_key), used.stored_key)
        is_meant = _attribute(text, "r") == self._nonce and (
            _decoded(_attribute(text, "c")) == self._header.encode()
        )
        if self._credential is None or not is_right or not is_meant:
            self._refused.failed(self._address, self._user)
            raise AuthenticationError("Unknown user or wrong password")
        verifier = base64.b64encode(_mac(self._mechanism, used.server_key, said))
        return Step(b"v=" + verifier, Identity(self._user), True)


def _text(data: bytes) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise AuthenticationError("a message of SCRAM is UTF-8") from None
    if len(text) > _MAX_CHARS:
        raise AuthenticationError(f"a message of SCRAM has at most {_MAX_CHARS} characters")
    return text


def _attribute(text: str, name: str) -> str:
    for part in text.split(","):
        if part.startswith(f"{name}=") and len(part) > 2:
            return part[2:]
    raise AuthenticationError(f"the message of SCRAM has no {name}=")


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise AuthenticationError("a message of SCRAM is not base64") from None
