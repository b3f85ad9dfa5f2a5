"""Requests to other brokers' admin API, with this broker's own role.

Requests are rare, so each has its own connection. A request returns a complete answer or fails;
after a failure it is unknown whether the other broker has executed the request. Redirects are
returned as answers.
"""

import asyncio
import base64
import ssl
from typing import Final
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

import h11

from pybroker.base.errors import ServiceNotReady
from pybroker.broker.brokers.other_brokers import ASKED_BY_A_BROKER, Reply
from pybroker.broker.brokers.ownership import BrokerAddress
from pybroker.client.connection.auth import Authentication
from pybroker.cluster.live_brokers import LiveBrokers
from pybroker.cluster.transactions.peers import PeerOptions

_CONNECT_S: Final = 5.0
_ANSWER_S: Final = 60.0
_MOST_BYTES: Final = 64 * 1024 * 1024  # of an answer
_READ_BYTES: Final = 64 * 1024
_AT_ONCE: Final = 32  # requests to all brokers together; more of them wait
_AT_ONCE_TO_ONE: Final = 8  # so that a broker that hangs leaves room for requests to the others


class AdminClient:
    """Implements OtherBrokers."""

    def __init__(self, brokers: LiveBrokers, options: PeerOptions) -> None:
        self._brokers = brokers
        self._options = options
        self._room = asyncio.Semaphore(_AT_ONCE)
        self._room_of = WeakValueDictionary[str, asyncio.Semaphore]()  # by URL, while in use

    def others(self) -> dict[str, BrokerAddress]:
        own = self._brokers.own_id
        return {each: place.address for each, place in self._brokers.all().items() if each != own}

    def is_foreign(self, broker_id: str) -> bool:
        return self._brokers.is_foreign(broker_id)

    async def ask(
        self, broker: BrokerAddress, method: str, target: str, body: bytes = b""
    ) -> Reply:
        return await self._ask(broker, method, target, body, by_a_broker=True)

    async def ask_as_a_client(self, method: str, target: str, body: bytes = b"") -> Reply:
        """Ask this broker for the answer of the whole cluster. Raises as `ask`."""
        place = self._brokers.place(self._brokers.own_id)
        if place is None:
            raise ServiceNotReady("this broker is not in the cluster; try again")
        return await self._ask(place.address, method, target, body, by_a_broker=False)

    async def _ask(
        self, broker: BrokerAddress, method: str, target: str, body: bytes, by_a_broker: bool
    ) -> Reply:
        tls = self._options.tls
        url = broker.http_url if tls is None else broker.http_url_tls
        if not url:
            raise ServiceNotReady(_unreachable(broker))
        try:
            context = None if tls is None else tls.context()
            room = self._room_of.setdefault(url, asyncio.Semaphore(_AT_ONCE_TO_ONE))
            async with asyncio.timeout(_CONNECT_S + _ANSWER_S), room, self._room:
                return await request_over_http(
                    url, method, target, body, self._options.authentication, context, by_a_broker
                )
        except TimeoutError:
            raise ServiceNotReady(f"{url} did not answer within {_ANSWER_S:g} s") from None
        except (OSError, EOFError, h11.RemoteProtocolError) as error:
            raise ServiceNotReady(f"{url} cannot be reached now; try again: {error}") from error


def _unreachable(broker: BrokerAddress) -> str:
    if broker.http_url:
        return (
            f"{broker.http_url} has no port with TLS, and brokerClientTlsEnabled=true: set "
            "webServicePortTls there"
        )
    if broker.http_url_tls:
        return f"{broker.http_url_tls} has no port without TLS: set brokerClientTlsEnabled=true"
    return f"{broker.broker_url or broker.broker_url_tls} serves no HTTP"


async def request_over_http(
    url: str,
    method: str,
    target: str,
    body: bytes = b"",
    login: Authentication | None = None,
    tls: ssl.SSLContext | None = None,
    by_a_broker: bool = False,
) -> Reply:
    """Send a request and return the answer. Raises OSError, EOFError, TimeoutError,
    h11.RemoteProtocolError.
    """
    parts = urlsplit(url)
    headers = [("Host", parts.netloc), ("Connection", "close"), *_login(login)]
    if by_a_broker:
        headers.append((ASKED_BY_A_BROKER, "true"))
    if body:
        headers.append(("Content-Type", "application/json"))
    if body or method != "GET":
        headers.append(("Content-Length", str(len(body))))
    async with asyncio.timeout(_CONNECT_S):
        context = tls if parts.scheme == "https" else None
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port, ssl=context)
    try:
        parser = h11.Connection(h11.CLIENT)
        request = h11.Request(method=method, target=target, headers=headers)
        for event in (request, *([h11.Data(data=body)] if body else []), h11.EndOfMessage()):
            writer.write(parser.send(event) or b"")
        # No drain: a broker that redirects the request answers without reading the body.
        return await _answer(parser, reader)
    finally:
        writer.close()


async def _answer(parser: h11.Connection, reader: asyncio.StreamReader) -> Reply:
    status, headers, pieces, size = 0, dict[bytes, bytes](), list[bytes](), 0
    while True:
        event = parser.next_event()
        if event is h11.NEED_DATA:
            parser.receive_data(await reader.read(_READ_BYTES))
        elif isinstance(event, h11.Response):
            status = event.status_code
            headers = dict(event.headers)
        elif isinstance(event, h11.Data):
            pieces.append(bytes(event.data))
            size += len(pieces[-1])
            if size > _MOST_BYTES:
                raise OSError(f"its answer is larger than {_MOST_BYTES} bytes")
        elif isinstance(event, h11.EndOfMessage):
            location, media = (
                headers.get(name, b"").decode("latin-1") for name in (b"location", b"content-type")
            )
            return Reply(status, b"".join(pieces), location, media)
        elif isinstance(event, h11.ConnectionClosed):
            raise EOFError("the connection ended before the answer")


def _login(authentication: Authentication | None) -> list[tuple[str, str]]:
    match authentication:
        case Authentication("token"):
            return [("Authorization", f"Bearer {authentication.data().decode()}")]
        case Authentication("basic"):
            return [("Authorization", f"Basic {base64.b64encode(authentication.data()).decode()}")]
    return []  # no login, or a certificate of the connection
