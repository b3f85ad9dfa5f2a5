"""What serves clients inside this process: the admin API's messages, and visitors over HTTP. Each
is imported and created at its first use.
"""

import asyncio
import random
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.runtime import Clock
from pybroker.server.connections.transport import BrokerServer
from pybroker.server.services import Services

if TYPE_CHECKING:
    from pybroker.broker.local_messages import LocalBatch, LocalSender
    from pybroker.broker.schemas.compatibility import StoredSchema
    from pybroker.gateway.gateway import Gateway
    from pybroker.security.identity import Identity
    from pybroker.server.local.connection import LocalConnections


class Inside:
    def __init__(
        self,
        server: BrokerServer,
        services: Services,
        config: BrokerConfig,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._server = server
        self._services = services
        self._config = config
        self._clock = clock
        self._rng = rng
        self._local: LocalConnections | None = None
        self._gateway: Gateway | None = None

    async def publish(
        self,
        identity: "Identity | None",
        sender: "LocalSender",
        batches: "Sequence[LocalBatch]",
        schema: "StoredSchema | None",
    ) -> None:
        if self._local is None:
            from pybroker.server.local.connection import LocalConnections

            new_name = self._services.new_producer_name
            self._local = LocalConnections(self._server.accept, new_name)
        await self._local.publish(identity, sender, batches, schema)

    async def gateway(self) -> "Gateway":
        if self._gateway is None:  # in a thread: it takes a tenth of a second
            await asyncio.get_running_loop().run_in_executor(None, _import_gateway)
        if self._gateway is None:
            from pybroker.gateway.gateway import Gateway
            from pybroker.server.local.pipe import Within

            within = Within(self._server.accept, self._clock)
            services = self._services
            self._gateway = Gateway(
                within.connect,
                services.frames,
                self._config,
                self._clock,
                self._rng,
                lambda: services.coordinators.count,
            )
        return self._gateway

    async def close(self) -> None:
        if self._gateway is not None:
            await self._gateway.close()


def _import_gateway() -> None:
    for name in ("gateway", "answers", "received_json", "websocket.consumer"):
        import_module(f"pybroker.gateway.{name}")
