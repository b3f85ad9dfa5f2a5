"""One seed of a scenario: work under faults, rest, then the judgement.

1. The broker starts, then the processes; inputs are published, faults happen.
2. Faults end. The pipeline gets time until every input is acknowledged and nothing happens.
3. The declared topics are read from their start, the scenario's checks run, and the promises of
   every pipeline are judged.
"""

import asyncio
import gc
import inspect
import random
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from pybroker.base.errors import PulsarError
from pybroker.base.names import TopicName
from pybroker.client import aio
from pybroker.simulation import plan
from pybroker.simulation.broker import KAFKA_PORT, PORT
from pybroker.simulation.declaring import (
    Logs,
    Record,
    ScenarioError,
    Simulation,
    declared,
    full_name,
)
from pybroker.simulation.events import Weather
from pybroker.simulation.faults import Fault
from pybroker.simulation.judging import Account, Violation, judge, shown
from pybroker.simulation.kafka_reading import KafkaReading
from pybroker.simulation.process_broker import ProcessBroker
from pybroker.simulation.processes import UserProcess, said
from pybroker.simulation.publishing import Publisher, Topics
from pybroker.simulation.recording import Recorder, recorded_clients
from pybroker.simulation.story import Event, hash_of
from pybroker.simulation.virtual import seeded_chance, virtual_time
from pybroker.simulation.world import OutOfSteps, World

T = TypeVar("T")
Scenario = Callable[[Simulation], object]

