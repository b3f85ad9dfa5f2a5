"""One seed from beginning to end: work under faults, rest, then a full account.

1. The broker starts; clients work while faults happen.
2. Faults end. Producers finish, transactions end or time out, transformers continue until every
   visible input is acknowledged by a committed transaction.
3. Everything is read from its start, and checked against what clients saw. A fresh consumer on each
   transformer's subscription must find nothing left.

Work that does not end within a bounded virtual time is a violation, too.
"""

import asyncio
import random
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import features
from checks.history import History, Logs, Outcome, Read, Txn, was_committed
from checks.order import order_violations
from checks.promises import never_consumed, violations
from clients.plain import LiveReader, PlainConsumer, PlainProducer, Process, new_client, read_of
from clients.transacting import Transformer, TxnProducer
from sim_broker import BrokerProcess
from sim_scenario import ACTIVE_S, PARTITIONED, PARTITIONS, Scenario
from sim_world import ClientsWorld

from pybroker.base import errors
from pybroker.client import aio
from pybroker.client.errors import PulsarException, Timeout, TransactionOutcomeUnknown
from pybroker.simulation.faults import Fault
from pybroker.simulation.world import OutOfSteps
from pybroker.transaction.coordinator import outcome_window

OUTCOMES_PER_CHUNK = 4  # so that few transactions suffice to make outcomes expire
WATCH_S = 0.05
WATCH_UNTIL_S = 30.0
REST_S = 300.0  # longer than any timeout of a transaction or a retry


@dataclass(frozen=True, slots=True)
class Report:
    seed: int
    violations: list[str]
    notes: list[str]
    steps: int
    virtual_s: float
    messages: int
    txns: int
    digest: tuple[Any, ...]  # equal for two runs of one seed, or the run is not deterministic
    features: tuple[str, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)


class Stuck(Exception):
    """Some work did not end; the message says which."""


