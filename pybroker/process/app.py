"""The composition root: the only place that builds the parts of a broker.

    storage → managed ledgers → tenants, topics ⇄ coordinators → binary protocol → admin REST

Parts start in this order and stop in reverse. Everything external (storage, clock, randomness,
sockets) is passed in, so that tests and simulations run the same broker.
"""

import asyncio
import errno
import logging
import random
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from managed_ledger.errors import ManagedLedgerError
from managed_ledger.storage.backend import Backend
from managed_ledger.storage.importing import check_complete
from managed_ledger.storage.memory import MemoryBackend
from pybroker.admin.finding import finish_deletions_of_a_cluster
from pybroker.base.accepting import Endpoint
from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.listeners import BadListeners, parse_listeners
from pybroker.base.names import COORDINATOR_ASSIGN
from pybroker.base.runtime import Clock, SystemClock
from pybroker.base.telemetry import wanted
from pybroker.broker.brokers.ownership import NO_KAFKA, BrokerAddress
from pybroker.broker.deduplication import Examinations
from pybroker.broker.dynamic_configuration import DynamicConfiguration
from pybroker.broker.namespaces.permissions import Permissions
from pybroker.broker.namespaces.tenants import Tenants
from pybroker.broker.persistent.entry_metadata import BadInterceptors
from pybroker.broker.persistent.lost_logs import LostLogs
from pybroker.broker.policies.transaction_limits import namespace_limits
from pybroker.broker.topics import Topics
from pybroker.broker.transactions.txn_participants import check_may_join
from pybroker.logs.control import LogControl
from pybroker.process.boots import count_boot
from pybroker.process.kafka_offsets import LazyOffsets
from pybroker.process.ledger_factory import ledger_factory
from pybroker.process.ports import Ports, StartFailed, tls_contexts, web_tls_contexts
from pybroker.security.authentication import authentication_of
from pybroker.security.authorization import Authorizer
from pybroker.security.keys import KeyFailure
from pybroker.security.tls_connection import TlsListener
from pybroker.security.tls_contexts import TlsContexts
from pybroker.server.audited import audited_handlers
from pybroker.server.connections.frame_budget import FrameBudget
from pybroker.server.connections.outbox import Outboxes
from pybroker.server.connections.transport import BrokerServer
from pybroker.server.handler import Handler
from pybroker.server.handlers import HANDLERS
from pybroker.server.publishing.publish_budget import PublishBudget
from pybroker.server.services import Services
from pybroker.server.transactions.disconnections import Disconnections
from pybroker.transaction.coordinator.coordinators import Coordinators
from pybroker.transaction.coordinator.ends.participants import Participants
from pybroker.transaction.pending_acks.migration import migrate_pending_ack_logs

if TYPE_CHECKING:
    from pybroker.admin.http.server import HttpServer
    from pybroker.admin.services import Connected
    from pybroker.console.entry_point import EntryPoint
    from pybroker.faults.registry import Faults
    from pybroker.kafka.listener import KafkaListener
    from pybroker.process.inside import Inside
    from pybroker.process.membership import Membership
    from pybroker.server.guarded import Revocations

log = logging.getLogger("pybroker")
_KINDS: Final = {"basic": "passwords", "token": "token keys"}  # what a login method reloads

# Errors that end a start, and whose message already says what to do.
_Explained = ManagedLedgerError | KeyFailure | BadListeners | BadInterceptors


