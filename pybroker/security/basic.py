"""User name and password, compared with an .htpasswd in a thread of its own: hashes take long.

The thread works off one password at a time and only so many wait, so that guessing costs others
one core at most. An unknown user costs the same work as a known one. What was right is remembered
for a while, as a keyed digest: HTTP clients show their password with every request.
"""

import asyncio
import hashlib
import hmac
import secrets
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from pybroker.config import BrokerConfig
from pybroker.errors import AuthenticationError, TooManyRequests
from pybroker.runtime import Clock
from pybroker.security.htpasswd import matches, parse_htpasswd
from pybroker.security.identity import Credentials, Login
from pybroker.security.keys import KeyFailure, read_source

MAX_PASSWORD_BYTES: Final = 1024
_MOST_WAITING: Final = 50
_REMEMBERED: Final = 1000
_REMEMBERED_S: Final = 60.0


class BasicProvider:
    method = "basic"

    def __init__(self, config: BrokerConfig, clock: Clock) -> None:
        """Raises KeyFailure."""
        if not config.basic_auth_conf:
            raise KeyFailure("authentication by password needs basicAuthConf: an .htpasswd file")
        self._users = parse_htpasswd(read_source(config.basic_auth_conf, "basicAuthConf"))
        self._nobodys = next(iter(self._users.values()))
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, "passwords")
        self._waiting = 0
        self._key = secrets.token_bytes(32)
        self._right: OrderedDict[bytes, float] = OrderedDict()  # until when, in monotonic seconds

    async def authenticate(self, credentials: Credentials) -> Login:
        user, password = _split(credentials.data)
        digest = self._users.get(user)
        proof = hmac.digest(self._key, credentials.data, hashlib.sha256)
        if self._right.get(proof, 0.0) > self._clock.monotonic_s():
            return Login(user)
        right = await self._compare(password, digest or self._nobodys)
        if digest is None or not right:
            raise AuthenticationError("Unknown user or wrong password")
        self._remember(proof)
        return Login(user)

    async def _compare(self, password: bytes, digest: str) -> bool:
        if self._waiting >= _MOST_WAITING:
            raise TooManyRequests("Too many passwords are being checked; try again in a second")
        self._waiting += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._thread, matches, password, digest)
        finally:
            self._waiting -= 1

    def _remember(self, proof: bytes) -> None:
        self._right[proof] = self._clock.monotonic_s() + _REMEMBERED_S
        self._right.move_to_end(proof)
        if len(self._right) > _REMEMBERED:
            self._right.popitem(last=False)


def _split(data: bytes) -> tuple[str, bytes]:
    user, colon, password = data.partition(b":")
    if not colon or len(data) > MAX_PASSWORD_BYTES:
        raise AuthenticationError("Credentials are a user name, a colon and a password")
    return user.decode(errors="replace"), password
