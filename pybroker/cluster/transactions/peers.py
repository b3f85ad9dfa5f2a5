"""Requests to the other brokers: one connection to each, opened at the first request.

A request is answered or fails within a limited time. It is not repeated here: the caller looks up
the broker again, and repeats it.
"""

import asyncio
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from managed_ledger.storage.tls_files import ClientTls
from pybroker.base.errors import ServiceNotReady
from pybroker.broker.brokers.ownership import BrokerAddress
from pybroker.client.connection.auth import Authentication
from pybroker.client.connection.connection import Connection
from pybroker.client.errors import ClientError

ANSWER_S: Final = 10.0
_CONNECT_S: Final = 5.0
_MOST_WAITING: Final = 5000  # requests to one broker
_PORTS: Final = {"pulsar": 6650, "pulsar+ssl": 6651}


@dataclass(frozen=True, slots=True)
class PeerOptions:
    """The login of this broker on other brokers: brokerClient… in the configuration."""

    authentication: Authentication | None = None
    tls: ClientTls | None = None  # None: without TLS


class _Peer:
    """The connection to one broker."""

    def __init__(self, url: str, options: PeerOptions) -> None:
        self._url = url
        self._options = options
        self._opening: asyncio.Task[Connection] | None = None
        self._waiting = 0

    async def connection(self) -> Connection:
        """Raises OSError or ValueError if the broker cannot be reached, and the PulsarErrors of the
        handshake.
        """
        opening = self._opening
        if opening is None or self.is_spent:
            opening = self._opening = asyncio.get_running_loop().create_task(self._open())
        return await asyncio.shield(opening)

    @property
    def is_spent(self) -> bool:
        """Whether there is no usable connection: none was opened, or it is closed."""
        opening = self._opening
        return opening is None or (opening.done() and _is_spent(opening))

    async def _open(self) -> Connection:
        url, tls = urlsplit(self._url), self._options.tls
        connection: Connection | None = None
        try:
            context = tls.context() if tls is not None and url.scheme == "pulsar+ssl" else None
            async with asyncio.timeout(_CONNECT_S):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: Connection(self._url, self._options.authentication),
                    url.hostname or "",
                    url.port or _PORTS.get(url.scheme, 6650),
                    ssl=context,
                )
                await connection.handshake(None)
        except BaseException:
            if connection is not None:
                connection.close()
            raise
        return connection

    async def request(self, body: Any) -> Any:
        if self._waiting >= _MOST_WAITING:
            raise ServiceNotReady(f"{self._url} has not answered {_MOST_WAITING} requests yet")
        self._waiting += 1
        try:
            return await (await self.connection()).request(body, ANSWER_S)
        except (OSError, ValueError, ClientError) as error:
            raise ServiceNotReady(f"{self._url}: {str(error) or 'no answer in time'}") from error
        finally:
            self._waiting -= 1

    async def close(self) -> None:
        opening, self._opening = self._opening, None
        if opening is None:
            return
        opening.cancel()
        await asyncio.wait([opening])
        if not opening.cancelled() and opening.exception() is None:
            opening.result().close()


def _is_spent(opening: asyncio.Task[Connection]) -> bool:
    return opening.cancelled() or opening.exception() is not None or opening.result().closed


class Peers:
    def __init__(self, options: PeerOptions | None = None) -> None:
        self._options = options or PeerOptions()
        self._peers: dict[str, _Peer] = {}
        self._closed = False

    async def request(self, broker: BrokerAddress, body: Any) -> Any:
        """Send `body`, which gets a request id, and return the body of the answer. Raises the
        broker's refusal, or ServiceNotReady if the broker cannot be reached or does not answer in
        time.
        """
        return await self._peer(broker).request(body)

    async def answers_questions(self, broker: BrokerAddress) -> bool:
        """Whether the broker knows ASK_TRANSACTION; Apache's do not. Raises ServiceNotReady."""
        return (await self._connection(broker)).answers_about_transactions

    async def joins_groups(self, broker: BrokerAddress) -> bool:
        """Whether the broker knows TRANSACTION_GROUP; Apache's do not. Raises ServiceNotReady."""
        return (await self._connection(broker)).joins_groups

    async def has_kafka_producers(self, broker: BrokerAddress) -> bool:
        """Whether the broker knows KAFKA_TRANSACTION: it serves Kafka's clients. Raises
        ServiceNotReady.
        """
        return (await self._connection(broker)).has_kafka_producers

    async def fences_sessions(self, broker: BrokerAddress) -> bool:
        """Whether the broker knows FENCE_SESSIONS and keeps sessions of transactional ids; Apache's
        do not. Raises ServiceNotReady.
        """
        return (await self._connection(broker)).fences_sessions

    async def _connection(self, broker: BrokerAddress) -> Connection:
        peer = self._peer(broker)
        try:
            return await peer.connection()
        except (OSError, ValueError, ClientError) as error:
            raise ServiceNotReady(f"{broker.broker_url}: {str(error) or 'no answer'}") from error

    def _peer(self, broker: BrokerAddress) -> _Peer:
        if self._closed:
            raise ServiceNotReady("This broker is stopping")
        url = broker.broker_url if self._options.tls is None else broker.broker_url_tls
        if not url:
            raise ServiceNotReady(_unreachable(broker))
        peer = self._peers.get(url)
        if peer is None:
            self._forget_those_that_left()
            peer = self._peers[url] = _Peer(url, self._options)
        return peer

    def _forget_those_that_left(self) -> None:
        """Forget closed connections: a restarted broker may have another address."""
        self._peers = {url: peer for url, peer in self._peers.items() if not peer.is_spent}

    async def close(self) -> None:
        """Close all connections; waiting requests fail. Idempotent."""
        self._closed = True
        peers, self._peers = self._peers, {}
        for peer in peers.values():
            await peer.close()


def _unreachable(broker: BrokerAddress) -> str:
    if broker.broker_url:
        return (
            f"{broker.broker_url} has no port with TLS, and brokerClientTlsEnabled=true: set "
            "brokerServicePortTls there"
        )
    return (
        f"{broker.broker_url_tls or broker.http_url or broker.http_url_tls} has no port without "
        "TLS: set brokerClientTlsEnabled=true"
    )
