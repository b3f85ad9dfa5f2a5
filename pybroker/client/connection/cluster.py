"""The brokers: which of them serves a topic, and the open connections to them.

There is one connection per broker address (and per broker behind a proxy), opened on first use and
shared. A topic's broker is found with LOOKUP, following redirects.
"""

import asyncio
import contextlib
import itertools
import random
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar
from urllib.parse import urlsplit

from pybroker.base.errors import NotAllowed, ServiceNotReady
from pybroker.base.names import TopicName
from pybroker.base.runtime import Clock, Tasks
from pybroker.client.connection.auth import Authentication
from pybroker.client.connection.client_session import ClientSession
from pybroker.client.connection.connection import Connection
from pybroker.client.connection.retry import passing, retrying
from pybroker.client.connection.unreachable import Unreachable, reason
from pybroker.client.consuming.receive_queue import ReceiveQueue
from pybroker.client.errors import (
    AlreadyClosed,
    ConnectError,
    InvalidConfiguration,
    PulsarException,
    Timeout,
    from_wire,
)
from pybroker.wire import pulsar_api_pb2 as pb

T = TypeVar("T")
# Opens a connection with the protocol that the function returns, to a host and port; with TLS if
# there is a context.
Dial = Callable[[Callable[[], Connection], str, int, ssl.SSLContext | None], Awaitable[Connection]]
MAX_REDIRECTS: Final = 20
MAX_MESSAGE_BYTES: Final = 1024**3
_PORTS: Final = {"pulsar": 6650, "pulsar+ssl": 6651}
_START_BITS: Final = 62  # leaves room to count up to 2^63, the limit of official clients


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    operation_timeout_s: float = 30.0
    connection_timeout_s: float = 10.0
    authentication: Authentication | None = None
    listener_name: str | None = None
    tls_trust_certs_file_path: str | None = None
    tls_certificate_file_path: str | None = None
    tls_private_key_file_path: str | None = None
    tls_allow_insecure_connection: bool = False
    tls_validate_hostname: bool = True

    def ssl_context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.tls_trust_certs_file_path)
        context.check_hostname = self.tls_validate_hostname
        if self.tls_allow_insecure_connection:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.tls_certificate_file_path is not None:
            context.load_cert_chain(self.tls_certificate_file_path, self.tls_private_key_file_path)
        return context


def service_addresses(service_url: str) -> list[str]:
    """`pulsar://a:6650,b` as one URL per host. Raises InvalidConfiguration."""
    scheme, separator, hosts = service_url.partition("://")
    if not separator or scheme not in _PORTS or not hosts:
        raise InvalidConfiguration(
            f"Service URL {service_url!r} must look like pulsar://host:6650 or pulsar+ssl://…"
        )
    return [f"{scheme}://{host}" for host in hosts.rstrip("/").split(",")]


@dataclass(frozen=True, slots=True)
class _TopicList:
    topics: Sequence[str]
    hash: str


class Closeable(Protocol):
    async def close(self) -> None: ...


class Part(Closeable, Protocol):
    """A producer or consumer of one topic or partition."""

    topic: str

    async def open(self) -> None: ...


