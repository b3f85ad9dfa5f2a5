"""Transactions are known to have ended only by a coordinator that is served.

While no broker serves, the judge of a cluster once believed that all transactions had ended. It
read the inputs too early, and missed those behind the open transaction (seed 180001422).
"""

from collections.abc import Iterator
from typing import Any

import pytest
from brokers.simulation import ClusterSimulation
from clients.plain import new_client
from sim_seed import Simulation
from test_cluster_simulation import quiet  # noqa: F401

from pybroker.simulation.faults import Fault

LOOK_EVERY_S = 0.05


@pytest.fixture(params=[Simulation, ClusterSimulation])
def simulation(request) -> Iterator[Any]:
    made = request.param(1, ())
    made.broker.start()
    assert made.world.run(lambda: made.broker.serving, 60)
    yield made
    made.world.close()


async def one_begun(simulation):
    client = new_client(simulation.world, simulation.rng)
    txn = await client.new_transaction(timeout_ms=600_000)
    await client.close()
    return txn.txn_id


def seems_ended_in_a_restart(simulation, kind, txn_id):
    """The moments until every broker serves again at which `txn_id` may seem to have ended: neither
    it nor its coordinator counts as open.
    """
    broker, world = simulation.broker, simulation.world
    open_or_unknown = {str(txn_id), f"of coordinator {txn_id.most}"}
    broker.restart(Fault(0.0, kind, down_s=2.0))
    assert not broker.serving
    moments = []
    while not broker.serving:
        if not open_or_unknown & set(broker.open_transactions()):
            moments.append(world.now)
        world.sleep(LOOK_EVERY_S)
    return moments


@pytest.mark.parametrize("kind", ["crash", "stop"])
def test_no_transaction_seems_to_have_ended_while_no_broker_serves_its_coordinator(
    simulation, kind
):
    txn_id = simulation.on_a_fresh_node(one_begun(simulation))
    assert seems_ended_in_a_restart(simulation, kind, txn_id) == []
    assert simulation.world.run(lambda: simulation.broker.open_transactions() == [str(txn_id)], 60)
