"""A topic with delayed messages, on a loop with virtual time."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest
from dispatch_fakes import KEY_SHARED, LEDGER, SHARED, FakeTopic, check_parked
from virtual_loop import LoopClock, run_virtually

from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.position import Position
from managed_ledger.storage.memory import MemoryBackend
from pybroker.base.configuration.config import BrokerConfig
from pybroker.broker.dispatch.delayed import DelayPolicy, Delays, UndelayedReader
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.message_metadata import build_entry

BY_TIME = pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])


class Topic(FakeTopic):
    """A fake topic on a loop with virtual time."""

    async def delayed(self, *delays_s: float | None, key: str = "") -> list[Position]:
        """Publishes one message per delay; None is not delayed."""
        return await self.publish_entries([self.entry(delay_s, key) for delay_s in delays_s])

    def entry(self, delay_s: float | None, key: str = "", **fields: Any) -> bytes:
        metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=0, **fields)
        if key:
            metadata.partition_key = key
        if delay_s is not None:
            metadata.deliver_at_time = self.clock.now_ms() + round(delay_s * 1000)
        return build_entry(metadata, b"x" * 10)

    async def publish_entries(self, entries: list[bytes]) -> list[Position]:
        positions = [await self.ledger.append_one(entry, 1) for entry in entries]
        await self.changed()
        return positions

    async def after(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self.settled()


def run(scenario: Callable[[Topic], Coroutine[Any, Any, None]], **config: Any) -> None:
    async def go() -> None:
        backend = MemoryBackend()
        await backend.open()
        clock = LoopClock()
        factory = ManagedLedgerFactory(backend, clock)
        settings = replace(BrokerConfig(), **config)
        topic = Topic(await factory.open(LEDGER), factory, settings)
        topic.clock = clock
        topic.delays = Delays(lambda: DelayPolicy.of(topic.config), clock, factory.housekeeper)
        await scenario(topic)
        for subscription in list(topic.subscriptions.values()):
            check_parked(subscription)
            await subscription.close()
        waiting = (visit.work for _, _, visit in factory.housekeeper._due)
        owners = [type(getattr(work, "__self__", None)) for work in waiting]
        assert UndelayedReader not in owners, "it waits for a time after its end"
        await topic.tasks.close()
        await factory.close()
        await backend.close()

    run_virtually(go())
