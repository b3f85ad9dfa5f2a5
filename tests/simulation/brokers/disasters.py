"""What a cluster may have to live with for long: bookies that lost power together, machines that
nobody reaches any more, and wall clocks that are apart.
"""

import math
from typing import Any, Final

from checks.history import Outcome, Sent
from clients.transacting import FAILURES, REFUSALS, Transacting
from features.feature import Feature

from pybroker.base.names import COORDINATOR_ASSIGN

_MINUTE_MS: Final = 60_000
_DAY_MS: Final = 24 * 60 * _MINUTE_MS
_APART_MS: Final = (2_000, _MINUTE_MS, 60 * _MINUTE_MS, _DAY_MS, 30 * _DAY_MS)
_TIMEOUT_MS: Final = 60_000
_SURELY_WITHIN_S: Final = 50.0


class PowerCuts(Feature):
    """Bookies lose power together, often all of them, in some seeds with ZooKeeper and brokers.
    What was confirmed is on their disks.
    """

    name = "power cuts"

    def begin(self) -> None:
        for _ in range(self.rng.choice((1, 2, 4))):
            self.world.after(self.some_time(), self._cut)

    def _cut(self) -> None:
        machines, rng = self.broker.machines, self.rng
        ports = sorted(machines.disks)
        if rng.random() < 0.3:
            ports = rng.sample(ports, 2)
        self.note(f"bookies {ports} lose power")
        self.count("power cuts")
        silently = rng.random() < 0.5
        for port in ports:
            machines.crash_bookie(port, silently, rng.choice((0.1, 0.5, 2.0, 4.0)))
        if rng.random() < 0.4:
            machines.crash_zookeeper(rng.choice((0.1, 1.0, 4.0)))
        if rng.random() < 0.4:
            for member in self.broker.members:
                if rng.random() < 0.7:
                    member.end(rng.choice((0.1, 0.5, 2.0)), silently)


class Castaways(Feature):
    """A broker or a bookie is cut off for good, from all others or from some. The rest goes on and
    comes to its end.
    """

    name = "castaways"

    def begin(self) -> None:
        self._machine = ""
        self.world.after(self.some_time(), self._cut)

    def _cut(self) -> None:
        topology, quorums = self.broker.topology, self.broker.topology.quorums
        # The ends of ledgers must get all their copies, on another bookie or without it.
        bookies_suffice = topology.bookies > quorums.ensemble or quorums.write > quorums.ack
        if "damaged bookie" in self.simulation.enabled:
            bookies_suffice = False  # the other copy may be on the bookie that is cut off
        if bookies_suffice and self.rng.random() < 0.5:
            port = self.rng.choice(sorted(self.broker.machines.disks))
            self._machine = f"bookie {port}"
            # ZooKeeper lists a bookie that brokers alone cannot reach.
            alone, both = ("broker-",), ("zookeeper", "broker-")
            self._peers = self.rng.choice((alone, alone, both, ("zookeeper",)))
        else:
            member = self.broker.some_member()
            member.is_cast_away = True
            self._machine = member.name
            self._peers = self.rng.choice(
                (("zookeeper", "bookie ", "broker-"), ("zookeeper", "broker-"), ("zookeeper",))
            )
        self.note(f"{self._machine} is cut off from {', '.join(self._peers)} for good")
        self.count("castaways")
        add = self.world.add

        def added(node: Any) -> Any:
            self._cut_from(add(node))
            return node

        self.world.add = added
        for node in self.world.nodes:
            self._cut_from(node)

    def _cut_from(self, node: Any) -> None:
        """Cuts the connections of a process with those that it must not reach."""
        if node.dead:
            return
        if self._is_of_machine(node):
            others = [each for each in self.world.nodes if each.name.startswith(self._peers)]
        elif node.name.startswith(self._peers):
            others = [each for each in self.world.nodes if self._is_of_machine(each)]
        else:
            return
        for other in others:
            if not other.dead and other is not node:
                self.world.network.cut_off(node, other, math.inf)

    def _is_of_machine(self, node: Any) -> bool:
        return node.name.startswith((f"{self._machine} ", f"{self._machine}."))


class Timekeeper(Transacting):
    """Its transactions last for seconds, and their timeout is a minute: nobody else ends them, not
    even if their coordinator comes to another broker.
    """

    def __init__(self, *args: Any, topic: str, cluster: Any) -> None:
        super().__init__(*args)
        self.topic = topic
        self.cluster = cluster
        self.left = 4

    async def work(self, client: Any) -> None:
        producer = await client.create_producer(self.topic)
        while self.left:
            self.left -= 1
            await self._transact(client, producer)

    async def _transact(self, client: Any, producer: Any) -> None:
        began_s = self.world.now
        txn = await client.new_transaction(timeout_ms=_TIMEOUT_MS)
        record = self.history.begin(f"{self.name} {txn.txn_id}", txn.txn_id, self.node)
        await self.pause(0.5)
        if self.rng.random() < 0.5:
            self._move_coordinator(txn.txn_id.most)
        await self.pause(2.0)
        is_refused = False
        try:
            await self._send_one(producer, txn, record)
            await self.pause(2.0)
            await self.commit(txn, record)
            is_refused = record.commit is Outcome.REFUSED
        except FAILURES as error:
            self.note(f"{record.name} failed: {error!r}")
            is_refused = isinstance(error, REFUSALS)
            await self.abort(txn, record)
        took_s = self.world.now - began_s
        if is_refused and took_s < _SURELY_WITHIN_S:
            self.history.failures.append(
                f"NEEDLESS ABORT: {record.name} was not committed after {took_s:.1f} s, and its "
                f"timeout is {_TIMEOUT_MS} ms"
            )

    def _move_coordinator(self, number: int) -> None:
        name = COORDINATOR_ASSIGN.partition_at(number)
        owner = self.cluster.owner(name)
        others = [each for each in self.cluster.members if each.serving and each is not owner]
        if owner is not None and others:
            self.note(f"coordinator {number} moves")
            self.history.counts["coordinators moved"] += 1
            bundle = next(each for each in owner.owned() if each.holds(name))
            owner.release(bundle, self.rng.choice(others).broker_id)

    async def _send_one(self, producer: Any, txn: Any, record: Any) -> None:
        number = len(self.history.sent)
        sent = Sent(f"{self.name}/{number}", self.topic, self.name, number, True, record)
        await self.publish(producer, self.history.send(sent), txn)


class ClocksApart(Feature):
    """The wall clocks of brokers are seconds to a month apart. A transaction gets its time,
    whichever broker has its coordinator.
    """

    name = "clocks apart"

    def __init__(self, simulation: Any) -> None:
        super().__init__(simulation)
        for member in self.broker.members[1:]:
            member.clock_ahead_ms = self.rng.choice((-1, 1)) * self.rng.choice(_APART_MS)
            self.note(f"the clock of {member.name} is {member.clock_ahead_ms} ms ahead")

    def begin(self) -> None:
        topic = self.rng.choice(self.simulation.scenario.topics)
        self.simulation.producers += [
            Timekeeper(
                self.world, self.history, f"timekeeper-{number}", topic=topic, cluster=self.broker
            )
            for number in range(2)
        ]
