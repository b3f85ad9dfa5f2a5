"""Spark's side of streaming queries, and the lives of their drivers, from one seed.

The model has Spark's records: the offset log (written before a batch), the commit log (after it),
and a version of the state for each batch (as its driver evaluated it, recorded with the commit). It
asks for initial offsets again after a restart, as Spark does. Drivers die anywhere, lose
connections, and pause while others run on the same checkpoint, on the same control topic, or
without the checkpoint. The source's planner, the sink, its chain and its decisions are the real
ones; the broker is that of spark_fakes, which trims whenever it can.
"""

import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from spark_fakes import FakeBroker, FakeClient, Fault

from pybroker.base.errors import PulsarError
from pybroker.base.names import TxnId
from pybroker.client.errors import ConnectError, TransactionOutcomeUnknown
from pybroker.spark.checkpoint import Checkpoint, LeftOpen
from pybroker.spark.columns.shape import Shape, default_schema
from pybroker.spark.compat import ReadMaxRows
from pybroker.spark.decision import BatchRefused
from pybroker.spark.marker import Marker
from pybroker.spark.options import Mode, chosen
from pybroker.spark.reading.idle import Idleness
from pybroker.spark.reading.stream import PulsarStreamReader
from pybroker.spark.replay import InputLost
from pybroker.spark.session import Session
from pybroker.spark.transactional import ExactlyOnce, Options, Step
from pybroker.spark.work import Work

_COUNTED = 40


class Death(BaseException):
    """The death of a driver: nothing of it continues, not even its error handling."""


class Wrong(AssertionError):
    """The output is wrong."""


# --- Spark's records ----------------------------------------------------------------------------


class ModelCheckpoint(Checkpoint):
    """The files that survive drivers."""

    def __init__(self, query_id: str) -> None:
        self._location = "/checkpoint"
        self.query_id = query_id
        self.offsets: dict[int, list[str]] = {}
        self.commits: set[int] = set()
        self.states: dict[int, frozenset[bytes]] = {-1: frozenset()}
        self._left_open: LeftOpen | None = None

    def open_transaction(self) -> LeftOpen | None:
        return self._left_open

    def record_transaction(self, left_open: LeftOpen) -> None:
        self._left_open = left_open

    def _read(self, name: str) -> str | None:
        lines = self.offsets.get(int(name.removeprefix("offsets/")))
        return None if lines is None else "\n".join(["v1", "{}", *lines])


class PulsarSource:
    """The real planner with its own session; tasks read the planned spans."""

    def __init__(self, broker: FakeBroker, topic: str, subscription: str) -> None:
        self._broker = broker
        options = {"service_url": "pulsar://fake", "topic": topic, "subscription": subscription}
        self._reader = PulsarStreamReader(
            chosen(options, Mode.READ_STREAM), Shape.of(default_schema())
        )
        self._reader._session = Session(FakeClient(broker))  # type: ignore[arg-type]
        self._reader._idleness = Idleness(pause=lambda _: None)

    def initial(self) -> str:
        return json.dumps(self._reader.initialOffset())

    def latest(self, start: str, limit: int) -> str:
        return json.dumps(self._reader.latestOffset(json.loads(start), ReadMaxRows(limit)))

    def rows(self, start: str, end: str) -> Iterator[bytes]:
        for task in self._reader.partitions(json.loads(start), json.loads(end)):
            topic = self._broker.topic(task.works[0].topic)
            if task.works[0].span.to.entry_id < topic.first:
                raise InputLost("the end of a span was trimmed")
            for index, entry in topic.readable(task.works[0].span.after.entry_id):
                if index <= task.works[0].span.to.entry_id:
                    yield entry.data


class CountingSource:
    """A source other than Pulsar: numbers that are never deleted."""

    def initial(self) -> str:
        return "0"

    def latest(self, start: str, limit: int) -> str:
        return str(min(int(start) + limit, _COUNTED))

    def rows(self, start: str, end: str) -> Iterator[bytes]:
        yield from (b"counted %d" % number for number in range(int(start), int(end)))


