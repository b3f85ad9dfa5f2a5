"""Many connections that arrive at once."""

import asyncio
import contextlib
import itertools
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority
from tls_ports import address, settings

import pybroker.testing
from pybroker.base.accepting import ACCEPTED_A_TURN
from pybroker.testing import RunningBroker

MANY = 100


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    authority = Authority(tmp_path_factory.mktemp("certificates"))
    authority.issue("broker")
    with pybroker.testing.broker(http=True, **settings(authority)) as running:
        yield running


def sockets() -> set[str]:
    """The sockets of this process. Those of other tests may be closed at any time."""
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it is closed already
            found.add(os.readlink(descriptor))
    return {each for each in found if each.startswith("socket:")}


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="counts what Linux lists there")
@pytest.mark.parametrize("port", ["service_url", "service_url_tls", "admin_url", "admin_url_tls"])
def test_a_few_are_accepted_in_a_turn_and_the_others_wait(broker: RunningBroker, port: str) -> None:
    async def accepted(_: Any) -> list[int]:
        peers = [socket.create_connection(address(getattr(broker, port)), 30) for _ in range(MANY)]
        try:
            before, counts = sockets(), [0]
            async with asyncio.timeout(60):
                while counts[-1] < MANY:
                    await asyncio.sleep(0)
                    counts.append(len(sockets() - before))
            return [after - before for before, after in itertools.pairwise(counts)]
        finally:
            for peer in peers:
                peer.close()

    idle = sockets()
    turns = broker.call(accepted)
    broker.wait_until(lambda: sockets() <= idle)
    assert sum(turns) == MANY
    assert max(turns) <= ACCEPTED_A_TURN + 1
