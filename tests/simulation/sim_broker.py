"""The broker process of a simulation; its notes to the history, and questions of the checks."""

from collections.abc import Coroutine
from typing import Any

from checks.history import History
from sim_scenario import PARTITIONED, PARTITIONS, Scenario

from managed_ledger.errors import ManagedLedgerError
from managed_ledger.position import EARLIEST, Position
from pybroker.base.errors import PulsarError
from pybroker.base.names import TopicName, TxnId
from pybroker.broker.namespaces.tenants import Conflict
from pybroker.simulation.broker import SimulatedBroker
from pybroker.simulation.world import World
from pybroker.wire.message_metadata import parse_metadata


def holding_back(topic: Any) -> list[TxnId]:
    """Transactions that hold a topic's readers back, or wait aside."""
    return [each.txn_id for each in topic.buffer.ongoing()] if topic.buffer.open_count else []


class BrokerProcess(SimulatedBroker):
    def __init__(self, world: World, history: History, scenario: Scenario) -> None:
        super().__init__(world, scenario.broker_config(), scenario.storage)
        self.history = history
        self.scenario = scenario
        self.serves_kafka = scenario.kafka

    def note(self, what: str) -> None:
        self.history.notes.append(f"{self.world.now:9.4f} broker.{self.incarnation} {what}")

    def fail(self, what: str) -> None:
        self.history.failures.append(what)

    async def prepare(self) -> None:
        name = TopicName.parse(PARTITIONED)
        if not self.broker.topics.tenants.partitions(name):
            await self.broker.topics.create_partitioned(name, PARTITIONS)
        if self.incarnation == 1:
            await self._set_guards()

    async def _set_guards(self) -> None:
        for topic, subscription in self.scenario.guards:
            loaded = await self.topics.get(topic, create=True)
            assert loaded is not None
            await loaded.subscription(subscription, EARLIEST, {}, create=True)

    def begin(self, work: Coroutine[Any, Any, Any], what: str) -> None:
        """Starts an administrator's request, without waiting for its answer."""
        assert self.node is not None
        self.node.create_task(self._tried(work, what))

    async def _tried(self, work: Coroutine[Any, Any, Any], what: str) -> None:
        try:
            await work
        except (PulsarError, ManagedLedgerError, Conflict) as error:
            self.note(f"{what}: {error!r}")

    # --- an administrator's view

    def open_in_topics(self) -> list[tuple[str, TxnId]]:
        """Open transactions that hold a topic's readers back, or wait aside."""
        if not self.serving or self.broker is None:
            return []
        return [
            (str(topic.name), txn_id)
            for topic in self.broker.topics.loaded()
            for txn_id in holding_back(topic)
        ]

    def waits_aside(self, topic: str, txn_id: TxnId) -> bool:
        """Whether an abort that a crash undid waits aside to be repeated. It blocks no reader."""
        aside = self.topics.serving(TopicName.parse(topic)).buffer._aside  # type: ignore[union-attr]
        return aside is not None and txn_id in aside.open

    def end_of(self, topic: str) -> tuple[int, int] | None:
        """The end of the log of a served topic."""
        if not self.serving or self.broker is None:
            return None
        loaded = self.topics.serving(TopicName.parse(topic))
        return None if loaded is None else loaded.ledger.last_confirmed

    async def times_in(self, topic: str) -> list[tuple[tuple[int, int], int]]:
        """The position and publish time of each stored message, including hidden ones."""
        loaded = await self.topics.get(topic)
        assert loaded is not None
        ledger, times = loaded.ledger, []
        position: Position = ledger.first_position
        while run := await ledger.read(position, ledger.last_confirmed, 100, 1 << 20):
            for offset, (entry, count) in enumerate(
                zip(run.entries, run.message_counts, strict=True)
            ):
                if count:  # otherwise it is a marker
                    at = run.ledger_id, run.first_entry_id + offset
                    times.append((at, parse_metadata(entry).publish_time))
            position = Position(run.ledger_id, run.first_entry_id + len(run.entries))
        return times

    def unsettled(self) -> list[str]:
        """Topics that still hide messages although no transaction is open."""
        assert self.broker is not None
        return [
            f"PINNED: {topic.name} is readable up to {topic.max_read_position}, "
            f"not to {topic.ledger.last_confirmed}"
            for topic in self.broker.topics.loaded()
            if topic.max_read_position != topic.ledger.last_confirmed
        ]
