"""All brokers stop, `pybroker hand-over` hands the cluster over, and the brokers restart."""

from functools import partial
from typing import Any, Final

from features.feature import Feature
from sim_zookeeper import ADDRESS

from brokers.member import storage
from brokers.topology import SESSION_MS
from managed_ledger.errors import ManagedLedgerError
from managed_ledger.storage.bookkeeper import move_lock
from managed_ledger.storage.zookeeper.client import ZooKeeper
from managed_ledger.storage.zookeeper.session import SessionState
from pybroker.base.errors import PulsarError
from pybroker.base.names import SNAPSHOT_TOPIC
from pybroker.broker.deduplication.snapshot import ledgers_with_snapshots
from pybroker.broker.persistent.topic import Topic
from pybroker.cluster.transactions.formats import use_pulsars_formats
from pybroker.handing_over.hand_over import HandOver
from pybroker.handing_over.snapshot import Hidden
from pybroker.process.app import Broker
from pybroker.simulation.world import SimulatedClock

_STOPPED_S: Final = 5.0  # a broker that has not stopped by then is killed
_AGAIN_S: Final = 1.0
_WAIT_S: Final = 30.0  # longer than transactions last
_MAX_MESSAGE_SIZE: Final = 5 << 20


class Watched(HandOver):
    """Remembers which aborted transactions its snapshots name."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.named: set[Any] = set()

    async def _write(self, topic: Topic, hidden: Hidden) -> None:
        await super()._write(topic, hidden)
        self.named.update(each.txn_id for each in hidden.aborted)


class HandingOver(Feature):
    """The command may be killed; it is repeated until it succeeds. After that no transaction is
    open, and the snapshots name every aborted one.
    """

    name = "handing over"

    def begin(self) -> None:
        self._kills = self.rng.choice((0, 0, 1, 2))
        self._attempts = 0
        self._running: Any = None
        self.world.after(self.some_time(), self._stop_all)

    def _stop_all(self) -> None:
        for member in self.broker.members:
            member.is_resting = True
            if self.rng.random() < 0.7:
                member.stop(0.0)
            else:
                member.end(0.0)
        self.world.after(_STOPPED_S, self._begin)

    def _begin(self) -> None:
        for member in self.broker.members:
            member.end(0.0)
        self._attempt()

    def _attempt(self) -> None:
        self._attempts += 1
        node = self._running = self.world.node(f"hand-over.{self._attempts}")
        node.start(self._hand_over(node))
        if self._kills and self.rng.random() < 0.7:
            self._kills -= 1
            within_s = self.rng.choice((0.1, 0.5, 4.0))
            self.world.after(within_s * self.rng.random(), self._kill, node)

    def _kill(self, node: Any) -> None:
        if node is self._running:
            self.count("hand-overs killed")
            node.crash()
            self.world.after(_AGAIN_S, self._attempt)

    async def _hand_over(self, node: Any) -> None:
        clock, rng = SimulatedClock(self.world), self.world.stream(node.name)
        config, topology = self.simulation.scenario.broker_config(), self.broker.topology
        broker = Broker(config, storage(clock, rng, topology, config), clock, rng)
        work = Watched(broker, clock, self.note, _MAX_MESSAGE_SIZE)
        abort_open = self.rng.random() < 0.7
        aborted = [
            txn
            for txn in self.history.txns
            if txn.surely_aborted and txn.ended and any(_is_stored(sent) for sent in txn.sent)
        ]
        lock = ZooKeeper(ADDRESS, rng, SESSION_MS)
        lock.on_state(partial(self._lock_is, node))
        try:
            await lock.open()
            await move_lock.hold(lock)
            await self._run(broker, work, abort_open, aborted)
        except (ManagedLedgerError, PulsarError) as error:
            self.note(f"not handed over: {error!r}")
            self._running = None
            self.world.after(_AGAIN_S, self._attempt)
            return
        finally:
            await lock.close()
        self._running = None
        self.count("handed over")
        for member in self.broker.members:
            member.is_resting = False
            member.start()

    def _lock_is(self, node: Any, state: SessionState) -> None:
        """Cancels the command once brokers may have started."""
        if state is SessionState.EXPIRED:
            self._kill(node)

    async def _run(
        self, broker: Broker, work: Watched, abort_open: bool, aborted: list[Any]
    ) -> None:
        use_pulsars_formats(broker.coordinators)
        await broker.start(None)
        try:
            await work.run(_WAIT_S, abort_open)
            self._judge(broker, work, aborted)
        finally:
            await broker.stop()

    def _judge(self, broker: Broker, work: Watched, aborted: list[Any]) -> None:
        found = [
            f"LEFT: {live.txn_id} is {live.status.name} after the cluster was handed over"
            for coordinator in broker.coordinators.served()
            for live in coordinator.live()
        ]
        found += [
            f"UNNAMED: {txn.name} was aborted, and no snapshot names it"
            for txn in aborted
            if txn.txn_id not in work.named
        ]
        found += [
            f"TRIMMED: Apache's brokers trim {name} up to deduplication's cursor"
            for name in ledgers_with_snapshots(broker.metadata)
            if name.rpartition("/")[2].startswith(SNAPSHOT_TOPIC)
        ]
        self.history.failures.extend(found)


def _is_stored(sent: Any) -> bool:
    return sent.outcome is sent.outcome.DONE
