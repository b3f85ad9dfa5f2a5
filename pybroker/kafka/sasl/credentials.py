"""PLAIN and OAUTHBEARER: credentials in one message, for the broker's own providers.

PLAIN carries user and password for `basic`, or a token as the password: after `token:`, or alone if
the broker knows no passwords. The user's name then does not matter: the token says who it is.
OAUTHBEARER carries a token. Source: RFC 4616, RFC 7628, KIP-255.
"""

from pybroker.base.errors import AuthenticationError
from pybroker.kafka.sasl.exchange import Step
from pybroker.security.authentication import Authentication
from pybroker.security.identity import Credentials

_TOKEN = b"token:"
_BEARER = b"bearer "


class Plain:
    def __init__(self, authentication: Authentication | None, address: str) -> None:
        """Without `authentication`, everyone is let in."""
        self._authentication, self._address = authentication, address

    async def step(self, data: bytes) -> Step:
        user, password = _split(data)
        if self._authentication is None:
            return Step(done=True)
        shown = self._credentials(user, password, self._authentication.methods)
        return Step(b"", await self._authentication.identify(shown, self._address), True)

    def _credentials(self, user: bytes, password: bytes, methods: tuple[str, ...]) -> Credentials:
        if "token" in methods and (password.startswith(_TOKEN) or "basic" not in methods):
            return Credentials("token", password.removeprefix(_TOKEN))
        return Credentials("basic", user + b":" + password)


def _split(data: bytes) -> tuple[bytes, bytes]:
    parts = data.split(b"\0")
    if len(parts) != 3 or not parts[1] or parts[0] not in (b"", parts[1]):
        raise AuthenticationError("PLAIN needs a user and a password, and the user's own name only")
    return parts[1], parts[2]


class OAuthBearer:
    def __init__(self, authentication: Authentication | None, address: str) -> None:
        """Without `authentication`, everyone is let in."""
        self._authentication, self._address = authentication, address

    async def step(self, data: bytes) -> Step:
        shown = Credentials("token", _bearer_token(data))
        if self._authentication is None:
            return Step(done=True)
        return Step(b"", await self._authentication.identify(shown, self._address), True)


def _bearer_token(data: bytes) -> bytes:
    """Of `n,a=user,^Aauth=Bearer token^Akey=value^A^A`."""
    for part in data.split(b"\x01")[1:]:
        key, _, value = part.partition(b"=")
        if key == b"auth" and value[: len(_BEARER)].lower() == _BEARER:
            return value[len(_BEARER) :].strip()
    raise AuthenticationError("OAUTHBEARER needs auth=Bearer and a token")
