"""Workers that live and die on an Exclusive or Failover subscription, and every refusal judged.

They are programs as people write them: nobody removes what comes twice. A worker dies of its first
exception, or at any moment; the next process has the same name, another one, or none. Transactions
acknowledge singly and cumulatively, are left open, or ended by a driver when the worker is gone.
After an abort a worker repeats what it remembers, or asks for redelivery. A reconnect, an unload or
a crash of the broker delivers again what it holds.

No message may be consumed by two committed transactions, or by none. A TransactionConflict needs a
reason: `checks.conflicts`. After the last fault the workers must come to the end.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Final

from checks.history import Logs, Read
from clients.jobs import Driver, Job
from clients.living import Group, Manners, Worker
from clients.plain import PlainProducer
from sim_scenario import Scenario

from features.feature import Feature
from pybroker.base.names import TopicName
from pybroker.simulation.faults import Fault

KINDS: Final = ("Failover", "Exclusive")
TOPIC: Final = "lives"
# Where a client's arrival cannot be written, a crash forgets what it was given before its first
# transaction: docs/internals/dispatch.md, "Gaps".
FULL: Final = ("disk full", "sync fails")


class Lives(Feature):
    name = "lives"

    @classmethod
    def prepare(cls, scenario: Scenario, rng: random.Random) -> Scenario:
        batching = scenario.batching or rng.random() < 0.5
        faults = tuple(fault for fault in scenario.faults if fault.kind not in FULL)
        return replace(scenario, topics=(*scenario.topics, TOPIC), batching=batching, faults=faults)

    def begin(self) -> None:
        simulation = self.simulation
        self.groups = [self._workers()]
        if self.rng.random() < 0.4:
            self.groups.append(self._job())
        for number in range(2):
            simulation.producers.append(
                PlainProducer(
                    self.world, self.history, f"lively-{number}", topic=TOPIC,
                    count=self.rng.choice((5, 15)), dedup=False,
                    batching=simulation.scenario.batching,
                )
            )  # fmt: skip
        topics = list(self.groups[0].books)
        for _ in range(self.rng.choice((0, 0, 1, 3))):
            self.world.after(self.some_time(), self._unload, self.rng.choice(topics))
        for _ in range(self.rng.choice((0, 0, 0, 1))):
            fault = Fault(0.0, "crash", self.rng.random() < 0.5, down_s=self.rng.choice((0.0, 1.0)))
            self.world.after(self.some_time(), simulation.happen, fault)

    def _workers(self) -> Group:
        common = self.world, self.history
        topics = self.simulation.partitions_of(self._topics())
        kind, manners = self.rng.choice(KINDS), Manners.draw(self.rng)
        self.note(f"{kind} on {topics}: {manners}")
        group = Group(self.broker, self.history, "lives", topics, kind, manners)
        for name in ("worker-0", "worker-1")[: 1 if kind == "Exclusive" else 2]:
            named = _names(manners.named, name)
            self.simulation.others.append(Worker(*common, name, group=group, name_of=named))
        self.simulation.others.append(Driver(*common, "driver", group=group))
        return group

    def _job(self) -> Group:
        topics = self.simulation.partitions_of([TOPIC])
        changes = {"own_client": False, "cumulative": 1.0, "names_highest": True}
        manners = replace(Manners.draw(self.rng), **changes, has_driver=False, overlaps=False)
        self.note(f"a job: {manners}")
        group = Group(self.broker, self.history, "by id", topics, "Exclusive", manners)
        job = Job(
            self.world, self.history, "job", group=group, name_of=_names(manners.named, "job"),
            known=lambda: self._read_by_now(topics[0]),
        )  # fmt: skip
        self.simulation.others.append(job)
        return group

    def _read_by_now(self, topic: str) -> list[Read]:
        readers = (
            each for each in self.history.receivers if each.name.startswith(f"reader-{topic}.")
        )
        return max((each.reads for each in readers), key=len, default=[])

    def _topics(self) -> list[str]:
        others = [topic for topic in self.simulation.scenario.topics if topic != TOPIC]
        return self.rng.choice(([TOPIC], [TOPIC], [TOPIC, self.rng.choice(others)]))

    def _unload(self, topic: str) -> None:
        name = TopicName.parse(topic)
        if self.broker.serving and self.broker.topics.serving(name) is not None:
            self.count("unloads")
            self.note(f"unloads {topic}")
            self.broker.begin(self.broker.topics.unload(name), f"unload {name}")

    def heal(self) -> None:
        for group in self.groups:
            group.serious = True

    def rest(self) -> None:
        for group in self.groups:
            group.logs = self.simulation.read_all(list(group.books))
        for group in self.groups:
            self.simulation.wait(
                partial(self._is_done, group), f"who acknowledges {group.subscription}"
            )

    def _is_done(self, group: Group) -> bool:
        """True also if that no longer matters."""
        assert group.logs is not None
        if self.history.failures:
            return True
        consumed = self._consumed(group)
        if all(read in consumed for log in group.logs.values() for read in log):
            return True
        return not self.broker.open_transactions() and not self._backlog(group)

    def _backlog(self, group: Group) -> int:
        backlog = 0
        for topic in group.books:
            found = self.broker.topics.serving(TopicName.parse(topic))
            subscription = None if found is None else found.subscriptions.get(group.subscription)
            backlog += 1 if subscription is None else subscription.backlog
        return backlog

    def _consumed(self, group: Group) -> set[Read]:
        return {
            read
            for txn in self.history.txns
            if txn.committed
            for subscription, read in txn.acknowledged
            if subscription == group.subscription
        }

    def account(self, logs: Logs) -> list[str]:
        return [each for group in self.groups for each in self._of(group, logs)]

    def _of(self, group: Group, logs: Logs) -> Iterator[str]:
        consumed = self._consumed(group)
        for topic in group.books:
            who = SimpleNamespace(topic=topic, subscription=group.subscription, kind=group.kind)
            left = set(self.simulation.left_on_subscription(who))
            for read in logs[topic]:
                if read in left:
                    yield f"ACKNOWLEDGEMENT LOST: {read} is delivered again"
                elif read not in consumed:
                    yield f"CONSUMED BY NONE: {read} is acknowledged"


def _names(named: str, worker: str) -> Callable[[random.Random], str]:
    if named == "anew":
        return lambda rng: f"{worker}-{rng.randrange(10**9)}"
    name = {"never": "", "equally": "worker", "each": worker}[named]
    return lambda _: name


FEATURES: Final = (Lives,)