class Broker:
    """One broker. It starts once; to restart, stop it and create another on the same backend."""

    def __init__(
        self,
        config: BrokerConfig,
        backend: Backend,
        clock: Clock,
        rng: random.Random,
        shut_down: Callable[[], None] | None = None,
        logs: LogControl | None = None,
        faults: "Faults | None" = None,
        membership: "Membership | None" = None,
    ) -> None:
        """For the admin API: `shut_down` asks the owner of the broker to stop it, and `logs` are
        the levels of the process, if this broker may change them. With `faults`, the broker's steps
        pass the fault points; otherwise that code is not loaded. Without `membership`, the broker
        is alone.
        """
        self._membership = membership
        self.faults = faults
        self._logs = logs
        self._config = config
        self._backend = backend
        self._clock = clock
        self._rng = rng
        self._kafka: KafkaListener | None = None
        self.service_url = ""  # pulsar://host:port, once it serves
        self.admin_url = ""  # http://host:port, once it serves HTTP
        self.service_url_tls = self.admin_url_tls = ""  # pulsar+ssl://…, https://…
        self.kafka_url = self.kafka_url_tls = ""  # kafka://host:port, kafka+ssl://…
        self._kafka_address = NO_KAFKA  # for clients
        self._shut_down = shut_down
        self._running = AsyncExitStack()
        self._http: HttpServer | None = None
        self._inside: Inside | None = None
        self._tls: list[TlsContexts] = []
        self.metadata = metadata = backend.metadata
        self.ledgers = ledgers = ledger_factory(backend, clock, config)
        self.coordinators = Coordinators(ledgers, metadata, clock, config)
        tenants = Tenants(metadata, config, rng)
        self.topics = Topics(ledgers, metadata, tenants, self.coordinators, clock, config)
        self._lost_logs = LostLogs(self.topics)
        ledgers.on_fenced = self._lost_logs.lost
        if membership is not None:
            self.topics.ownership = membership.ownership
            self.topics.deletions.rng = rng
        self.coordinators.admission.limits_of = namespace_limits(self.topics.policies, config)
        self.topics.open_contents.owner_of = self.coordinators.owner_of
        self.dynamic = DynamicConfiguration(metadata, config, self.topics.policies.configure)
        # Raises BadListeners.
        self._listeners = parse_listeners(
            config.advertised_listeners, config.internal_listener_name
        )
        # Raises KeyFailure: without a way to check credentials no client is served.
        self.authentication = authentication_of(config, clock)
        self.permissions = self.topics.permissions
        self.authorizer = _authorizer(config, self.permissions)
        handlers: Mapping[int, Handler] = HANDLERS
        if self.authentication is not None:
            from pybroker.server import guarded

            handlers = guarded.guarded_handlers(HANDLERS, self.authorizer)
        self._services = Services(
            authentication=self.authentication,
            authorizer=self.authorizer,
            topics=self.topics,
            coordinators=self.coordinators,
            clock=clock,
            config=config,
            listeners=self._listeners,
            budget=PublishBudget(config.max_pending_publish_bytes),
            frames=FrameBudget(config.max_pending_frame_bytes),
            examinations=Examinations(config.max_message_size),
            outboxes=Outboxes(config.max_pending_delivery_bytes),
            disconnections=Disconnections(self.coordinators, self.topics.policies),
            storage_refusal=backend.refusal,
        )
        if faults is not None:
            self._pass_faults(faults)
        self.kafka_offsets = LazyOffsets(ledgers, self.coordinators, self.topics, config)
        self._services.participants.end_in_group = self.kafka_offsets.end
        self.participants: Participants = self._services.participants
        self.server = _server(self._services, audited_handlers(handlers), faults)
        self.revocations: Revocations | None = None
        if self.authorizer is not None:
            from pybroker.server import guarded

            self.revocations = guarded.Revocations(self.authorizer, lambda: self.server.sessions)
            self.permissions.watch(self.revocations.changed)

    def _pass_faults(self, faults: "Faults") -> None:
        from pybroker.broker.transactions.faulty_participants import FaultyParticipants
        from pybroker.transaction.coordinator.log.faulty_log import FaultyTransactionLog

        self.coordinators.open_log = partial(FaultyTransactionLog.opened, faults)
        self._services.participants = FaultyParticipants(self.topics, faults)

    async def start(
        self,
        listen: Endpoint | None,
        http: socket.socket | Endpoint | None = None,
        tls: TlsListener | None = None,
        https: TlsListener | None = None,
        kafka: Endpoint | None = None,
        kafka_tls: TlsListener | None = None,
    ) -> None:
        """Serve. Transactions are recovered before any client is accepted, so that clients of open
        transactions are not told to retry later. Decided transactions complete in the background.

        `http` is a bound socket for the admin REST API, or the endpoint to listen on; `tls` and
        `https` are the sockets of the two protocols with TLS; `kafka` and `kafka_tls` are for
        Kafka's clients, as `listen` and `tls`. Raises CorruptStorage, DirectoryInUse, OSError.
        """
        self._tls = [each.contexts for each in (tls or kafka_tls, https) if each is not None]
        async with AsyncExitStack() as parts:
            await self._backend.open()
            parts.push_async_callback(self._backend.close)
            check_complete(self._backend.metadata)
            if self._membership is not None:
                await self._membership.open(self)
                parts.push_async_callback(self._membership.close)
            self.dynamic.load()
            self._services.boot = await count_boot(self._backend.metadata)
            parts.push_async_callback(self.ledgers.close)
            if self._membership is None:
                await self._finish_what_a_crash_left()
            parts.push_async_callback(self.topics.close)
            parts.push_async_callback(self._lost_logs.close)
            parts.push_async_callback(self.kafka_offsets.close)
            parts.push_async_callback(self._services.participants.close)
            parts.push_async_callback(self.coordinators.close)
            self.coordinators.count = self.topics.tenants.partitions(COORDINATOR_ASSIGN)
            self.coordinators.joining.check = partial(check_may_join, self.topics.policies)
            await self.coordinators.recover_all(self.participants)
            parts.push_async_callback(self._services.close)
            self._services.sessions.look_after_ids()
            parts.push_async_callback(self.server.stop)
            if self.revocations is not None:
                parts.push_async_callback(self.revocations.close)
            if listen is not None:
                self.service_url = self._url("pulsar", await self.server.start(listen))
            if tls is not None:
                await self.server.start_tls(tls)
                self.service_url_tls = self._url("pulsar+ssl", tls.socket.getsockname())
            if kafka is not None or kafka_tls is not None:
                await self._start_kafka(kafka, kafka_tls, parts)
            if http is not None or https is not None:
                await self._start_http(http, https, parts)
            if self._membership is not None:
                parts.push_async_callback(self._membership.leave)
                await self._membership.join(self._address, self._listeners, self._kafka_address)
            self._running = parts.pop_all()

    async def _finish_what_a_crash_left(self) -> None:
        """Clean up the whole storage: no other process uses it."""
        await self.ledgers.sweep()
        if not self._backend.is_shared:  # otherwise logs with such names are Apache Pulsar's
            await migrate_pending_ack_logs(self.ledgers)
        await self.topics.deletions.finish_all()
        await finish_deletions_of_a_cluster(self.topics)

    @property
    def _address(self) -> BrokerAddress:
        return BrokerAddress(
            self.service_url, self.service_url_tls, self.admin_url, self.admin_url_tls
        )

    @property
    def _is_private(self) -> bool:
        """Whether only this machine can reach the broker, and everyone may do anything to it."""
        return self.authentication is None and self._config.local_only

    async def stop(self) -> None:
        """Stop accepting connections, write all state, release the storage. Idempotent."""
        await self.server.stop_listening()
        if self._kafka is not None:
            await self._kafka.stop_listening()
        await self._running.aclose()

    def reload_credentials(self) -> dict[str, bool]:
        """Apply renewed certificates, passwords and token keys to new connections and logins.
        Unusable ones are logged. For each kind that this broker uses, whether it was reloaded.
        """
        certificates = [contexts.reload() for contexts in self._tls]
        if self._membership is not None:
            certificates += self._membership.reload_certificates()
        reloaded = {"certificates": all(certificates)} if certificates else {}
        if self.authentication is not None:
            by_method = self.authentication.reload()
            reloaded |= {_KINDS.get(each, each): done for each, done in by_method.items()}
        return reloaded

    async def abandon(self) -> None:
        """Release sockets and storage without writing in-memory state: the storage looks as after a
        kill of the process.
        """
        if self._http is not None:
            await self._http.stop(answer_timeout_s=0)
        if self._kafka is not None:
            await self._kafka.stop(answer_timeout_s=0)
        await self.server.stop(answer_timeout_s=0)
        await self._backend.close()

    async def _start_kafka(
        self, plain: Endpoint | None, tls: TlsListener | None, parts: AsyncExitStack
    ) -> None:
        from pybroker.process.kafka import kafka_listener, told_address

        self._kafka = kafka_listener(
            self, self._services, self._clock, self._config, self._rng, self._membership
        )
        parts.push_async_callback(self._kafka.stop)
        if (address := await self._kafka.start(plain, tls)) is not None:
            self.kafka_url = self._url("kafka", address)
        if tls is not None:
            self.kafka_url_tls = self._url("kafka+ssl", tls.socket.getsockname())
        self._kafka_address = told_address(self._config, self.kafka_url, self.kafka_url_tls)

    async def _start_http(
        self, plain: socket.socket | Endpoint | None, tls: TlsListener | None, parts: AsyncExitStack
    ) -> None:
        # In a thread: the binary port serves clients while the web framework loads.
        await asyncio.get_running_loop().run_in_executor(None, _import_http)
        from pybroker.admin.http.first_request import AtFirstRequest
        from pybroker.admin.http.loop_lag import LoopLag
        from pybroker.admin.http.server import HttpServer
        from pybroker.admin.services import AdminServices
        from pybroker.broker.brokers.clusters import Clusters
        from pybroker.broker.health import Health
        from pybroker.process.inside import Inside

        self._inside = inside = Inside(
            self.server, self._services, self._config, self._clock, self._rng
        )
        bound = plain.getsockname() if isinstance(plain, socket.socket) else plain
        url = self._url("http", bound) if bound else ""
        url_tls = "" if tls is None else self._url("https", tls.socket.getsockname())
        lag, member = LoopLag(), self._membership
        parts.callback(lag.close)
        health = Health(self.ledgers, "" if member is None else urlsplit(url or url_tls).netloc)
        parts.push_async_callback(health.close)
        services = AdminServices(
            authentication=self.authentication,
            authorizer=self.authorizer,
            permissions=self.permissions,
            permissions_applied=self._permissions_applied,
            topics=self.topics,
            coordinators=self.coordinators,
            clock=self._clock,
            config=self._config,
            dynamic=self.dynamic,
            metadata=self._backend.metadata,
            ledgers=self.ledgers,
            clusters=Clusters(self._backend.metadata, self._config.cluster_name),
            shut_down=self._shut_down,
            faults=self.faults if self._is_private else None,
            logs=self._logs,
            service_url=self.service_url,
            admin_url=url,
            service_url_tls=self.service_url_tls,
            admin_url_tls=url_tls,
            connections=lambda: len(self.server.sessions),
            connected=self._connected,
            listeners=self._listeners,
            counts=self._services.counts,
            throttled_connections=lambda: sum(each.throttled for each in self.server.sessions),
            undelivered_bytes=lambda: self._services.outboxes.held_bytes,
            loop_lag_s=lag.reader(),
            live_loop_lag_s=lag.reader(),
            health=health,
            publish=inside.publish,
            gateway=inside.gateway,
            kafka=lambda: None if self._kafka is None else self._kafka.for_admin,
            forget_kafka_offsets=self.kafka_offsets.forget_here,
            members=None if member is None else member.brokers,
            bundles=None if member is None else member.bundles,
            bookies=tuple if member is None else member.bookies,
            brokers=None if member is None else member.others,
        )
        if wanted("METRICS"):
            from pybroker.process.sent_metrics import send_metrics

            own_lag = replace(services, live_loop_lag_s=lag.reader())
            await send_metrics(own_lag, parts)
        limit_bytes = self._config.max_pending_delivery_bytes
        parts.push_async_callback(inside.close)
        self._http = HttpServer(AtFirstRequest(services, _console), limit_bytes)
        parts.push_async_callback(self._http.stop)
        await self._http.start(plain, tls)
        self.admin_url, self.admin_url_tls = url, url_tls

    def _connected(self) -> "Iterator[Connected]":
        from pybroker.admin.services import Connected

        for session in self.server.sessions:
            login = session.login
            yield Connected(
                number=session.number,
                address=session.peer,
                role=None if login is None else login.identity.acting,
                client_version=session.client_version,
                protocol_version=session.protocol_version,
                producers=len(session.producers),
                consumers=len(session.consumers),
            )

    async def _permissions_applied(self) -> None:
        if self.revocations is not None:
            await self.revocations.applied()

    def _url(self, scheme: str, address: tuple[str, int]) -> str:
        host, port = self._config.advertised(address[0]), address[1]
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _server(
    services: Services, handlers: Mapping[int, Handler], faults: "Faults | None"
) -> BrokerServer:
    if faults is None:
        return BrokerServer(services, handlers)
    from pybroker.server.faults.faulty_handlers import faulty_handlers
    from pybroker.server.faults.faulty_session import FaultySession, receipting

    services.faults, services.receipting = faults, receipting
    return BrokerServer(services, faulty_handlers(handlers), FaultySession)


