"""Authentication: the providers in broker.conf, all active at once, each under its method's name.

A method without a provider maps to the anonymous role, if there is one; a failed login never does.
A proxy passes on the principal of its client; no other role may.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Final

from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.errors import AuthenticationError, AuthorizationError
from pybroker.base.runtime import Clock
from pybroker.security.identity import Credentials, Identity, Login, Provider
from pybroker.security.keys import KeyFailure

log = logging.getLogger(__name__)

_APACHE: Final = "org.apache.pulsar.broker.authentication.AuthenticationProvider"


# A broker loads only the providers that it uses.


def _token(config: BrokerConfig, clock: Clock) -> Provider:
    from pybroker.security.token import TokenProvider

    return TokenProvider(config, clock)


def _basic(config: BrokerConfig, clock: Clock) -> Provider:
    from pybroker.security.basic import BasicProvider

    return BasicProvider(config, clock)


def _tls(config: BrokerConfig, clock: Clock) -> Provider:
    from pybroker.security.certificates import TlsProvider

    return TlsProvider(clock)


_PROVIDERS: Final[Mapping[str, Callable[[BrokerConfig, Clock], Provider]]] = {
    "token": _token,
    "basic": _basic,
    "tls": _tls,
}


def authentication_of(config: BrokerConfig, clock: Clock) -> "Authentication | None":
    """None while authentication is off. Raises KeyFailure."""
    if not config.authentication_enabled:
        return None
    if not config.authentication_providers:
        raise KeyFailure(
            "authenticationEnabled=true needs authenticationProviders: " + ", ".join(_PROVIDERS)
        )
    return Authentication(config, _providers(config, clock))


def _providers(config: BrokerConfig, clock: Clock) -> dict[str, Provider]:
    methods = [_method(name) for name in config.authentication_providers]
    return {method: _PROVIDERS[method](config, clock) for method in methods}


def _method(name: str) -> str:
    method = name.removeprefix(_APACHE).lower()
    if method not in _PROVIDERS:
        raise KeyFailure(
            f"authenticationProviders: {name[:120]!r} is not supported; choose from "
            + ", ".join(_PROVIDERS)
        )
    return method


class Authentication:
    """Every login goes through here."""

    def __init__(self, config: BrokerConfig, providers: Mapping[str, Provider]) -> None:
        self._providers = providers
        self._anonymous = config.anonymous_user_role
        self._proxies = frozenset(config.proxy_roles)
        self._verifies_originals = config.authenticate_original_auth_data
        self._strict_method = config.strict_auth_method
        self.refresh_check_s = config.authentication_refresh_check_seconds

    @property
    def methods(self) -> tuple[str, ...]:
        return tuple(self._providers)

    def reload(self) -> dict[str, bool]:
        """Reloads passwords and token keys for new logins. Unusable files are logged and change
        nothing. For each method with a file, whether it was reloaded.
        """
        reloaded = {method: True for method in self._providers if method != "tls"}
        for method, provider in self._providers.items():
            try:
                provider.reload()
            except KeyFailure as error:
                reloaded[method] = False
                log.error(
                    "reloading credentials failed; the previous ones stay in effect: %s", error
                )
        return reloaded

    async def login(self, credentials: Credentials, address: str) -> Login:
        """Raises AuthenticationError for bad credentials, TooManyRequests for too many attempts."""
        return _nameable(await self._login(credentials, address))

    async def _login(self, credentials: Credentials, address: str) -> Login:
        provider = self._providers.get(credentials.method)
        if provider is not None:
            return await provider.authenticate(credentials, address)
        if not self._anonymous:
            methods = ", ".join(self._providers)
            raise AuthenticationError(f"Log in with one of this broker's methods: {methods}")
        return Login(self._anonymous)

    async def identify(
        self,
        credentials: Credentials,
        address: str,
        original: str = "",
        original_credentials: Credentials | None = None,
    ) -> Identity:
        """The identity. For a proxy it includes the client behind it: `original`, or, if the broker
        verifies clients, the principal of `original_credentials`. Raises AuthorizationError, and
        what `login` raises.
        """
        login = await self.login(credentials, address)
        if self._verifies_originals and original_credentials is not None:
            self._require_proxy(login.role)
            behind = await self.login(original_credentials, address)
            original, login = behind.role, _until_both(login, behind)
        return Identity(login.role, login.expires_ms, self._original(login.role, original))

    def _require_proxy(self, role: str) -> None:
        if role not in self._proxies:
            raise AuthorizationError(
                "Invalid roles: cannot specify originalPrincipal when connecting without valid "
                "proxy role (proxyRoles)"
            )

    def _original(self, role: str, original: str) -> str | None:
        """A proxy must name its client; no other role may name one."""
        if role in self._proxies:
            if not original or original in self._proxies:
                raise AuthorizationError(
                    "Invalid roles: a proxy must name the client it connects for, not a proxy"
                )
            return original
        if original and original != role:
            self._require_proxy(role)
        return None

    # -- HTTP

    async def identify_request(
        self, shown: list[Credentials], method: str, address: str, original: str
    ) -> Identity:
        """`shown` has all credentials that a request presents; `method` is the method it names, if
        any.
        """
        if self._strict_method and not method:
            raise AuthenticationError("Set the authentication method: X-Pulsar-Auth-Method-Name")
        known = [each for each in shown if each.method in self._providers]
        if method:
            known = [each for each in known if each.method == method]
        if not known and not self._anonymous:
            raise AuthenticationError("Authentication required")
        return await self.identify(known[0] if known else Credentials(method), address, original)


def _nameable(login: Login) -> Login:
    """Refuses a role that cannot be encoded, because roles are stored as owners of transactions."""
    try:
        login.role.encode()
    except UnicodeEncodeError:
        raise AuthenticationError(
            "The role contains unpaired surrogates: use another role"
        ) from None
    return login


def _until_both(proxy: Login, behind: Login) -> Login:
    ends = [ms for ms in (proxy.expires_ms, behind.expires_ms) if ms is not None]
    return Login(proxy.role, min(ends, default=None))
