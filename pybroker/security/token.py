"""JSON Web Tokens, signed with a shared secret or a private key whose public key is configured.

The accepted algorithms come from the configuration, never from the token: the family of
`tokenPublicAlg`, or HMAC for a secret key. Claims are checked against the broker's own clock.
"""

import json
import logging
from typing import Any, Final

from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.errors import AuthenticationError
from pybroker.base.runtime import Clock
from pybroker.security.identity import Credentials, Login
from pybroker.security.keys import KeyFailure, is_of_a_pair, missing, public_key, read_source

log = logging.getLogger(__name__)

MAX_TOKEN_BYTES: Final = 16 * 1024
MAX_ROLE: Final = 1024
_REFUSED: Final = "Failed to authenticate"  # Apache Pulsar's words, which clients compare
_SECRET_FAMILY: Final = "HS"
_FAMILIES: Final = ("RS", "PS", "ES")
_SIZES: Final = ("256", "384", "512")
ALGORITHMS: Final = tuple(f + size for f in (_SECRET_FAMILY, *_FAMILIES) for size in _SIZES)
_LEAST_SECRET_BYTES: Final = 32


def jws() -> Any:
    """PyJWT's signatures, without its claim checks. Raises KeyFailure if not installed."""
    try:
        from jwt.api_jws import PyJWS
    except ImportError:
        raise missing("PyJWT", "token authentication") from None
    return PyJWS()


class TokenProvider:
    method = "token"

    def __init__(self, config: BrokerConfig, clock: Clock) -> None:
        """Raises KeyFailure if the key cannot be used, or tokenAudience is missing."""
        self._jws = jws()
        self._clock = clock
        self._config = config
        self._key_bytes, self._key, family = _verifying_key(config)
        self._algorithms = [family + size for size in _SIZES]
        self._role_claim = config.token_auth_claim or "sub"
        self._audience_claim = config.token_audience_claim
        self._audience = config.token_audience
        if self._audience_claim and not self._audience:
            raise KeyFailure("tokenAudienceClaim is set: also set tokenAudience")
        self._skew_ms = config.token_allowed_clock_skew_seconds * 1000

    def reload(self) -> None:
        found, key, _ = _verifying_key(self._config)
        if found != self._key_bytes:
            self._key_bytes, self._key = found, key
            log.warning(
                "reloaded the token key: tokens signed with the previous key are now refused"
            )

    async def authenticate(self, credentials: Credentials, address: str) -> Login:
        return self.login(credentials.data)

    def login(self, token: bytes) -> Login:
        """Raises AuthenticationError for a bad signature, an expired token, or a wrong audience or
        role.
        """
        claims = self._signed_claims(token.strip())
        expires_ms = check_times(claims, self._clock.now_ms(), self._skew_ms)
        self._check_audience(claims)
        return Login(self._role(claims), expires_ms)

    def _signed_claims(self, token: bytes) -> dict[str, Any]:
        if not token:
            raise AuthenticationError("No token credentials passed")
        if len(token) > MAX_TOKEN_BYTES:
            raise AuthenticationError(f"A token may have at most {MAX_TOKEN_BYTES} bytes")
        try:
            payload = self._jws.decode(token, self._key, algorithms=self._algorithms)
            claims = json.loads(payload)
        except Exception as error:  # PyJWT's errors, and anything that hostile input may cause
            kind = type(error).__name__
            raise AuthenticationError(_REFUSED, kind) from None
        return checked_claims(claims)

    def _check_audience(self, claims: dict[str, Any]) -> None:
        """Differs: a `tokenAudience` without `tokenAudienceClaim` is checked against "aud"."""
        if not self._audience:
            return
        found = claims.get(self._audience_claim or "aud")
        if self._audience not in (found if isinstance(found, list) else [found]):
            raise AuthenticationError("The token is for another audience")

    def _role(self, claims: dict[str, Any]) -> str:
        role = claims.get(self._role_claim)
        if isinstance(role, list) and role:
            role = role[0]
        if not isinstance(role, str) or not role.strip() or len(role) > MAX_ROLE:
            raise AuthenticationError(f"The token has no role in its claim {self._role_claim}")
        return role


