"""The broker that the user's processes connect to: it keeps all messages, and tells its story."""

from dataclasses import replace
from typing import Final

from pybroker.base.configuration.config import BrokerConfig
from pybroker.simulation.broker import SimulatedBroker
from pybroker.simulation.declaring import Simulation
from pybroker.simulation.faults import Fault
from pybroker.simulation.recording import Recorder
from pybroker.simulation.world import World

_LOOK_AGAIN_S: Final = 0.25
_LONGEST_DOWN_S: Final = 70.0  # longer than clients wait for an answer, unless they are told to


class ProcessBroker(SimulatedBroker):
    def __init__(self, world: World, sim: Simulation, recorder: Recorder) -> None:
        config = replace(
            BrokerConfig(
                # The account reads topics from their start.
                default_retention_time_in_minutes=-1,
                default_retention_size_in_mb=-1,
                broker_delete_inactive_topics_enabled=False,
            ),
            **sim.settings,
        )
        super().__init__(world, config)
        self.serves_kafka = config.kafka_service_port is not None
        self._recorder = recorder
        self.names: dict[tuple[float, str], str] = {}  # names of faults, by time and kind

    def crashed(self, fault: Fault) -> None:
        name = self.names.get((fault.at_s, fault.kind))
        if name is not None:
            self._recorder.strikes.add(name, self.world.now)
        self.note(f"{name or 'a fault of its disk'}: crashes")

    def start_after(self, fault: Fault) -> None:
        if fault.until_error:
            self._start_after_error(self._recorder.errors, self.world.now + _LONGEST_DOWN_S)
        else:
            super().start_after(fault)

    def _start_after_error(self, errors: int, at_most_s: float) -> None:
        if self._recorder.errors > errors or self.world.now >= at_most_s:
            self.start()
        else:
            self.world.after(_LOOK_AGAIN_S, self._start_after_error, errors, at_most_s)

    def note(self, what: str) -> None:
        self._recorder.tell(f"broker.{self.incarnation}", what, always=True)