class Simulation:
    def __init__(self, seed: int, enabled: tuple[str, ...] | None = None) -> None:
        """`enabled`: features that replace those drawn by the seed."""
        self.seed = seed
        self.world = ClientsWorld(seed)
        self.rng = self.world.stream("simulation")
        swarm = self.world.stream("swarm")
        self.enabled = self.draw_features(swarm) if enabled is None else enabled
        self.scenario = self.draw_scenario(self.world.stream("scenario"))
        for name in self.enabled:
            self.scenario = self.feature(name).prepare(self.scenario, swarm)
        if self.scenario.retention != -1:
            self.scenario = replace(self.scenario, guards=(*self.scenario.guards, *self._guards()))
        self.history = History()
        self.logs: Logs = {}  # what the topics hold in the end
        self.broker = self.create_broker()
        self.outputs = [f"out-{kind}" for kind in self.scenario.transformers]
        self.producers: list[Process] = []
        self.transformers: list[Transformer] = []
        self.consumers: list[PlainConsumer] = []
        self.readers: list[LiveReader] = []
        self.others: list[Process] = []  # of features: they work until they are stopped
        self.features = [self.feature(name)(self) for name in self.enabled]
        self.has_begun = False  # what the features need at first is there

    # What the cluster's simulation overrides.

    def draw_features(self, rng: random.Random) -> tuple[str, ...]:
        return features.draw(rng, self.world.stream("features beside"))

    def feature(self, name: str) -> Any:
        return features.ALL[name]

    def draw_scenario(self, rng: random.Random) -> Scenario:
        return Scenario.draw(rng)

    def create_broker(self) -> Any:
        return BrokerProcess(self.world, self.history, self.scenario)

    def _guards(self) -> list[tuple[str, str]]:
        """Subscriptions that keep what the account reads."""
        outputs = [f"out-{kind}" for kind in (*self.scenario.transformers, "x-s", "s")]
        topics = dict.fromkeys((*self.scenario.topics, *outputs, "copies"))
        return [(topic, "guard") for topic in self.partitions_of(topics)]

    def run(self) -> Report:
        found: list[str] = []
        try:
            with patch.object(outcome_window, "CHUNK_IDS", OUTCOMES_PER_CHUNK):
                self._work()
                self._rest()
                found = self._account()
        except (Stuck, OutOfSteps) as error:
            found = [*self.history.failures, f"STUCK: {error}"]
        except (PulsarException, errors.PulsarError) as error:
            found = [f"REFUSED THE AUDITOR: {error!r}"]
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            found = [f"RAISED: {error!r} in {where.name} ({where.filename}:{where.lineno})"]
        found += [f"UNHANDLED: {failure}" for failure in self.world.failures]
        for feature in self.features:
            feature.end()
        self.world.close()
        return self._report(found)

    def _report(self, found: list[str]) -> Report:
        history, world = self.history, self.world
        digest = (world.steps, world.now, len(history.notes), world.stream("end").random())
        messages = sum(len(receiver.reads) for receiver in history.receivers)
        return Report(
            self.seed, found, history.notes, world.steps, world.now, messages,
            len(history.txns), digest, self.enabled, dict(sorted(history.counts.items())),
        )  # fmt: skip

    # --- 1. work

    def _work(self) -> None:
        self.broker.start()
        self.wait(lambda: self.broker.serving, "the broker's first start")
        self._create_processes()
        for feature in self.features:
            feature.begin()
        self.has_begun = True
        for process in self._processes():
            self.world.after(self.rng.random() * 0.5, process.start)
        for fault in self.scenario.faults:
            self.world.after(fault.at_s, self.happen, fault)
        self.world.after(WATCH_S, self._watch)
        self.world.sleep(ACTIVE_S)

    def _create_processes(self) -> None:
        scenario, common = self.scenario, (self.world, self.history)
        for number in range(scenario.plain_producers):
            topic = self.rng.choice(scenario.topics)
            self.producers.append(
                PlainProducer(
                    *common, f"plain-{number}", topic=topic, count=scenario.plain_messages,
                    dedup=scenario.deduplication and topic != PARTITIONED,
                    batching=scenario.batching,
                )
            )  # fmt: skip
        for number in range(scenario.txn_producers):
            self.producers.append(
                TxnProducer(
                    *common, f"txn-{number}", topics=list(scenario.topics), count=scenario.txns,
                    batching=scenario.batching,
                )
            )  # fmt: skip
        for kind, output in zip(scenario.transformers, self.outputs, strict=True):
            self._create_transformers(kind, output)
        for kind in scenario.plain_consumers:
            self._create_consumers(kind)
        for topic in self.partitions_of(scenario.topics):
            self.readers.append(LiveReader(*common, f"reader-{topic}", topic=topic))

    def _create_consumers(self, kind: str) -> None:
        topic = self.rng.choice(self.scenario.topics)
        for number in range(1 if kind == "Exclusive" else self.scenario.members):
            self.consumers.append(
                PlainConsumer(
                    self.world, self.history, f"consumer-{kind}-{number}", topic=topic,
                    subscription=f"plain-{kind}", kind=kind,
                )
            )  # fmt: skip

    def _create_transformers(self, kind: str, output: str) -> None:
        # A transformer that acknowledges cumulatively is alone on its subscription: see
        # Transformer.
        cumulative = kind == "Exclusive" and self.rng.random() < 0.6
        topic = self.rng.choice(self.scenario.topics)
        for number in range(1 if kind == "Exclusive" else self.scenario.members):
            self.transformers.append(
                Transformer(
                    self.world, self.history, f"transformer-{kind}-{number}", topic=topic,
                    subscription=f"transform-{kind}", kind=kind, output=output,
                    cumulative=cumulative,
                )
            )  # fmt: skip

    def _processes(self) -> list[Process]:
        return [
            *self.producers,
            *self.transformers,
            *self.consumers,
            *self.readers,
            *self.others,
        ]

    def partitions_of(self, topics: Any) -> list[str]:
        """Full names; for a partitioned topic, those of its partitions."""
        names = []
        for topic in topics:
            full = f"persistent://public/default/{topic}"
            if topic == PARTITIONED:
                names += [f"{full}-partition-{index}" for index in range(PARTITIONS)]
            else:
                names.append(full)
        return names

    def happen(self, fault: Fault) -> None:
        connections = self.world.network.connections
        self.history.counts[fault.kind] += 1
        if fault.kind == "crash":
            self.broker.crash(fault)
        elif fault.kind == "stop":
            self.broker.stop_orderly(fault.down_s)
        elif fault.kind == "disk full":
            self.broker.fill_disk(fault)
        elif fault.kind == "sync fails":
            self.broker.fail_sync(fault)
        elif fault.kind == "client crash":
            self.rng.choice(self._processes()).crash(fault.down_s)
        elif connections:
            connection = self.rng.choice(connections)
            self.history.notes.append(f"{self.world.now:9.4f} {fault.kind} {connection}")
            if fault.kind == "reset":
                connection.break_off(ConnectionResetError("reset by the simulation"))
            else:
                connection.go_silent()

    def _watch(self) -> None:
        """Checks repeatedly that no transaction holds readers back after clients were told of its
        end.
        """
        if self.world.now > WATCH_UNTIL_S:
            return
        for topic, txn_id in self.broker.open_in_topics():
            ended = (txn for txn in self.history.txns if txn.txn_id == txn_id and txn.ended)
            txn = next(ended, None)
            if txn is not None and txn.surely_aborted and self.broker.waits_aside(topic, txn_id):
                continue
            if txn is not None:
                self.history.failures.append(
                    f"STILL OPEN at {self.world.now:.3f} s: {txn.name} in {topic}, after its end"
                )
                return
        self.world.after(WATCH_S, self._watch)

    # --- 2. rest

    def _rest(self) -> None:
        self.broker.heal()
        for feature in self.features:
            feature.heal()
        self.wait(lambda: self.broker.serving, "the broker's restart")
        for process in self.producers:
            self.wait(lambda process=process: process.finished, process.name)
        self.wait(lambda: not self.broker.open_transactions(), "every transaction's end")
        self.on_a_fresh_node(self._settle_orphans())
        inputs = self.read_all(self.partitions_of(self.scenario.topics))
        for transformer in self.transformers:
            self.wait(
                lambda transformer=transformer: not self._unprocessed(transformer, inputs),
                f"{transformer.name}, which has not processed everything",
            )
        for consumer in self.consumers:
            self.wait(
                lambda consumer=consumer: not self._undelivered(consumer, inputs),
                f"{consumer.name}, which was not handed everything",
            )
        for feature in self.features:
            feature.rest()
        for process in self._processes():
            process.stopping = True
        for process in self._processes():
            self.wait(lambda process=process: process.finished, f"{process.name}'s end")
        self.wait(lambda: not self.broker.open_transactions(), "the last transactions' end")
        self._restart_once_more()

    def _restart_once_more(self) -> None:
        """Durable state must depend neither on memory nor on long-kept outcomes."""
        if self.scenario.last_rest_s:
            self.world.sleep(self.scenario.last_rest_s)
            self.on_a_fresh_node(self._push_outcomes_out())
        fault = self.scenario.last_restart
        if fault is not None:
            self.broker.restart(fault)
            self.wait(lambda: self.broker.serving, "the broker's last start")

    def wait(self, until: Callable[[], object], for_what: str) -> None:
        """Checks twice per virtual second, because some conditions take long to evaluate."""
        give_up_s = self.world.now + REST_S
        while not until():
            if self.world.now >= give_up_s:
                raise Stuck(f"waited {REST_S:.0f} s for {for_what}")
            if self.world.failures:
                raise Stuck(f"gave up waiting for {for_what}")
            self.world.sleep(0.5)

    def _inputs_of(self, process: Any, logs: Logs) -> list[Read]:
        return [read for topic in self.partitions_of([process.topic]) for read in logs[topic]]

    def _unprocessed(self, transformer: Transformer, inputs: Logs) -> list[Read]:
        """Inputs that no committed transaction has acknowledged yet."""
        done = self._acknowledged(transformer, lambda txn: txn.committed)
        return [read for read in self._inputs_of(transformer, inputs) if read not in done]

    def _acknowledged(
        self, transformer: Transformer, counts: Callable[[Txn], bool]
    ) -> dict[Read, None]:
        return {
            read: None
            for txn in self.history.txns
            if counts(txn)
            for subscription, read in txn.acknowledged
            if subscription == transformer.subscription
        }

    def _undelivered(self, consumer: PlainConsumer, inputs: Logs) -> list[str]:
        topics = self.partitions_of([consumer.topic])
        return never_consumed(self.history, consumer.subscription, [inputs[t] for t in topics])

    # --- 3. account

    def _account(self) -> list[str]:
        of_features = [topic for feature in self.features for topic in feature.topics]
        topics = dict.fromkeys([*self.scenario.topics, *self.outputs, *of_features])
        logs = self.logs = self.read_all(self.partitions_of(topics))
        visible = {read.value for log in logs.values() for read in log}
        found = violations(self.history, logs)
        for transformer in {t.subscription: t for t in self.transformers}.values():
            found += self._not_exactly_once(transformer, logs, visible)
        for worker in [*self.transformers, *self.consumers]:
            found += order_violations(
                self.history, worker.subscription, worker.kind, not self.scenario.batching
            )
        for feature in self.features:
            found += feature.account(logs)
        return found + self.broker.unsettled()

    def _not_exactly_once(
        self, transformer: Transformer, logs: Logs, visible: set[str]
    ) -> list[str]:
        committed = self._acknowledged(transformer, lambda txn: was_committed(txn, visible))
        inputs = self._inputs_of(transformer, logs)
        left = self.left_on_subscription(transformer)
        name = transformer.subscription
        return [
            *(f"UNPROCESSED: {read} by {name}" for read in inputs if read not in committed),
            *(f"REDELIVERED AFTER COMMIT: {read} to {name}" for read in left if read in committed),
        ]

    def read_all(self, topics: list[str]) -> Logs:
        return self.on_a_fresh_node(self._read_topics(topics))

    def on_a_fresh_node(self, work: Any) -> Any:
        node = self.world.node(f"auditor.{len(self.world.nodes)}")
        try:
            return self.world.call(node, work, within_s=REST_S)
        except TimeoutError as error:
            raise Stuck(str(error)) from error

    async def _read_topics(self, topics: list[str]) -> Logs:
        client = self.auditor()
        logs: Logs = {}
        for topic in topics:
            while topic not in logs:
                try:
                    logs[topic] = await self._read_topic(client, topic)
                # Its broker may be cut off from bookies for a while, or its disk may be slow.
                except (errors.ServiceNotReady, Timeout):
                    await asyncio.sleep(1)
        await client.close()
        return logs

    async def _read_topic(self, client: Any, topic: str) -> list[Read]:
        reader, log = await client.create_reader(topic, aio.MessageId.earliest), list[Read]()
        while await reader.has_message_available():
            log.append(read_of(await reader.read_next(timeout_millis=60_000)))
        await reader.close()
        return log

    async def _settle_orphans(self) -> None:
        """Asks how transactions ended whose owner died before it knew.

        A request for the opposite end is refused if the transaction was committed: outcomes are
        kept.
        """
        client = self.auditor()
        for txn in self.history.txns:
            is_known = txn.txn_id is not None
            if txn.commit is Outcome.UNKNOWN and txn.owner.dead and is_known:
                other = client.attach_transaction(txn.txn_id)
                try:
                    await _patiently(other.abort)
                    txn.abort = Outcome.DONE
                except errors.InvalidTxnStatus:
                    txn.commit, txn.inferred = Outcome.DONE, True
        await client.close()

    async def _push_outcomes_out(self) -> None:
        """Outcomes expire in chunks, when later transactions end."""
        client = self.auditor()
        for _ in range(3 * self.scenario.coordinators):
            txn = await _patiently(client.new_transaction)
            await _patiently(txn.commit)
        await client.close()

    def left_on_subscription(self, worker: Any) -> list[Read]:
        """What a fresh consumer receives after `worker` has left."""
        return self.on_a_fresh_node(self._read_what_is_left(worker))

    async def _read_what_is_left(self, worker: Any) -> list[Read]:
        client = self.auditor()
        consumer = await self.take_over(client, worker)
        left = []
        while True:
            try:
                left.append(read_of(await consumer.receive(timeout_millis=3000)))
            except Timeout:
                await client.close()
                return left

    async def take_over(self, client: Any, worker: Any) -> Any:
        """Retries, because the broker may not have noticed that the last consumer's connection is
        dead.
        """
        kind = getattr(aio.ConsumerType, worker.kind)
        while True:
            try:
                return await client.subscribe(worker.topic, worker.subscription, consumer_type=kind)
            except errors.ConsumerBusy:
                await asyncio.sleep(1.0)

    def auditor(self) -> Any:
        return new_client(self.world, self.rng)


async def _patiently(ask: Callable[[], Awaitable[Any]]) -> Any:
    """Retries, because a coordinator may still be recovering from the last fault."""
    while True:
        try:
            return await ask()
        except (errors.TransactionCoordinatorNotFound, TransactionOutcomeUnknown):
            await asyncio.sleep(1.0)
