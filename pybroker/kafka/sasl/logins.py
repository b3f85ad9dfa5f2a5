"""Which mechanisms this broker has, and what a finished login means for the connection.

Without authentication, PLAIN and OAUTHBEARER are accepted with whatever credentials, as they are
from Pulsar's clients: programs keep their settings when they run against a broker for tests.
"""

from typing import Final

from managed_ledger.storage.backend import MetadataStore
from pybroker.base.errors import AuthenticationError
from pybroker.base.runtime import Clock
from pybroker.kafka.sasl.credentials import OAuthBearer, Plain
from pybroker.kafka.sasl.exchange import Exchange
from pybroker.kafka.sasl.scram import Mechanism, Scram
from pybroker.kafka.sasl.scram_users import StoredScramUsers
from pybroker.security.authentication import Authentication
from pybroker.security.identity import Certificate, Credentials, Identity
from pybroker.security.refused_logins import RefusedLogins

PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"
_SCRAM: Final = {mechanism.sasl_name: mechanism for mechanism in Mechanism}
_NO_METHOD: Final = "none"
_TLS: Final = "tls"


class Logins:
    def __init__(
        self, authentication: Authentication | None, metadata: MetadataStore, clock: Clock
    ) -> None:
        self._authentication = authentication
        self.scram_users = StoredScramUsers(metadata)
        self._refused = RefusedLogins(clock)

    @property
    def required(self) -> bool:
        return self._authentication is not None

    @property
    def mechanisms(self) -> list[str]:
        if self._authentication is None:
            return [PLAIN, OAUTHBEARER]
        methods = self._authentication.methods
        plain = [PLAIN] if {"basic", "token"} & set(methods) else []
        bearer = [OAUTHBEARER] if "token" in methods else []
        return plain + bearer + list(_SCRAM)

    def exchange(self, mechanism: str, address: str) -> Exchange | None:
        """None if this broker does not have the mechanism."""
        if mechanism not in self.mechanisms:
            return None
        if mechanism == PLAIN:
            return Plain(self._authentication, address)
        if mechanism == OAUTHBEARER:
            return OAuthBearer(self._authentication, address)
        return Scram(_SCRAM[mechanism], self.scram_users, self._refused, address)

    async def without_sasl(self, certificate: Certificate | None, address: str) -> Identity:
        """Of a client that does not log in: by its certificate, or anonymous if that is allowed.

        Raises AuthenticationError, AuthorizationError, TooManyRequests.
        """
        if self._authentication is None:
            raise AuthenticationError("nobody needs to log in")  # not reached: see `required`
        is_tls = certificate is not None and _TLS in self._authentication.methods
        shown = Credentials(_TLS if is_tls else _NO_METHOD, certificate=certificate)
        return await self._authentication.identify(shown, address)
