"""A client of a broker's REST API: one request, one answer, errors as sentences."""

import base64
import json
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from pybroker.commands.admin.proxies import proxy_for, through

_V2: Final = "/admin/v2/"
_TIMEOUT_S: Final = 60.0
_PORTS: Final = {"http": 80, "https": 443}
_TO_ANOTHER_BROKER: Final = 307
_AUTHORITATIVE: Final = "authoritative=true"  # a broker adds this when it redirects


class RestError(Exception):
    """The broker refused, or could not be reached; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class Answer:
    headers: Mapping[str, str]
    data: bytes

    def described(self, prefix: str) -> dict[str, str]:
        """The headers with a prefix, under names without it. Headers are decoded as Latin-1, but a
        broker sends UTF-8.
        """
        return {
            name[len(prefix) :]: _as_sent(text)
            for name, text in self.headers.items()
            if name.lower().startswith(prefix.lower())
        }


def _as_sent(text: str) -> str:
    try:
        return text.encode("latin-1").decode()
    except ValueError:
        return text


class Rest:
    def __init__(
        self, url: str, authorization: str = "", tls: ssl.SSLContext | None = None
    ) -> None:
        """`authorization` is the value of the header, or empty."""
        self._url = _checked(url)
        self._headers = {"Accept": "application/json"}
        if authorization:
            self._headers["Authorization"] = authorization
        self._through = through(proxy_for(self._url), self._url)
        self._opener = urllib.request.build_opener(
            urllib.request.HTTPSHandler(context=tls),
            _Redirects(bool(authorization)),
            urllib.request.ProxyHandler(None if self._through else {}),
        )

    def ask(
        self, verb: str, path: str, body: Any = None, query: Mapping[str, str] | None = None
    ) -> Any:
        """The answer: parsed JSON; text if it is not JSON; None if empty. Raises RestError."""
        data = self.raw(verb, path, body, query).data
        if not data:
            return None
        try:
            return json.loads(data)
        except ValueError:
            return data.decode("utf-8", errors="replace")

    def raw(
        self, verb: str, path: str, body: Any = None, query: Mapping[str, str] | None = None
    ) -> Answer:
        """The answer with its headers, not parsed. Raises RestError."""
        url = self._url + (path if path.startswith("/") else _V2 + path)
        if query:
            url += "?" + urlencode(query)
        data = None if body is None else json.dumps(body).encode()
        headers = self._headers | ({} if data is None else {"Content-Type": "application/json"})
        request = urllib.request.Request(url, data, headers, method=verb)
        try:
            with self._opener.open(request, timeout=_TIMEOUT_S) as answer:
                return Answer(answer.headers, answer.read())
        except urllib.error.HTTPError as error:
            raise RestError(f"HTTP {error.code}: {_reason(error)}{self._through}") from None
        except HTTPException as error:  # the answer ends too early, or a line is too long
            why = f"{error}{self._through}"
            raise RestError(f"{self._url} sent an unreadable response: {why}") from None
        except (urllib.error.URLError, OSError, ValueError) as error:
            why = f"{_why(error)}{self._through}"
            raise RestError(f"{self._url} cannot be reached: {why}") from None


def _checked(url: str) -> str:
    """The URL without its trailing slash. Raises RestError if it is not a broker's URL."""
    if "@" in url:  # the URL may contain a password, so the error does not repeat it
        raise RestError(
            "--admin-url contains a user name: use http://host:port and log in with --auth-plugin "
            "AuthenticationBasic --auth-params userId:…,password:…"
        )
    try:
        parts = urlsplit(url)
        usable = parts.scheme in _PORTS and parts.hostname and parts.port != 0
    except ValueError as error:  # an invalid port or IPv6 address
        raise RestError(f"{url} is not a valid broker URL: {error}") from None
    if not usable:
        raise RestError(f"{url} is not a broker URL: use http://host:port or https://…")
    return url.rstrip("/")


def _why(error: Exception) -> str:
    """The reason why the broker cannot be reached, with advice."""
    reason = getattr(error, "reason", None) or error
    if isinstance(reason, socket.gaierror):
        return f"{reason.strerror}; check the host name in --admin-url"
    if isinstance(reason, ssl.SSLCertVerificationError):
        return (
            f"{reason.verify_message}; set the CA file with --tls-trust-cert-path, and use a host "
            "name of the broker that its certificate contains"
        )
    if isinstance(reason, ssl.SSLError):
        return f"{reason}; check that this is the broker's TLS port"
    if isinstance(reason, TimeoutError):
        return f"no answer within {_TIMEOUT_S:g} s"
    return f"{reason}; check that the broker runs and --admin-url is its HTTP port"


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects with the same method and body: brokers of a cluster redirect clients to the
    broker of a topic. Sends credentials to another address only if a broker redirects there, and
    never from https to http.
    """

    def __init__(self, shows_credentials: bool) -> None:
        self._shows_credentials = shows_credentials

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        """Raises RestError for a redirect that must not be followed."""
        parts = urlsplit(newurl)
        if parts.scheme not in _PORTS:  # urllib would follow redirects to ftp
            fp.close()
            raise RestError(f"{req.host} redirects to {newurl}, which is not a broker URL")
        to_a_broker = code == _TO_ANOTHER_BROKER and _AUTHORITATIVE in parts.query.split("&")
        is_weaker = req.type == "https" and parts.scheme == "http"
        to_another_origin = _origin(newurl) != _origin(req.full_url)
        if self._shows_credentials and to_another_origin and (is_weaker or not to_a_broker):
            fp.close()
            raise RestError(
                f"{req.host} redirects to {newurl}: credentials are not sent there; to send them, "
                "set --admin-url to that address"
            )
        if code != _TO_ANOTHER_BROKER:
            return super().redirect_request(req, fp, code, msg, headers, newurl)
        return urllib.request.Request(newurl, req.data, dict(req.headers), method=req.get_method())


def _origin(url: str) -> tuple[str, str | None, int | None]:
    """Scheme, host and port. Raises ValueError."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or _PORTS.get(parts.scheme)


def _reason(error: urllib.error.HTTPError) -> str:
    text = error.read().decode("utf-8", errors="replace")
    try:
        said = json.loads(text)
        return ": ".join(str(said[part]) for part in ("reason", "advice") if part in said)
    except (ValueError, KeyError, TypeError):
        return text.strip() or error.reason


def bearer(token: str) -> str:
    return f"Bearer {token.strip()}"


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
