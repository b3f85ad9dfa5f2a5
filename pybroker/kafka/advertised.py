"""Addresses that Kafka's clients are told instead of the one where they came, as behind a mapped
port: `kafkaAdvertisedListeners=PLAINTEXT://example.org:19092,SSL://example.org:19093`.

A client's protocol, with or without TLS, selects the address; with SASL it is the same. Source:
advertised.listeners of Kafka; the key is that of KoP.
"""

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from pybroker.base.listeners import BadListeners

_ENCRYPTED: Final = {"plaintext": False, "sasl_plaintext": False, "ssl": True, "sasl_ssl": True}
_SCHEMES: Final = {False: "kafka", True: "kafka+ssl"}


def advertised_urls(text: str) -> Mapping[bool, str]:
    """`kafka://host:port` or `kafka+ssl://host:port` by whether it is for TLS. Raises
    BadListeners.
    """
    found: dict[bool, str] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        # A scheme has no underscore: urlsplit would take SASL_SSL for a path.
        protocol, _, rest = part.partition("://")
        is_encrypted, address = _ENCRYPTED.get(protocol.lower()), _address(rest)
        if is_encrypted is None or address is None:
            raise BadListeners(
                f"kafkaAdvertisedListeners: {part[:200]!r} is not PLAINTEXT://host:port or "
                "SSL://host:port"
            )
        if is_encrypted in found:
            raise BadListeners(
                f"kafkaAdvertisedListeners: {part[:200]!r} is a second address "
                f"{'with' if is_encrypted else 'without'} TLS; keep one"
            )
        found[is_encrypted] = f"{_SCHEMES[is_encrypted]}://{address}"
    return found


def _address(text: str) -> str | None:
    """The text if it is host:port and no more."""
    try:
        parts = urlsplit(f"//{text}")
        has_address = bool(parts.hostname) and bool(parts.port)
    except ValueError:  # a port that is none, or brackets around no address
        return None
    is_all = parts.netloc == text and "@" not in text and not any(map(str.isspace, text))
    return text if has_address and is_all else None
