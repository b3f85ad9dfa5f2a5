"""Addresses by which clients in different networks reach the broker, grouped by listener.

`advertisedListeners=internal:pulsar://broker:6650,external:pulsar://example.org:16650`: a client
that names a listener gets its addresses. Other clients get those of the internal listener; for a
protocol that it lacks, those of the first listener that has the protocol. Source: PIP-61.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final
from urllib.parse import urlsplit

from pybroker.base.errors import ServiceNotReady

_FIELDS: Final = {
    "pulsar": "broker_url",
    "pulsar+ssl": "broker_url_tls",
    "http": "http_url",
    "https": "http_url_tls",
}

# Of Apache Pulsar 5, whose broker.conf names it without having any listeners.
_DEFAULT_NAME: Final = "internal"


class BadListeners(ValueError):
    """The message names the key and says what to do."""


class UnknownListener(ServiceNotReady):
    """The sentence is Apache Pulsar's: clients know it and keep their connection. Over HTTP this is
    a bad request.
    """

    http_status = 400


@dataclass(frozen=True, slots=True)
class Listener:
    """The URLs of a listener; empty for protocols that it lacks."""

    broker_url: str = ""
    broker_url_tls: str = ""
    http_url: str = ""
    http_url_tls: str = ""

    def or_else(self, other: "Listener") -> "Listener":
        """Fills missing URLs from the other."""
        return Listener(
            self.broker_url or other.broker_url,
            self.broker_url_tls or other.broker_url_tls,
            self.http_url or other.http_url,
            self.http_url_tls or other.http_url_tls,
        )


@dataclass(frozen=True, slots=True)
class Listeners:
    """`internal` is empty if no listeners are configured: clients then keep their address."""

    by_name: Mapping[str, Listener] = field(default_factory=dict)
    internal: Listener = Listener()

    def told(self, name: str, own: Listener) -> Listener:
        """The URLs for a client that names the listener `name`; empty: it names none.

        `own`: the broker's URLs as configured and as the client connected. They are used if no
        listener has the protocol; for a named listener only the HTTP URLs. Raises UnknownListener.
        """
        if not name:
            return self.internal.or_else(own)
        if name not in self.by_name:
            raise UnknownListener(f"the broker do not have {name[:200]} listener")
        web = Listener(http_url=own.http_url, http_url_tls=own.http_url_tls)
        return self.by_name[name].or_else(web)


def parse_listeners(text: str, internal_name: str = "") -> Listeners:
    """Parses advertisedListeners and internalListenerName from broker.conf.

    Raises BadListeners.
    """
    found: dict[str, Listener] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, colon, url = part.partition(":")
        name, kind = name.strip(), _kind(url)
        if not colon or not name or kind is None:
            raise BadListeners(
                f"advertisedListeners: {part[:200]!r} is not name:pulsar://host:port"
            )
        listener = found.get(name, Listener())
        if getattr(listener, kind):
            raise BadListeners(
                f"advertisedListeners: {name[:200]} has two addresses of the same kind; keep one"
            )
        found[name] = replace(listener, **{kind: url})
    if internal_name == _DEFAULT_NAME and not found:
        internal_name = ""
    if internal_name and internal_name not in found:
        raise BadListeners(
            f"internalListenerName={internal_name[:200]} must be one of advertisedListeners"
        )
    internal = found.get(internal_name, Listener())
    for listener in found.values():
        internal = internal.or_else(listener)
    return Listeners(found, internal)


def _kind(url: str) -> str | None:
    """The field for this address; None if it is none."""
    try:
        parts = urlsplit(url)
        is_whole = bool(parts.hostname) and parts.port is not None and not parts.path.strip("/")
    except ValueError:
        return None
    return _FIELDS.get(parts.scheme) if is_whole else None