def checked_claims(claims: Any) -> dict[str, Any]:
    """Raises AuthenticationError unless the claims are a JSON object."""
    if not isinstance(claims, dict):
        raise AuthenticationError("The token's claims are not a JSON object")
    return claims


def check_times(claims: dict[str, Any], now_ms: int, skew_ms: int = 0) -> int | None:
    """The token's expiry; None: never. Raises AuthenticationError."""
    begins_ms, expires_ms = _milliseconds(claims, "nbf"), _milliseconds(claims, "exp")
    if begins_ms is not None and now_ms + skew_ms < begins_ms:
        raise AuthenticationError("The token is not valid yet")
    if expires_ms is not None and now_ms - skew_ms >= expires_ms:
        raise AuthenticationError("The token has expired; get a new one")
    return None if expires_ms is None else expires_ms + skew_ms


def _milliseconds(claims: dict[str, Any], name: str) -> int | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 2**52:
        raise _not_a_time(name)  # NaN fails in `int`
    try:
        return int(value * 1000)
    except ValueError:
        raise _not_a_time(name) from None


def _not_a_time(claim: str) -> AuthenticationError:
    return AuthenticationError(
        f"The token's claim {claim} must be a number: seconds since 1970; create a new token"
    )


def _verifying_key(config: BrokerConfig) -> tuple[bytes, Any, str]:
    """The key as read, the key for verification, and its family of algorithms."""
    if config.token_secret_key and config.token_public_key:
        raise KeyFailure("set tokenSecretKey or tokenPublicKey, not both")
    if config.token_secret_key:
        found = read_source(config.token_secret_key, "tokenSecretKey")
        return found, secret_key(found), _SECRET_FAMILY
    if not config.token_public_key:
        raise KeyFailure(
            "token authentication needs tokenSecretKey or tokenPublicKey; make one with: "
            "pybroker tokens create-secret-key --output FILE"
        )
    family = algorithm_family(config.token_public_alg)
    if family == _SECRET_FAMILY:
        raise KeyFailure(f"tokenPublicAlg={config.token_public_alg} needs tokenSecretKey")
    found = read_source(config.token_public_key, "tokenPublicKey")
    key = public_key(found, "tokenPublicKey")
    check_key_family(key, family, "tokenPublicKey")
    return found, key, family


def secret_key(data: bytes) -> bytes:
    """Raises KeyFailure for a guessable key or the wrong kind of key."""
    if len(data) < _LEAST_SECRET_BYTES:
        raise KeyFailure(
            f"tokenSecretKey has {len(data)} bytes, and HS256 needs {_LEAST_SECRET_BYTES}; if it "
            "names a file, that file does not exist"
        )
    if is_of_a_pair(data):  # PyJWT detects this in DER only from 2.14 on
        raise KeyFailure(
            "tokenSecretKey is a key of a pair: use a secret key, known only to its signers"
        )
    signatures = jws()
    try:
        signatures.encode(b"{}", data, "HS256")
    except Exception as error:  # PyJWT's errors for certificates and other keys
        raise KeyFailure(f"tokenSecretKey is not a secret key: {error}") from None
    return data


def algorithm_family(algorithm: str) -> str:
    """The first two letters: HS, RS, PS, ES. Raises KeyFailure for an unknown algorithm."""
    if algorithm not in ALGORITHMS:
        raise KeyFailure(
            f"{algorithm[:40]!r} is not a token algorithm; choose from {', '.join(ALGORITHMS)}"
        )
    return algorithm[:2]


def check_key_family(key: Any, family: str, setting: str) -> None:
    """RS and PS need an RSA key, ES an elliptic-curve key. Raises KeyFailure."""
    is_rsa = hasattr(key, "key_size") and not hasattr(key, "curve")
    if is_rsa is (family == "ES"):
        raise KeyFailure(f"{setting} is not the kind of key that {family}… needs")
