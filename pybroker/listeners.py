"""Addresses under which clients of different networks reach the broker, by the listener's name.

`advertisedListeners=internal:pulsar://broker:6650,external:pulsar://example.org:16650`: a client
that asks for a listener by its name is told that one's addresses, a client that does not the
internal one's. Source: PIP-61.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final
from urllib.parse import urlsplit

from pybroker.errors import ServiceNotReady

_FIELDS: Final = {
    "pulsar": "broker_url",
    "pulsar+ssl": "broker_url_tls",
    "http": "http_url",
    "https": "http_url_tls",
}


class BadListeners(ValueError):
    """The message names the key and the way out."""


class UnknownListener(ServiceNotReady):
    """Clients know the sentence, and keep their connection; asked by HTTP, it is a bad request."""

    http_status = 400


@dataclass(frozen=True, slots=True)
class Listener:
    """URLs; empty for what it has none of."""

    broker_url: str = ""
    broker_url_tls: str = ""
    http_url: str = ""
    http_url_tls: str = ""


@dataclass(frozen=True, slots=True)
class Listeners:
    """`internal` is None where none are configured: clients then stay where they are."""

    by_name: Mapping[str, Listener] = field(default_factory=dict)
    internal: Listener | None = None

    def named(self, name: str) -> Listener | None:
        """That of the name; without one the internal. Raises UnknownListener."""
        if not name:
            return self.internal
        if name not in self.by_name:
            raise UnknownListener(f"the broker do not have {name[:200]} listener")
        return self.by_name[name]


def parse_listeners(text: str, internal_name: str = "") -> Listeners:
    """From advertisedListeners and internalListenerName, as broker.conf has them.

    Raises BadListeners.
    """
    found: dict[str, Listener] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, colon, url = part.partition(":")
        name, kind = name.strip(), _FIELDS.get(urlsplit(url).scheme)
        if not colon or not name or kind is None or not _has_address(url):
            raise BadListeners(
                f"advertisedListeners: {part[:200]!r} is not of the form name:pulsar://host:port"
            )
        listener = found.get(name, Listener())
        if getattr(listener, kind):
            raise BadListeners(
                f"advertisedListeners: {name[:200]} has two addresses of one kind; keep one"
            )
        found[name] = replace(listener, **{kind: url})
    if internal_name and internal_name not in found:
        raise BadListeners(
            f"internalListenerName={internal_name[:200]} must be one of advertisedListeners"
        )
    first = next(iter(found.values()), None)
    return Listeners(found, found[internal_name] if internal_name else first)


def _has_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and parts.port is not None and not parts.path.strip("/")
    except ValueError:
        return False