def _authorizer(config: BrokerConfig, permissions: Permissions) -> Authorizer | None:
    if not config.authorization_enabled:
        return None
    if not config.authentication_enabled:
        raise KeyFailure("authorizationEnabled=true requires authenticationEnabled=true")
    return Authorizer(config, permissions)


def _import_http() -> None:
    import_module("pybroker.admin.http.server")


def _console() -> "type[EntryPoint]":
    from pybroker.console.entry_point import EntryPoint

    return EntryPoint


# -- standalone: a broker on real sockets


async def standalone(
    config: BrokerConfig,
    backend: Backend,
    http: bool,
    clock: Clock | None = None,
    shut_down: Callable[[], None] | None = None,
    logs: LogControl | None = None,
    faults: "Faults | None" = None,
    membership: "Membership | None" = None,
) -> Broker:
    """A broker that serves on the configured address. Raises StartFailed.

    Ports are bound before the storage is touched; clients are accepted only after recovery.
    """
    clock = clock or SystemClock()
    ports = Ports(config, http)
    try:
        ports.bind()
        contexts = tls_contexts(config, clock)
        tls = ports.with_tls("broker_service_port_tls", contexts)
        kafka_tls = ports.with_tls("kafka_service_port_tls", contexts)
        https = ports.with_tls("web_service_port_tls", web_tls_contexts(config, clock))
        broker = Broker(
            config, backend, clock, random.Random(), shut_down, logs, faults, membership
        )
        plain, web = ports.bound.get("broker_service_port"), ports.bound.get("web_service_port")
        kafka = ports.bound.get("kafka_service_port")
        await broker.start(plain, web, tls, https, kafka, kafka_tls)
    except BaseException as error:
        ports.close()
        if isinstance(error, _Explained | OSError):
            raise StartFailed(_way_out(error)) from error
        raise
    return broker


def _way_out(
    error: _Explained | OSError,
) -> str:
    if not isinstance(error, OSError):
        return str(error)  # its message says what to do
    if error.errno == errno.EADDRINUSE:
        return f"{error}: another process has just bound that port; try again"
    return f"the storage cannot be opened: {error}; choose another directory with --data-dir"


def memory_backend() -> Backend:
    return MemoryBackend()


def embedded_backend(
    config: BrokerConfig, data_dir: Path, on_disk_failure: Callable[[Exception], None]
) -> Backend:
    """`on_disk_failure` is called when a write could not be made durable. It must end the process,
    because the contents of the disk are unknown.
    """
    from managed_ledger.storage.embedded.journal import EmbeddedBackend
    from managed_ledger.storage.embedded.os_disk import OsDisk

    return EmbeddedBackend(
        OsDisk(data_dir),
        SystemClock(),
        durability="fsync" if config.journal_sync_data else "relaxed",
        on_fatal=on_disk_failure,
    )
