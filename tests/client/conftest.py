import random

import pytest
from scripted_broker import ScriptedBroker

from pybroker.client import aio


class StoppedClock:
    def now_ms(self) -> int:
        return 1_000

    def monotonic_s(self) -> float:
        return 1.0


@pytest.fixture
def broker() -> ScriptedBroker:
    return ScriptedBroker()


@pytest.fixture
def client(broker: ScriptedBroker) -> aio.Client:
    """For use inside `broker.run` only."""
    return aio.Client(
        "pulsar://one:6650",
        operation_timeout_seconds=30,
        clock=StoppedClock(),
        rng=random.Random(1),
    )