class Cluster:
    """What producers, consumers and transactions need from the client."""

    def __init__(
        self, service_url: str, options: ConnectionOptions, clock: Clock, rng: random.Random
    ) -> None:
        self.options = options
        self.clock = clock
        self.rng = rng
        self.tasks = Tasks("pybroker client")
        # Producer and consumer ids: unique on each connection.
        self.ids = itertools.count(1)
        # Of requests, on all connections. The start tells this client from an earlier one.
        self._request_ids = itertools.count(rng.getrandbits(_START_BITS))
        # The receive queue of consumers; the blocking client has its own kind.
        self.new_queue: Callable[[], ReceiveQueue] = ReceiveQueue
        # Open producers and consumers, to be closed with the client.
        self.members: dict[Closeable, None] = {}
        self.transacts = True  # whether the client may begin transactions
        self.session: ClientSession | None = None  # of the client's transactional id
        self.dial: Dial = _dial
        self.passes: Callable[[Exception], bool] = passing  # which errors are retried
        self.max_message_bytes = MAX_MESSAGE_BYTES  # uncompressed, all chunks together
        self._service_addresses = service_addresses(service_url)
        self._uses_tls = service_url.startswith("pulsar+ssl")
        self._connections: dict[tuple[str, str | None], asyncio.Task[Connection]] = {}
        # How many have been opened, to all brokers: growth may mean a different broker.
        self.connections_made = 0
        self._unreachable = Unreachable()
        self._closed = False
        self._topic_lists: dict[str, _TopicList] = {}  # by namespace

    @property
    def timeout_s(self) -> float:
        return self.options.operation_timeout_s

    async def close(self) -> None:
        try:
            await asyncio.gather(*(each.close() for each in self.members), return_exceptions=True)
        finally:  # also if the caller was cancelled
            self._closed = True
            await self._close_connections()

    async def _close_connections(self) -> None:
        await self.tasks.close()
        openings, self._connections = list(self._connections.values()), {}
        for opening in openings:
            opening.cancel()
        for opened in await asyncio.gather(*openings, return_exceptions=True):
            if isinstance(opened, Connection):
                opened.close()

    # --- members ----------------------------------------------------------------------------

    async def open_all(self, member: Closeable, parts: Sequence[Part]) -> None:
        """All or nothing: failure or cancellation leaves nothing behind at the broker."""
        self.members[member] = None
        try:
            await _open(parts)
        except Exception:
            await member.close()
            raise
        except BaseException:
            self.close_behind(member, "a member whose opening was cancelled")
            raise

    async def open_more(self, parts: Sequence[Part]) -> None:
        """Like `open_all`, for additional parts of an open member."""
        try:
            await _open(parts)
        except BaseException:
            for part in parts:
                self.close_behind(part, part.topic)
            raise

    def close_behind(self, closeable: Closeable, name: str) -> None:
        """Runs in the background, because a cancelled caller cannot wait for it."""
        if not self._closed:
            self.tasks.start(_quietly(closeable.close()), f"close {name}")

    # --- topics -----------------------------------------------------------------------------

    async def partition_topics(self, topic: str, create: bool = True) -> list[str]:
        """The topics that store the data of `topic`: its partitions, or itself if it has none. With
        `create` the broker may auto-create it with partitions.
        """
        name = TopicName.parse(topic)
        count = await self.partition_count(str(name), create)
        if count == 0:
            return [str(name)]
        return [str(name.partition_at(index)) for index in range(count)]

    async def partition_count(self, topic: str, create: bool = True) -> int:
        """0 for a topic without partitions."""

        async def ask() -> int:
            connection = await self.service_connection()
            request = pb.CommandPartitionedTopicMetadata(
                topic=topic, metadata_auto_creation_enabled=create
            )
            answer = await connection.request(request, self.timeout_s)
            return int(answer.partitions)

        return await self.patiently(ask, f"Partitions of {topic}")

    async def topics_of_namespace(self, namespace: str) -> list[str]:
        """All persistent topics; of a partitioned topic, its partitions.

        The broker does not send the list again if it is unchanged.
        """
        known = self._topic_lists.get(namespace)

        async def ask() -> pb.CommandGetTopicsOfNamespaceResponse:
            connection = await self.service_connection()
            request = pb.CommandGetTopicsOfNamespace(namespace=namespace)
            if known is not None:
                request.topics_hash = known.hash
            answer: pb.CommandGetTopicsOfNamespaceResponse = await connection.request(
                request, self.timeout_s
            )
            return answer

        answer = await self.patiently(ask, f"Topics of {namespace}")
        if known is not None and not answer.changed:
            return list(known.topics)
        found = list(answer.topics)
        if answer.topics_hash:
            self._topic_lists[namespace] = _TopicList(tuple(found), answer.topics_hash)
        return found

    async def topics_that_match(self, namespace: str, pattern: str) -> list[str]:
        """Raises NotAllowed if the broker does not apply patterns."""

        async def ask() -> list[str]:
            connection = await self.service_connection()
            request = pb.CommandGetTopicsOfNamespace(namespace=namespace, topics_pattern=pattern)
            answer = await connection.request(request, self.timeout_s)
            if not answer.filtered:
                raise NotAllowed(f"The broker does not apply the pattern {pattern}")
            return list(answer.topics)

        return await self.patiently(ask, f"Topics that match {pattern}")

    async def schema(self, topic: str, version: bytes | None = None) -> pb.Schema | None:
        """The newest schema of a topic, or the given version; None if there is none."""

        async def ask() -> pb.Schema | None:
            connection = await self.connection_for(topic)
            request = pb.CommandGetSchema(topic=topic)
            if version is not None:
                request.schema_version = version
            answer = await connection.request(request, self.timeout_s)
            if not answer.HasField("error_code"):
                found: pb.Schema = answer.schema
                return found
            if answer.error_code == pb.TopicNotFound:
                return None
            raise from_wire(answer.error_code, answer.error_message)

        return await self.patiently(ask, f"The schema of {topic}")

    async def connection_for(self, topic: str) -> Connection:
        """A connection to the broker that serves `topic`; one attempt."""
        connection = await self.service_connection()
        service, authoritative = connection.address, False
        for _ in range(MAX_REDIRECTS):
            request = pb.CommandLookupTopic(topic=topic, authoritative=authoritative)
            if self.options.listener_name is not None:
                request.advertised_listener_name = self.options.listener_name
            found = await connection.request(request, self.timeout_s)
            broker = found.brokerServiceUrlTls if self._uses_tls else found.brokerServiceUrl
            if not broker:
                raise ServiceNotReady(f"The broker named no address for {topic}")
            if found.proxy_through_service_url:  # only the proxy can be reached
                connection = await self._connection(service, urlsplit(broker).netloc)
            else:
                self._check_encrypted(broker, topic)
                connection = await self._connection(broker, None)
            if found.response != pb.CommandLookupTopicResponse.Redirect:
                return connection
            authoritative = found.authoritative
        raise ServiceNotReady(f"The lookup of {topic} was redirected {MAX_REDIRECTS} times")

    def _check_encrypted(self, broker: str, topic: str) -> None:
        """A client with TLS sends credentials and messages only to TLS ports."""
        if self._uses_tls and urlsplit(broker).scheme != "pulsar+ssl":
            raise InvalidConfiguration(
                f"The lookup of {topic} returned {broker}, which is not encrypted. This client's "
                "service URL is pulsar+ssl://, so it does not connect to such an address: the "
                "broker must advertise a pulsar+ssl:// address"
            )

    async def patiently(self, attempt: Callable[[], Awaitable[T]], what: str) -> T:
        """Retries `attempt` on transient errors, up to the operation timeout."""
        return await retrying(
            attempt, self.rng, passes=self.passes, timeout_s=self.timeout_s, what=what
        )

    # --- connections ------------------------------------------------------------------------

    async def service_connection(self) -> Connection:
        """Connects to the first reachable broker of the service URL."""
        failure: Exception | None = None
        for address in self._service_addresses:
            try:
                return await self._connection(address, None)
            except (ConnectError, Timeout) as error:
                failure = error
        assert failure is not None
        raise failure

    async def _connection(self, address: str, proxy_to: str | None) -> Connection:
        if self._closed:
            raise AlreadyClosed("The client is closed")
        key = (address, proxy_to)
        opening = self._connections.get(key)
        if opening is None or _is_spent(opening):
            opening = asyncio.get_running_loop().create_task(self._open(address, proxy_to))
            self._connections[key] = opening
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not opening.cancelled() or (task is not None and task.cancelling()):
                raise
            # `close` has cancelled the opening, not the caller waiting for it.
            raise AlreadyClosed("The client was closed before it was connected") from None

    async def _open(self, address: str, proxy_to: str | None) -> Connection:
        url = urlsplit(address)
        host, port = url.hostname or "", url.port or _PORTS.get(url.scheme, 6650)
        tls = self.options.ssl_context() if url.scheme == "pulsar+ssl" else None
        connection: Connection | None = None

        def new_connection() -> Connection:
            return Connection(address, self.options.authentication, self._request_ids)

        try:
            with self._unreachable.watched(address):
                async with asyncio.timeout(self.options.connection_timeout_s):
                    connection = await self.dial(new_connection, host, port, tls)
                    await connection.handshake(proxy_to)
        except BaseException as error:
            if connection is not None:
                connection.close()
            if isinstance(error, OSError) and not isinstance(error, ConnectError):
                raise ConnectError(f"Cannot connect to {address}: {reason(error)}") from error
            raise
        self.connections_made += 1
        return connection


async def _dial(
    new_connection: Callable[[], Connection], host: str, port: int, tls: ssl.SSLContext | None
) -> Connection:
    loop = asyncio.get_running_loop()
    return (await loop.create_connection(new_connection, host, port, ssl=tls))[1]


async def _open(parts: Sequence[Part]) -> None:
    """Opens all concurrently; the first failure cancels the others.

    Not with a TaskGroup: when one fails, its task still counts as cancelled, and before Python
    3.11.3 the next `asyncio.timeout` in that task ends in CancelledError.
    """
    opening = [asyncio.ensure_future(part.open()) for part in parts]
    try:
        await asyncio.gather(*opening)
    except BaseException:
        for each in opening:
            each.cancel()
        await asyncio.gather(*opening, return_exceptions=True)
        raise


async def _quietly(closing: Awaitable[None]) -> None:
    with contextlib.suppress(PulsarException):
        await closing


def _is_spent(opening: "asyncio.Task[Connection]") -> bool:
    if not opening.done():
        return False
    return opening.cancelled() or opening.exception() is not None or opening.result().closed
