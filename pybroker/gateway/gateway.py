"""Everything that visitors of this broker share."""

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.runtime import Clock, Tasks
from pybroker.gateway.clients import Budget, Connect, VisitorClient
from pybroker.gateway.read_ahead import Ahead
from pybroker.gateway.receivers import Receivers
from pybroker.gateway.visitors import Visitors

if TYPE_CHECKING:
    from pybroker.gateway.websocket.endpoint import Endpoint

_CLOSE_S: Final = 5.0


class Gateway:
    def __init__(
        self,
        connect: Connect,
        frames: Budget,
        config: BrokerConfig,
        clock: Clock,
        rng: random.Random,
        coordinators: Callable[[], int],
    ) -> None:
        """`frames` is the budget of partly received frames, `coordinators` their number."""
        self.frames = frames
        self.config = config
        self.clock = clock
        self._ahead = Ahead(
            config.web_socket_pulsar_client_memory_limit_in_mb * 1024 * 1024
            or config.max_pending_delivery_bytes
        )
        self.new_client = partial(
            VisitorClient,
            connect=connect,
            ahead=self._ahead,
            config=config,
            clock=clock,
            rng=rng,
            coordinators=coordinators,
        )
        self.visitors = Visitors(self.new_client)
        self.receivers = Receivers(self.new_client)
        self.tasks = Tasks("visitors over HTTP")
        self._endpoints: dict[Endpoint, None] = {}

    def serve(self, endpoint: "Endpoint") -> None:
        """Serves a WebSocket until it ends."""
        self._endpoints[endpoint] = None
        task = self.tasks.start(endpoint.run(), "a WebSocket")
        task.add_done_callback(lambda _: self._endpoints.pop(endpoint, None))

    async def close(self) -> None:
        for endpoint in self._endpoints:
            endpoint.go_away()
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await self.tasks.ended()
        await self.tasks.close()
        await self.receivers.close()
        await self.visitors.close()