Source = PulsarSource | CountingSource


@dataclass
class Batch:
    """The argument of foreachBatch; evaluated when it is written."""

    plan: list[tuple[Source, str, str]]
    is_stateful: bool
    before: frozenset[bytes]
    state: frozenset[bytes] | None = None

    def values(self) -> list[bytes]:
        rows = [row for source, start, end in self.plan for row in source.rows(start, end)]
        if not self.is_stateful:
            return rows
        self.state = self.before | frozenset(rows)
        return sorted(set(rows) - self.before)

    @property
    def write(self) -> "Batch":
        return self

    def format(self, name: str) -> "Batch":
        return self

    def mode(self, name: str) -> "Batch":
        return self

    def save(self) -> None:
        self.values()


# --- queries and drivers ------------------------------------------------------------------------


@dataclass(frozen=True)
class Query:
    name: str
    topics: tuple[str, ...]
    counts: bool
    is_stateful: bool
    control_topic: str

    @property
    def output(self) -> str:
        return f"persistent://public/default/{self.name}-output"

    @property
    def may_lose_its_checkpoint(self) -> bool:
        """Whether the query's cursors suffice to continue."""
        return not self.counts and not self.is_stateful

    def sources(self, broker: FakeBroker) -> list[Source]:
        pulsar: list[Source] = [PulsarSource(broker, topic, self.name) for topic in self.topics]
        return [*pulsar, CountingSource()] if self.counts else pulsar


class Sink(ExactlyOnce):
    def _publish(self, session: Session, outputs: Any, txn: Any, work: Work) -> list[TxnId]:
        for topic, values in outputs.items():
            for value in values:
                session.producer(topic).send(value, txn=txn)
        return []


class Driver:
    """A driver process: its memory, and the sink."""

    def __init__(self, world: "World", query: Query, checkpoint: ModelCheckpoint) -> None:
        self._world = world
        self._query = query
        self._checkpoint = checkpoint
        self._sources = query.sources(world.broker)
        newest = max(checkpoint.offsets, default=-1)
        replays = newest >= 0 and newest not in checkpoint.commits
        self._batch_id = newest if replays else newest + 1
        self._replays = replays
        self._now_s = 0.0
        options = Options(
            "pulsar://fake",
            "/checkpoint",
            query.control_topic,
            patience_s=2.0,
            on_step=lambda step, work: world.reached(step, work),
            connect=lambda url: FakeClient(world.broker),  # type: ignore[arg-type, return-value]
            pause=self._pause,
            clock=lambda: self._now_s,
        )
        self._sink = Sink(lambda batch, batch_id: {query.output: batch.values()}, options)  # type: ignore[attr-defined]

    def _pause(self, seconds: float) -> None:
        self._now_s += seconds

    def run_batch(self) -> bool:
        """Run a batch; False if there was nothing to do. Raises Death and the errors of a query."""
        before = self._checkpoint.offsets.get(self._batch_id - 1)
        if not self._replays and not self._construct(before):
            return False
        self._replays = False
        plan = list(self._plan(before, self._checkpoint.offsets[self._batch_id]))
        state = self._checkpoint.states[self._batch_id - 1]
        batch = Batch(plan, self._query.is_stateful, state)
        work = self._checkpoint.work(self._checkpoint.query_id, self._batch_id)
        self._sink.process(batch, work, self._checkpoint)  # type: ignore[arg-type]
        self._world.may_die()
        if self._batch_id in self._checkpoint.commits:
            raise Death("concurrent update of the commit log")
        if self._query.is_stateful and batch.state is None:
            raise Wrong(f"{self._query} has no state of batch {self._batch_id}")
        self._checkpoint.states[self._batch_id] = batch.state or frozenset()
        self._checkpoint.commits.add(self._batch_id)
        self._batch_id += 1
        return True

    def _construct(self, before: list[str] | None) -> bool:
        starts = before or [source.initial() for source in self._sources]
        limit = self._world.rng.randint(1, 5)
        ends = [
            source.latest(start, limit) if self._world.rng.random() < 0.8 else start
            for source, start in zip(self._sources, starts, strict=True)
        ]
        is_without_data = before is not None and self._world.rng.random() < 0.1
        if ends == starts and not is_without_data:
            return False
        if self._batch_id in self._checkpoint.offsets:
            raise Death("concurrent update of the offset log")
        self._checkpoint.offsets[self._batch_id] = ends
        self._world.may_die()
        return True

    def _plan(self, before: list[str] | None, ends: list[str]) -> Iterator[tuple[Source, str, str]]:
        for index, (source, end) in enumerate(zip(self._sources, ends, strict=True)):
            if before is None:
                yield source, source.initial(), end
            elif before[index] != end:
                yield source, before[index], end


