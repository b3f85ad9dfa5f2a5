"""The connections of a broker to other brokers."""

import asyncio

import pytest

from pybroker.base.errors import ServiceNotReady
from pybroker.broker.brokers.ownership import BrokerAddress
from pybroker.cluster.transactions.peers import Peers
from pybroker.testing.reserved_port import ReservedPort
from pybroker.wire import pulsar_api_pb2 as pb


def test_brokers_that_have_left_are_forgotten():
    async def scenario() -> None:
        peers = Peers()
        ports = [ReservedPort() for _ in range(3)]  # no server listens there
        for port in ports:
            with pytest.raises(ServiceNotReady):
                broker = BrokerAddress(f"pulsar://127.0.0.1:{port.number}")
                await peers.request(broker, pb.CommandAskTransaction())
        assert list(peers._peers) == [f"pulsar://127.0.0.1:{ports[-1].number}"]
        await peers.close()
        for port in ports:
            port.release()

    asyncio.run(scenario())