REST_S: Final = 240.0  # more than the timeouts of a transaction and of a keep-alive together
_QUIET_S: Final = 2.0
_LOOK_EVERY_S: Final = 0.25
_MAX_STEPS: Final = 1_000_000
_STARTING_S: Final = 1.0  # later faults wait for the first input
_READ_WITHIN_S: Final = 120.0
_READ_ATTEMPTS: Final = 5


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one seed; it can be sent to another process."""

    seed: int
    faults: tuple[Fault, ...]  # all faults that the seed drew
    chosen: tuple[int, ...]  # the faults that were allowed to happen, as indexes of `faults`
    violations: tuple[Violation, ...]
    events: tuple[Event, ...]
    digest: str
    virtual_s: float
    steps: int
    judged: bool  # an output or a check was declared
    kinds: tuple[str, ...] = ()  # of faults, that the scenario allows
    met: tuple[int, ...] = ()  # the faults that met work, as indexes of `faults`


class SeedRun:
    """One run of a seed; use it once."""

    def __init__(self, scenario: Scenario, seed: int, chosen: Sequence[int] | None = None) -> None:
        """`chosen` are indexes of the drawn faults that may happen; None: all of them."""
        self.seed = seed
        self.sim = declared(scenario, seed)
        self.world = World(seed)
        self.recorder = Recorder(self.world)
        names = [spec.name for spec in self.sim.processes]
        self.faults = plan.draw(self.world.stream("faults"), names, self.sim.kinds)
        everything = range(len(self.faults))
        self.chosen = tuple(everything if chosen is None else sorted(set(chosen)))
        if not set(self.chosen) <= set(everything):
            raise ScenarioError(f"seed {seed} draws {len(self.faults)} faults, not more")
        self._rng = self.world.stream("run")
        self.broker = ProcessBroker(self.world, self.sim, self.recorder)
        self.processes = {
            spec.name: UserProcess(self.world, spec, self.recorder) for spec in self.sim.processes
        }
        self.kafka = KafkaReading(self.broker, self.recorder.kafka_readers)
        topics = Topics(self.sim.service_url, self._parts, self._consumed, self._is_read)
        self.publishers = [
            Publisher(self.world, f"input-{number}", given, topics, self.recorder)
            for number, given in enumerate(self.sim.inputs)
        ]
        for publisher in self.publishers:
            publisher.began = self._begin
            self.broker.before_start.append(publisher.broker_starts)
        self._begun = not self.publishers
        self._waiting: list[int] = []  # faults that are to meet work
        self._work_ends_s = 0.0
        self._healed_s = 0.0
        self._violations: list[Violation] = []
        self._logs = Logs()

    def run(self) -> Outcome:
        try:
            self._work()
            if self._rest():
                self._account()
        except OutOfSteps as error:
            self._broken("ENDLESS", f"{error}: does something wait without a pause?")
        except (_Stuck, PulsarError) as error:
            self._broken("STUCK", f"the simulation could not go on: {error}")
        except Exception:
            self.world.close()
            raise
        for failure in self.world.failures:
            self._broken("UNHANDLED", f"in the broker, not in your code: {failure}")
        self.world.close()
        records = [record for log in self._logs.values() for record in log]
        digest = hash_of(self.recorder.events, *records, self.world.steps, self.world.now)
        return Outcome(
            self.seed, self.faults, self.chosen, tuple(self._violations),
            tuple(self.recorder.events), digest, self.world.now, self.world.steps,
            bool(self.sim.outputs or self.sim.checks), self.sim.kinds, self._met(),
        )  # fmt: skip

    def _broken(self, kind: str, text: str) -> None:
        self._violations.append(Violation(kind, text))

    def _met(self) -> tuple[int, ...]:
        recorder = self.recorder
        if not self.sim.inputs:  # what the processes do may be invisible
            return recorder.strikes.met(0.0, self.world.now)
        return recorder.strikes.met(recorder.first_action_s, recorder.last_action_s)

    # --- 1. work

    def _work(self) -> None:
        self.broker.start()
        if not self._run(lambda: self.broker.serving, 60.0):
            raise _Stuck("the broker does not start")
        for process in self.processes.values():
            self.world.after(0.2 * self._rng.random(), process.start)
        for publisher in self.publishers:
            publisher.start()
        for index in self.chosen:
            self.world.after(self.faults[index].at_s, self._happen_to_work, index)
        self._work_ends_s = self.world.now + plan.ACTIVE_S
        while not self._begun or self.world.now < self._work_ends_s:
            self._run(lambda: False, max(_LOOK_EVERY_S, self._work_ends_s - self.world.now))

    def _run(self, until: Callable[[], bool], within_s: float) -> bool:
        return self.world.run(until, within_s, _MAX_STEPS)

    def _begin(self) -> None:
        """The first input is published: faults that waited for work happen from now on."""
        if self._begun:
            return
        self._begun = True
        for index in self._waiting:
            self.world.after(self.faults[index].at_s, self._happen_to_work, index)
        if self._waiting:
            self._work_ends_s = self.world.now + plan.ACTIVE_S

    def _happen_to_work(self, index: int) -> None:
        fault = self.faults[index]
        if not self._begun and fault.at_s > _STARTING_S:
            self._waiting.append(index)
            return
        happen = partial(self._happen, fault, f"FAULT {index + 1}")
        if fault.step:
            lag_s = fault.lag * _command_s(self.world.weather)
            after = partial(self.world.after, lag_s, self._unless_healed, happen)
            self.processes[fault.process].at_step(fault, after)
        else:
            happen()

    def _unless_healed(self, happen: Callable[[], None]) -> None:
        if not self._healed_s:
            happen()

    def _happen(self, fault: Fault, name: str) -> None:
        process = self.processes.get(fault.process)
        broker = self.broker
        if fault.kind == "crash" and process is not None:
            process.crash(fault, name)
            return
        if fault.kind in ("broker crash", "broker stop", "disk fails"):
            broker.names[fault.at_s, fault.kind] = name
            if fault.kind == "broker crash":
                broker.crash(fault)
                return
            if fault.kind == "broker stop":
                broker.stop_orderly(fault.down_s)
            else:
                broker.fail_sync(fault)
        elif fault.kind == "disk full":
            broker.fill_disk(fault)
        elif fault.kind == "slow disk":
            broker.disk.slow_until = self.world.now + min(5 * fault.down_s, 45.0)
        elif fault.kind == "stall":
            self.world.network.stalled_until = self.world.now + min(5 * fault.down_s, 45.0)
        elif fault.kind == "clock":
            self._set_clock(process, fault)
        elif fault.kind == "pause":
            if process is None or not process.pause(plan.paused_s(fault)):
                return
        elif not self._disturb(fault):
            return
        self.recorder.strikes.add(name, self.world.now)
        self.recorder.tell("", f"{name}: {plan.described(fault)}", always=True)

    def _set_clock(self, process: UserProcess | None, fault: Fault) -> None:
        if process is None:
            self.broker.clock.offset_ms += int(1000 * fault.jump_s)
        else:
            process.set_clock(fault.jump_s)

    def _disturb(self, fault: Fault) -> bool:
        """Disturbs a connection of a process; False if the process has none."""
        node = self.processes[fault.process].node
        mine = [each for each in self.world.network.connections if each.node is node]
        if not mine:
            return False
        connection = self._rng.choice(mine)
        if fault.kind == "reset":
            connection.break_off(ConnectionResetError("reset by the simulation"))
        else:
            connection.go_silent()
        return True

    # --- 2. rest

    def _rest(self) -> bool:
        """Waits until nothing happens. False if nothing can be judged, because a process could not
        run.
        """
        self.broker.heal()
        self.broker.disk.slow_until = self.world.network.stalled_until = 0.0
        for process in self.processes.values():
            process.heal()
        self._healed_s = self.world.now
        self.recorder.tell("", "no more faults", always=True)
        calm_since = self._healed_s
        while self.world.now - self._healed_s < REST_S and self.world.now - calm_since < _QUIET_S:
            self._run(lambda: False, _LOOK_EVERY_S)
            if any(process.broken for process in self.processes.values()):
                break
            if not self._is_calm():
                calm_since = self.world.now
            calm_since = max(calm_since, self.recorder.last_action_s)
        for process in self.processes.values():
            for text in process.assertions:
                self._broken("ASSERTION", text)
            if process.broken:
                self._broken("PROCESS FAILS", process.broken)
        unpublished = [each for each in self.publishers if not each.done]
        if unpublished and any(process.broken for process in self.processes.values()):
            return False
        if unpublished:
            refused = unpublished[0].refused
            raise _Stuck(f"the inputs could not be published within {REST_S:.0f} s{refused}")
        return True

    def _is_calm(self) -> bool:
        """Whether no work is left, as far as the broker knows."""
        return (
            self.broker.serving
            and all(publisher.done for publisher in self.publishers)
            and not any(process.is_busy for process in self.processes.values())
            and all(self._consumed(given.topic) for given in self.sim.inputs)
            and all(self._is_connected(process) for process in self.processes.values())
            and not self._backlog()
            and not self.kafka.is_behind([given.topic for given in self.sim.inputs], self.world.now)
            and not self.broker.open_transactions()
        )

    def _is_connected(self, process: UserProcess) -> bool:
        """Whether the process is connected to the live broker, and no connection is silent: it may
        wait for an answer there. True too if it has returned, or never tried to connect.
        """
        if process.finished:
            return True
        mine = [each for each in self.world.network.connections if each.node is process.node]
        there = self.broker.node
        half_open = [each for each in self.world.network.half_open if each.node is process.node]
        if half_open or any(each.is_silent for each in mine):
            return False
        live = [each for each in mine if each.peer.node is there]
        lives = (f"{process.spec.name}.{life}" for life in range(1, process.incarnation + 1))
        callers = self.world.network.callers
        uses_it = any((name, port) in callers for name in lives for port in (PORT, KAFKA_PORT))
        return bool(live) or not uses_it

    def _backlog(self) -> int:
        return sum(
            subscription.backlog
            for topic in self.broker.topics.loaded()
            for subscription in topic.subscriptions.values()
            if subscription.durable
        )

    def _parts(self, topic: str) -> list[str]:
        """The topic's full name, or those of its partitions."""
        name = TopicName.parse(topic)
        count = self.broker.topics.tenants.partitions(name)
        return [f"{name}-partition-{index}" for index in range(count)] or [str(name)]

    def _subscriptions(self, topic: str) -> dict[str, list[Any]]:
        """Durable subscriptions by name: the name of each partition, and its subscription."""
        found: dict[str, list[Any]] = {}
        if self.broker.serving:
            for part in self._parts(topic):
                loaded = self.broker.topics.serving(TopicName.parse(part))
                for name, subscription in loaded.subscriptions.items() if loaded else ():
                    if subscription.durable:
                        found.setdefault(name, []).append((part, subscription))
        return found

    def _consumed(self, topic: str) -> bool:
        """Whether the topic has a durable subscription, or a group of Kafka's clients."""
        return bool(self._subscriptions(topic) or self.kafka.groups(topic))

    def _is_read(self, topic: str) -> bool:
        """Whether the topic has a subscription, maybe one of a reader."""
        if not self.broker.serving:
            return False
        loaded = (self.broker.topics.serving(TopicName.parse(part)) for part in self._parts(topic))
        return any(each.subscriptions for each in loaded if each)

    # --- 3. account

    def _account(self) -> None:
        inputs = {given.topic for given in self.sim.inputs}
        outputs = {rule.topic for rule in self.sim.outputs}
        topics = dict.fromkeys([*sorted(inputs), *sorted(outputs), *self.sim.topics])
        self._logs = self._on_a_fresh_node(self._read(topics))
        self._require_inputs()
        account = Account(
            {topic: self._logs[topic] for topic in sorted(inputs)},
            {topic: self._logs[topic] for topic in sorted(outputs)},
            self.sim.outputs,
            self._left(sorted(inputs)),
            # The buffer for commit order copies messages to other positions.
            tuple(self.recorder.transactions.values())
            if self.broker.config.transaction_buffer == "logOrder"
            else (),
            self.world.now - self._healed_s,
            self._spare(),
        )
        self._violations += judge(account)
        for check in self.sim.checks:
            self._check(check)

    def _spare(self) -> Counter[bytes]:
        """How many copies of each input its publisher has stored in excess."""
        spare: Counter[bytes] = Counter()
        for given in self.sim.inputs:
            if given.duplicates:
                stored = Counter(record.data for record in self._logs[given.topic])
                stored.subtract(data for _, data in given.messages)
                spare += stored  # what is positive
        for data, count in spare.items():
            text = f"{shown(data)} is in its topic {count + 1} times"
            self.recorder.tell("input", text, shown(data), always=True)
        return spare

    def _require_inputs(self) -> None:
        """Requires that all inputs are in their topics: otherwise losses would go unnoticed."""
        for given in self.sim.inputs:
            found = {record.data for record in self._logs[given.topic]}
            for _, data in given.messages:
                if data not in found:
                    raise _Stuck(
                        f"the input {shown(data)} is not in {given.topic} any more: a process "
                        "deleted the topic, or its retention ended"
                    )

    def _left(
        self, topics: Iterable[str]
    ) -> dict[tuple[str, str], frozenset[tuple[int, int, int]]]:
        left: dict[tuple[str, str], frozenset[tuple[int, int, int]]] = {}
        for topic in topics:
            left |= self.kafka.left(topic, self._logs[topic])
            for name, parts in self._subscriptions(topic).items():
                cursors = {part: subscription.cursor for part, subscription in parts}
                left[topic, name] = frozenset(
                    record.position
                    for record in self._logs[topic]
                    if (cursor := cursors.get(record.partition)) is not None
                    and not cursor.is_deleted(record.position[:2])
                )
        return left

    async def _read(self, topics: Iterable[str]) -> Logs:
        """Reads the topics. Retries, because the effects of the last fault may not be over."""
        for _ in range(_READ_ATTEMPTS):
            try:
                return await self._read_once(topics)
            except PulsarError as error:
                failure = error
                await asyncio.sleep(1.0)
        raise failure

    async def _read_once(self, topics: Iterable[str]) -> Logs:
        client = aio.Client(self.sim.service_url, operation_timeout_seconds=10)
        logs = Logs()
        for topic in topics:
            logs[topic] = []
            for part in self._parts(topic):
                reader = await client.create_reader(part, aio.MessageId.earliest)
                while await reader.has_message_available():
                    message = await reader.read_next(timeout_millis=60_000)
                    logs[topic].append(_record(topic, message))
                await reader.close()
        await client.close()
        return logs

    def _check(self, check: Callable[[Mapping[str, list[Record]]], object]) -> None:
        try:
            found = check(self._logs)
            if inspect.isawaitable(found):
                self._on_a_fresh_node(_awaited(found))
        except AssertionError as error:
            self._broken("CHECK", said(error))
        except ScenarioError:
            raise
        except (Exception, SystemExit) as error:
            self._broken("CHECK", f"failed to run: {said(error)}")

    def _on_a_fresh_node(self, work: Any) -> Any:
        node = self.world.node(f"account.{len(self.world.nodes)}")
        try:
            return self.world.call(node, work, _READ_WITHIN_S)
        except TimeoutError as error:
            raise _Stuck(str(error)) from error


def _command_s(weather: Weather) -> float:
    """The time that a command with several writes takes at most, usually."""
    disk_s = 3 * (weather.disk_sync_s + weather.job_delay_s)
    return 4 * weather.latency_s + disk_s + 20 * weather.iteration_s


class _Stuck(Exception):
    """The run cannot be judged; the message gives the reason."""


async def _awaited(work: Any) -> None:
    await work


def _record(topic: str, message: aio.Message) -> Record:
    return Record(
        topic, message.data(), message.partition_key(), message.properties(),
        message.order_key, full_name(message.topic_name()),
    )  # fmt: skip


def run_seed(scenario: Scenario, seed: int, chosen: Sequence[int] | None = None) -> Outcome:
    """Runs one seed. The outcome is the same, to the last event, while the code is the same."""
    with (
        virtual_time(),
        seeded_chance(random.Random(f"{seed}/chance")),
        recorded_clients(),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # about coroutines that died with their process
        outcome = SeedRun(scenario, seed, chosen).run()
        gc.collect(0)
    return outcome