# --- the world ----------------------------------------------------------------------------------


@dataclass
class World:
    rng: random.Random
    broker: FakeBroker = field(default_factory=FakeBroker)
    checkpoints: dict[str, ModelCheckpoint] = field(default_factory=dict)
    every_checkpoint: dict[str, list[ModelCheckpoint]] = field(default_factory=dict)
    drivers: dict[str, Driver] = field(default_factory=dict)
    queries: list[Query] = field(default_factory=list)
    # Queries that lost a checkpoint.
    robbed: set[str] = field(default_factory=set)
    # Whether subscriptions are skipped and rewound without the queries' knowledge.
    is_meddled_with: bool = False
    is_quiet: bool = False
    refusals: int = 0
    deaths: int = 0
    skips: int = 0
    _depth: int = 0
    _lost: int = 0

    def live(self, turns: int) -> None:
        for _ in range(turns):
            self._turn(self.rng.choice(self.queries))

    def finish(self) -> None:
        """Run all queries undisturbed until nothing is left to do."""
        self.is_quiet = True
        self.broker.faults.clear()
        self._time_out()
        for query in self.queries:
            self.drivers.pop(query.name, None)
            try:
                self._work_off(query)
            except BatchRefused:
                if query.name not in self.robbed:
                    raise
                # A driver survived its lost checkpoint. The refusal names this remedy.
                self._lose_checkpoint(query)
                self._work_off(query)

    def check_markers(self) -> None:
        """Batches that Spark considers done have been committed: none is skipped silently."""
        for query in self.queries:
            published = self.broker.published(query.control_topic)
            markers = [Marker.from_bytes(data) for data in published]
            for checkpoint in self.every_checkpoint[query.name]:
                mine = [each for each in markers if each.query_id == checkpoint.query_id]
                committed = [each.batch_id for each in mine if not each.is_opening]
                if not checkpoint.commits <= set(committed) or committed != sorted(set(committed)):
                    raise Wrong(f"{query}: Spark has {checkpoint.commits}, markers {committed}")

    def _work_off(self, query: Query) -> None:
        idle = 0
        while idle < 20:  # a turn may leave out a source
            idle = 0 if self._driver(query).run_batch() else idle + 1

    def _lose_checkpoint(self, query: Query) -> None:
        self.robbed.add(query.name)
        self.checkpoints.pop(query.name, None)
        self.drivers.pop(query.name, None)

    def check(self) -> None:
        for query in self.queries:
            wanted = [value for topic in query.topics for value in self.broker.published(topic)]
            wanted += [b"counted %d" % n for n in range(_COUNTED)] if query.counts else []
            expected = Counter(set(wanted) if query.is_stateful else wanted)
            found = Counter(self.broker.published(query.output))
            if found != expected:
                raise Wrong(
                    f"{query}: {found - expected} too often, {expected - found} are missing"
                )
        self.check_markers()

    def reached(self, step: Step, work: Work) -> None:
        self.skips += step is Step.SKIPPED
        self.may_die()
        if not self.is_quiet and self._depth < 2 and self.rng.random() < 0.25:
            self._depth += 1
            self._interlude()
            self._depth -= 1

    def may_die(self) -> None:
        if not self.is_quiet and self.rng.random() < 0.08:
            raise Death

    def _interlude(self) -> None:
        """The working driver pauses, and others work."""
        query = self.rng.choice(self.queries)
        held = self.drivers.pop(query.name, None)
        for _ in range(self.rng.randint(1, 4)):
            self._turn(query)
        if held is not None and self.rng.random() < 0.5:
            self.drivers[query.name] = held  # the zombie returns

    def _turn(self, query: Query) -> None:
        self._disturb(query)
        try:
            self._driver(query).run_batch()
        except (Death, PulsarError) as error:
            self.refusals += isinstance(error, BatchRefused)
            self.deaths += 1
            self.drivers.pop(query.name, None)

    def _disturb(self, query: Query) -> None:
        if self.rng.random() < 0.3:
            self.broker.trim()
        if self.rng.random() < 0.2:
            self._fault(query)
        if self.rng.random() < 0.1:
            self.drivers.pop(query.name, None)
        if self.rng.random() < 0.05:
            self._time_out()
        if self.is_meddled_with and self.rng.random() < 0.05:
            self._meddle(query)
        if self.rng.random() < 0.05 and query.may_lose_its_checkpoint:
            self._lose_checkpoint(query)

    def _meddle(self, query: Query) -> None:
        for cursor, place in self.broker.cursors.items():
            if cursor[1] == query.name:
                topic = self.broker.topic(cursor[0])
                moved = self.rng.choice([topic.last, max(place - 2, topic.first - 1)])
                self.broker.cursors[cursor] = moved

    def _fault(self, query: Query) -> None:
        topics = (query.control_topic, query.output)
        sends = [f"send {topic}" for topic in topics]
        operation = self.rng.choice(
            ["begin", "acknowledge", "commit", "commit", "abort", f"publish {topics[0]}", *sends]
        )
        error = self.rng.choice([ConnectError("lost"), TransactionOutcomeUnknown(TxnId(0, 0))])
        self.broker.faults[operation] = Fault(error, after=self.rng.random() < 0.5)

    def _time_out(self) -> None:
        for txn in self.broker.transactions.values():
            if txn.state == "open":
                txn.state = "aborted"

    def _driver(self, query: Query) -> Driver:
        if query.name not in self.checkpoints:
            self._lost += 1
            made = ModelCheckpoint(f"{query.name}-{self._lost}")
            self.checkpoints[query.name] = made
            self.every_checkpoint.setdefault(query.name, []).append(made)
        if query.name not in self.drivers:
            checkpoint = self.checkpoints[query.name]
            self.drivers[query.name] = Driver(self, query, checkpoint)
        return self.drivers[query.name]


