"""Sessions of the console: a random id in a cookie; the login's credentials stay in the broker.

The credentials (a token, a password or a certificate) are checked again at each request, as REST
does. So a session ends when its token expires or its password is changed. A browser has an id even
before the login. Forms contain a digest of the id (`form_token`), which other sites cannot know.
"""

import hashlib
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from pybroker.base.errors import AuthenticationError
from pybroker.base.runtime import Clock
from pybroker.security.authentication import Authentication
from pybroker.security.identity import Certificate, Credentials, Identity

COOKIE: Final = "pybroker_console"
MOST_SESSIONS: Final = 500
MOST_OF_ROLE: Final = 20
IDLE_S: Final = 3600.0
WHOLE_S: Final = 12 * 3600.0


@dataclass(slots=True)
class Session:
    role: str
    shown: Credentials | None = field(repr=False)  # None: the anonymous role
    began_s: float
    used_s: float

    def is_for(self, certificate: Certificate | None) -> bool:
        """Whether a connection with this certificate may use it: the cookie alone is not enough for
        a session that was begun with a certificate.
        """
        shown = None if self.shown is None else self.shown.certificate
        return shown is None or shown == certificate


class Sessions:
    def __init__(self, authentication: Authentication, clock: Clock) -> None:
        self._authentication = authentication
        self._clock = clock
        self._sessions: OrderedDict[str, Session] = OrderedDict()  # by digest, last used last

    def __len__(self) -> int:
        return len(self._sessions)

    async def begin(self, shown: Credentials | None, address: str) -> str:
        """Starts a session and returns its id. Raises AuthenticationError, AuthorizationError,
        TooManyRequests.
        """
        identity = await self._identified(shown, address)
        now_s = self._clock.monotonic_s()
        self._make_room(identity.role)
        session_id = new_id()
        self._sessions[_digest(session_id)] = Session(identity.role, shown, now_s, now_s)
        return session_id

    async def identity(
        self,
        session_id: str,
        address: str,
        by_itself: bool = False,
        certificate: Certificate | None = None,
    ) -> Identity | None:
        """The session's identity; None if there is no session, or if it was begun with another
        certificate than this connection's. A request that a page sends `by_itself` does not prolong
        the session. Raises TooManyRequests.
        """
        key = _digest(session_id)
        session = self._sessions.get(key)
        if session is None or not session.is_for(certificate):
            return None
        now_s = self._clock.monotonic_s()
        if now_s > session.used_s + IDLE_S or now_s > session.began_s + WHOLE_S:
            self._sessions.pop(key)
            return None
        try:
            identity = await self._identified(session.shown, address)
        except AuthenticationError:
            self._sessions.pop(key, None)
            return None
        if self._sessions.get(key) is not session:  # the session ended meanwhile
            return None
        if not by_itself:
            session.used_s = now_s
            self._sessions.move_to_end(key)
        return identity

    def is_open(self, session_id: str) -> bool:
        """Whether the session exists; does not check its credentials."""
        return _digest(session_id) in self._sessions

    def end(self, session_id: str) -> None:
        self._sessions.pop(_digest(session_id), None)

    def _make_room(self, role: str) -> None:
        of_role = [key for key, each in self._sessions.items() if each.role == role]
        if len(of_role) >= MOST_OF_ROLE:
            del self._sessions[of_role[0]]
        elif len(self._sessions) >= MOST_SESSIONS:
            self._sessions.popitem(last=False)

    async def _identified(self, shown: Credentials | None, address: str) -> Identity:
        known: Sequence[Credentials] = () if shown is None else (shown,)
        method = "" if shown is None else shown.method
        return await self._authentication.identify_request(list(known), method, address, "")


def new_id() -> str:
    return secrets.token_urlsafe(32)


def _digest(session_id: str) -> str:
    """The key of a session. As keys are digests, the time of a lookup reveals nothing about ids."""
    return hashlib.sha256(session_id.encode(errors="replace")).hexdigest()


class FormTokens:
    """Tokens against forged forms: the browser's id, signed with a key of this process."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def of(self, browser_id: str) -> str:
        return hmac.new(self._key, browser_id.encode(errors="replace"), "sha256").hexdigest()

    def fits(self, said: str, browser_id: str) -> bool:
        expected = self.of(browser_id).encode()
        return hmac.compare_digest(said.encode(errors="replace"), expected)
