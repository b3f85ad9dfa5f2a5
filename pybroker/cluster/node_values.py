"""The values of the nodes of brokers, bundles and namespaces, in Apache Pulsar's JSON.

    /loadbalance/brokers/<host:port>    LocalBrokerData, with the fields that others read, the
                                        broker's promises (`promises.py`), common settings, and
                                        where it serves Kafka's clients
    /namespace/<t>/<ns>/<lo>_<hi>       NamespaceEphemeralData: the broker that serves the bundle
    /admin/local-policies/<t>/<ns>      LocalPolicies: the boundaries of the bundles

Other processes write them, so an unreadable value is an expected result: None, not an exception.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final

from pybroker.base.listeners import Listener, Listeners
from pybroker.broker.brokers.ownership import LAST_HASH, NO_KAFKA, BrokerAddress, KafkaAddress

_OWNER: Final = ("nativeUrl", "nativeUrlTls", "httpUrl", "httpUrlTls")
_BROKER: Final = (
    "pulsarServiceUrl",
    "pulsarServiceUrlTls",
    "webServiceUrl",
    "webServiceUrlTls",
)
_LISTENER: Final = (
    "brokerServiceUrl",
    "brokerServiceUrlTls",
    "brokerHttpUrl",
    "brokerHttpsUrl",
)
_OWN_VERSION: Final = "pybroker "
_PROMISES: Final = "pybrokerPromises"  # a field that Apache Pulsar skips
_COMMON: Final = "pybrokerCommonSettings"  # another one
_KAFKA: Final = "pybrokerKafka"  # another one
_KAFKA_URLS: Final = ("url", "urlTls")
MAX_BUNDLES: Final = 65_536  # of a namespace


@dataclass(frozen=True, slots=True)
class Place:
    """The addresses of a broker."""

    address: BrokerAddress
    listeners: Listeners = field(default_factory=Listeners)
    kafka: KafkaAddress = NO_KAFKA  # not in the values of bundles


@dataclass(frozen=True, slots=True)
class Promise:
    """The broker that shall take a bundle."""

    broker_id: str
    turn: int  # of several promises for one bundle, the one with the highest turn holds


def owner_value(place: Place) -> bytes:
    return _encoded(_OWNER, place, {"disabled": False})


def broker_value(
    place: Place, version: str, started_ms: int, common: Mapping[str, str] | None = None
) -> bytes:
    """`common`: settings that must be the same on all brokers, by key."""
    return _encoded(
        _BROKER,
        place,
        {
            "persistentTopicsEnabled": True,
            "nonPersistentTopicsEnabled": True,
            "brokerVersionString": f"{_OWN_VERSION}{version}",
            "startTimestamp": started_ms,
            "protocols": {},
            "bundles": [],
            "loadReportType": "LocalBrokerData",
            **({_COMMON: dict(common)} if common else {}),
            **({_KAFKA: _named(_KAFKA_URLS, place.kafka)} if any(place.kafka) else {}),
        },
    )


def owner_of(value: bytes) -> Place | None:
    return _place(_OWNER, value)


def broker_of(value: bytes) -> Place | None:
    place = _place(_BROKER, value)
    if place is None:
        return None
    urls = _fields(_fields(_parsed(value)).get(_KAFKA))
    return replace(place, kafka=KafkaAddress(*(_text(urls, name) for name in _KAFKA_URLS)))


def is_of_pybroker(value: bytes) -> bool:
    return _text(_fields(_parsed(value)), "brokerVersionString").startswith(_OWN_VERSION)


def common_of(value: bytes) -> dict[str, str]:
    """A broker's common settings; empty for Apache Pulsar's brokers and those of earlier
    versions.
    """
    told = _fields(_fields(_parsed(value)).get(_COMMON))
    return {key: said for key, said in told.items() if isinstance(said, str)}


def with_promises(value: bytes, promises: Mapping[str, Promise]) -> bytes:
    """A broker's own value, with its promises by bundle."""
    told = {bundle: [each.broker_id, each.turn] for bundle, each in promises.items()}
    fields = _fields(_parsed(value))
    fields.pop(_PROMISES, None)
    return json.dumps({**fields, _PROMISES: told} if told else fields).encode()


def promises_of(value: bytes) -> dict[str, Promise]:
    """A broker's promises by bundle, without unreadable ones."""
    found = {}
    for bundle, told in _fields(_fields(_parsed(value)).get(_PROMISES)).items():
        match told:
            case [str(broker_id), int(turn)]:
                found[bundle] = Promise(broker_id, turn)
    return found


def boundaries_value(boundaries: Sequence[int], known: Mapping[str, Any] | None = None) -> bytes:
    """`known`: the existing fields of the node, which are kept."""
    return json.dumps({**(known or {}), "bundles": bundles_data(boundaries)}).encode()


def bundles_data(boundaries: Sequence[int]) -> dict[str, Any]:
    texts = [f"0x{each:08x}" for each in boundaries]
    return {"boundaries": texts, "numBundles": len(texts) - 1}


def boundaries_of(value: bytes) -> tuple[int, ...] | None:
    """The boundaries, ascending from 0 to LAST_HASH; None if the value has no valid ones."""
    texts = _fields(_fields(_parsed(value)).get("bundles")).get("boundaries")
    if not isinstance(texts, list) or not 2 <= len(texts) <= MAX_BUNDLES + 1:
        return None
    try:
        found = tuple(int(text, 16) for text in texts)
    except (TypeError, ValueError):
        return None
    ascending = all(low < high for low, high in pairwise(found))
    return found if ascending and (found[0], found[-1]) == (0, LAST_HASH) else None


def equal_boundaries(bundles: int) -> tuple[int, ...]:
    """Boundaries as Apache Pulsar divides a new namespace."""
    size = (LAST_HASH + 1) // bundles
    return (*(size * number for number in range(bundles)), LAST_HASH)


def _encoded(names: Sequence[str], place: Place, more: Mapping[str, Any]) -> bytes:
    urls = _named(names, place.address)
    listeners = {
        name: _named(_LISTENER, _urls(each)) for name, each in place.listeners.by_name.items()
    }
    return json.dumps({**urls, **more, "advertisedListeners": listeners}).encode()


def _named(names: Sequence[str], urls: Sequence[str]) -> dict[str, str | None]:
    return {name: url or None for name, url in zip(names, urls, strict=True)}


def _urls(listener: Listener) -> tuple[str, ...]:
    return listener.broker_url, listener.broker_url_tls, listener.http_url, listener.http_url_tls


def _place(names: Sequence[str], value: bytes) -> Place | None:
    fields = _fields(_parsed(value))
    address = BrokerAddress(*(_text(fields, name) for name in names))
    if not any(address):
        return None
    listeners: dict[str, Listener] = {}
    internal = Listener()
    for name, each in _fields(fields.get("advertisedListeners")).items():
        urls = _fields(each)
        listeners[name] = Listener(*(_text(urls, one) for one in _LISTENER))
        internal = internal.or_else(listeners[name])
    return Place(address, Listeners(listeners, internal))


def _parsed(value: bytes) -> object:
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return None


def _fields(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    return value if isinstance(value, str) else ""