def world(seed: int) -> World:
    rng = random.Random(seed)
    made = World(rng)
    topics = [f"persistent://public/default/in-{number}" for number in range(2)]
    for topic in topics:
        values = [b"%d" % rng.randint(0, 30) for _ in range(rng.randint(10, 40))]
        made.broker.store(topic, *values)
    controls = [f"persistent://public/default/control-{number}" for number in range(2)]
    for number in range(rng.randint(1, 3)):
        read = tuple(rng.sample(topics, rng.randint(0, 2)))
        counts = not read or rng.random() < 0.4
        is_stateful = rng.random() < 0.6
        made.queries.append(Query(f"q{number}", read, counts, is_stateful, rng.choice(controls)))
        for topic in read:  # before the first trim
            made.broker.cursors[topic, f"q{number}"] = -1
    return made


def run(seed: int, turns: int = 60) -> World:
    """Run a seed. Raises Wrong, or the error that keeps a query from finishing."""
    made = world(seed)
    made.live(turns)
    made.finish()
    made.check()
    return made


def run_meddled_with(seed: int, turns: int = 60) -> World:
    """Run a seed with moved subscriptions. Raises Wrong if a batch was skipped silently; refusals
    may stop queries.
    """
    made = world(seed)
    made.is_meddled_with = True
    made.live(turns)
    made.check_markers()
    return made
