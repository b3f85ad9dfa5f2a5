"""User name and password, checked against an .htpasswd in a thread, because hashing is slow.

A wrong password costs the same whether or not the user exists. Correct passwords are remembered as
keyed digests, because HTTP clients send theirs with every request; so a client with a remembered
password is never refused because others are guessing.
"""

import hashlib
import hmac
import logging
import secrets
from collections import OrderedDict
from functools import partial
from typing import Final

from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.errors import AuthenticationError
from pybroker.base.machines import machine_of
from pybroker.base.runtime import Clock
from pybroker.security.htpasswd import dearest, matches, padding, parse_htpasswd
from pybroker.security.identity import Credentials, Login
from pybroker.security.keys import KeyFailure, read_source
from pybroker.security.password_queue import PasswordQueue
from pybroker.security.refused_logins import RefusedLogins

log = logging.getLogger(__name__)

MAX_PASSWORD_BYTES: Final = 1024
_REMEMBERED: Final = 1000
_REMEMBERED_S: Final = 600.0  # since the last use


class BasicProvider:
    method = "basic"

    def __init__(self, config: BrokerConfig, clock: Clock) -> None:
        """Raises KeyFailure if basicAuthConf is not set, or that file cannot be read."""
        if not config.basic_auth_conf:
            raise KeyFailure("password authentication needs basicAuthConf: an .htpasswd file")
        self._source = config.basic_auth_conf
        self._users = self._read()
        self._dearest = dearest(self._users.values())
        self._clock = clock
        self._queue = PasswordQueue(clock)
        self._key = secrets.token_bytes(32)
        # Digest to expiry in monotonic seconds.
        self._right: OrderedDict[bytes, float] = OrderedDict()
        self.refused = RefusedLogins(clock)

    def _read(self) -> dict[str, str]:
        return parse_htpasswd(read_source(self._source, "basicAuthConf"))

    def reload(self) -> None:
        """Remembered passwords must match the new file, too."""
        users = self._read()
        if users != self._users:
            self._users, self._dearest = users, dearest(users.values())
            self._right = OrderedDict()
            log.warning("reloaded the passwords of basicAuthConf (users: %d)", len(users))

    async def authenticate(self, credentials: Credentials, address: str) -> Login:
        user, password = _split(credentials.data)
        proof = hmac.digest(self._key, credentials.data, hashlib.sha256)
        right = self._right  # the file may be reloaded while a password is compared
        if right.get(proof, 0.0) <= self._clock.monotonic_s():
            await self._check(user, password, address)
        self._remember(right, proof)
        return Login(user)

    async def _check(self, user: str, password: bytes, address: str) -> None:
        self.refused.check(address, user)
        machine, digest = machine_of(address), self._users.get(user)
        compare = partial(_is_right, password, digest, self._dearest)
        if not await self._queue.compare(machine, user, compare):
            self.refused.failed(address, user)
            self._queue.failed(machine)
            raise AuthenticationError("Unknown user or wrong password")

    def _remember(self, right: OrderedDict[bytes, float], proof: bytes) -> None:
        right[proof] = self._clock.monotonic_s() + _REMEMBERED_S
        right.move_to_end(proof)
        if len(right) > _REMEMBERED:
            right.popitem(last=False)


def _is_right(password: bytes, digest: str | None, most: str) -> bool:
    """False for a `digest` of None (an unknown user)."""
    if digest is not None and matches(password, digest):
        return True
    for other in padding(digest, most):
        matches(password, other)
    return False


def _split(data: bytes) -> tuple[str, bytes]:
    user, colon, password = data.partition(b":")
    if not colon or len(data) > MAX_PASSWORD_BYTES:
        raise AuthenticationError("Credentials must be user:password")
    return user.decode(errors="replace"), password
