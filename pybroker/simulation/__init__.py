"""Runs your asyncio code, the broker, network, disks and clocks in one process, from a seed.

    from pybroker.simulation import simulate

    def scenario(sim):
        sim.input("orders", 12)
        sim.process("copier", copier, sim.service_url)
        sim.output("invoices")

    def test_the_copier_is_exactly_once():
        simulate(scenario, seeds=200)

On the command line: `pybroker simulate MODULE:scenario --seeds 1000`. The layers below are `World`
(time), `Node` (the event loop of a process), `SimulatedDisk` and `SimulatedBroker`.
"""

from pybroker.simulation.broker import SimulatedBroker
from pybroker.simulation.declaring import KINDS, Record, ScenarioError, Simulation
from pybroker.simulation.disk import SimulatedDisk
from pybroker.simulation.events import Weather
from pybroker.simulation.faults import Fault
from pybroker.simulation.judging import Violation
from pybroker.simulation.node import Node, NotSimulated
from pybroker.simulation.run import Outcome, run_seed
from pybroker.simulation.simulating import BrokenPromise, NothingTested, simulate
from pybroker.simulation.world import SimulatedClock, World

__all__ = [
    "KINDS",
    "BrokenPromise",
    "Fault",
    "Node",
    "NotSimulated",
    "NothingTested",
    "Outcome",
    "Record",
    "ScenarioError",
    "SimulatedBroker",
    "SimulatedClock",
    "SimulatedDisk",
    "Simulation",
    "Violation",
    "Weather",
    "World",
    "run_seed",
    "simulate",
]
