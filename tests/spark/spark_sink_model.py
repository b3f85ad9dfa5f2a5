"""The sink as Spark uses it, from a seed: attempts, zombies, dead drivers, concurrent drivers.

A batch's rows are distributed to tasks. An attempt of a task may be killed half way with its
transaction open, may have a rival that does the same work, or may continue as a zombie long after
the batch: then everything that follows happens between two of its entries. The attempts, the sink's
end of a batch and the chain are the real ones; the broker is that of spark_fakes.
"""

import contextlib
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from spark_fakes import FakeBroker, FakeClient, Fault

from pybroker.base.errors import PulsarError
from pybroker.base.names import TxnId
from pybroker.client import EncodedBatch
from pybroker.client.errors import ConnectError, TransactionOutcomeUnknown
from pybroker.spark.chain import Chain
from pybroker.spark.marker import Marker
from pybroker.spark.work import Work
from pybroker.spark.writing.attempt import Job, Written, write
from pybroker.spark.writing.batch_end import BatchEnd, Step
from pybroker.spark.writing.entries import Destined
from pybroker.spark.writing.notes import NoteBook

OUTPUT = "persistent://public/default/output"
CONTROL = "persistent://public/default/control"
QUERY = "query"
ROWS = 60
_ATTEMPTS = 4  # spark.task.maxFailures


class Death(BaseException):
    """The death of a driver or of a task's process: nothing of it continues."""


class JobFailed(Exception):
    """A task failed too often."""


class Wrong(AssertionError):
    """The output is wrong."""


@dataclass
class World:
    rng: random.Random
    broker: FakeBroker = field(default_factory=FakeBroker)
    # Spark's checkpoint: the end of each batch, and the completed batches.
    offsets: dict[int, int] = field(default_factory=dict)
    commits: set[int] = field(default_factory=set)
    is_quiet: bool = False
    deaths: int = 0
    skips: int = 0
    zombies: int = 0
    _depth: int = 0

    def rows(self, batch_id: int) -> range:
        return range(self.offsets.get(batch_id - 1, 0), self.offsets[batch_id])

    # --- events -----------------------------------------------------------------------------

    def live(self, turns: int) -> None:
        for _ in range(turns):
            self.turn()

    def finish(self) -> None:
        self.is_quiet = True
        self.broker.faults.clear()
        for txn in self.broker.transactions.values():
            if txn.state == "open":
                txn.state = "aborted"
        while self.offsets.get(max(self.commits, default=-1), 0) < ROWS:
            Driver(self).run_batch()

    def turn(self) -> None:
        if self.rng.random() < 0.3:
            self._fault()
        try:
            Driver(self).run_batch()
        except (Death, JobFailed, PulsarError):
            self.deaths += 1
        self.check_whole()

    def interlude(self) -> None:
        """The working driver pauses, and another driver works on the checkpoint."""
        if not self.is_quiet and self._depth < 2 and self.rng.random() < 0.15:
            self._depth += 1
            self.turn()
            self._depth -= 1

    def may_die(self) -> None:
        if not self.is_quiet and self.rng.random() < 0.06:
            raise Death

    def _fault(self) -> None:
        operations = ["begin", "acknowledge", "commit", "abort"]
        operations += [f"send {OUTPUT}", f"send {CONTROL}", f"publish {CONTROL}"]
        error = self.rng.choice([ConnectError("lost"), TransactionOutcomeUnknown(TxnId(0, 0))])
        after = self.rng.random() < 0.5
        self.broker.faults[self.rng.choice(operations)] = Fault(error, after=after)

    # --- checks -----------------------------------------------------------------------------

    def check_whole(self) -> None:
        """The visible rows are those of the batches with visible markers, each once."""
        markers = [Marker.from_bytes(data) for data in self._markers()]
        committed = [marker.batch_id for marker in markers if not marker.is_opening]
        if committed != sorted(set(committed)):
            raise Wrong(f"batches {committed}")
        wanted = Counter(row for batch_id in committed for row in self.rows(batch_id))
        # Entries hidden only by another open transaction are committed, too.
        found = Counter(
            int(entry.data) for entry in self.broker.topic(OUTPUT).entries if entry.is_visible
        )
        if found != wanted:
            raise Wrong(f"{found - wanted} too much, {wanted - found} missing of {committed}")

    def _markers(self) -> Iterator[bytes]:
        for data in self.broker.published(CONTROL):
            with contextlib.suppress(ValueError):
                Marker.from_bytes(data)
                yield data

    def check(self) -> None:
        self.check_whole()
        found = Counter(map(int, self.broker.published(OUTPUT)))
        if found != Counter(range(ROWS)):
            raise Wrong(f"{found}")


class Driver:
    """One life of a driver process: Spark's and the sink's part of a batch."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = world.rng
        self._now_s = 0.0

    def run_batch(self) -> None:
        batch_id = self._batch_id()
        job = self._job(batch_id)
        rows = list(self._world.rows(batch_id))
        count = self._rng.randint(1, 3)
        tasks = [rows[number::count] for number in range(count)]

        def work() -> None:
            written = [self._task(job, part, values) for part, values in enumerate(tasks)]
            self._world.may_die()
            self._end(job, batch_id, written)

        if not self._world.is_quiet and self._rng.random() < 0.2:
            self._with_zombie(job, tasks[0], work)
        else:
            work()
        self._world.may_die()
        if batch_id in self._world.commits:
            raise Death  # another driver has already committed the batch
        self._world.commits.add(batch_id)

    def _batch_id(self) -> int:
        world = self._world
        newest = max(world.offsets, default=-1)
        if newest >= 0 and newest not in world.commits:
            return newest
        before = world.offsets.get(newest, 0)
        world.offsets[newest + 1] = min(ROWS, before + self._rng.randint(0, 6))
        return newest + 1

    def _job(self, batch_id: int) -> Job:
        client = FakeClient(self._world.broker)
        job = Job(
            lambda: FakeClient(self._world.broker),  # type: ignore[arg-type, return-value]
            client.new_transaction(1000).txn_id,
            NoteBook(CONTROL, QUERY, batch_id),
            1000,
            self._rng.choice([None, 0, 0, 3]),
        )
        self._world.may_die()
        return job

    def _end(self, job: Job, batch_id: int, written: Sequence[Written]) -> None:
        chain, work = Chain(CONTROL, QUERY), Work(QUERY, batch_id, {})
        end = BatchEnd(job, chain, work, written, self._reached, self._pause, lambda: self._now_s)
        end.commit()

    def _reached(self, step: Step, work: Work) -> None:
        self._world.skips += step is Step.SKIPPED
        self._world.may_die()
        self._world.interlude()

    def _pause(self, seconds: float) -> None:
        self._now_s += seconds

    # --- tasks ------------------------------------------------------------------------------

    def _task(self, job: Job, part: int, values: Sequence[int]) -> Written:
        for _ in range(_ATTEMPTS):
            with contextlib.suppress(PulsarError, Death):
                accepted = write(job, self._entries(part, values))
                if not self._world.is_quiet and self._rng.random() < 0.15:
                    rival = write(job, self._entries(part, values))
                    return self._rng.choice([accepted, rival])
                return accepted
        raise JobFailed

    def _entries(self, part: int, values: Sequence[int]) -> Iterator[Destined]:
        for value in values:
            if not self._world.is_quiet and self._rng.random() < 0.05:
                # kill -9: the transaction stays open
                self._world.broker.faults["abort"] = Fault(ConnectError("dead"))
                raise Death
            yield entry(part, value)

    def _with_zombie(self, job: Job, values: Sequence[int], work: Callable[[], None]) -> None:
        """Work with a zombie: an abandoned attempt that continues when everything is over."""
        failure: BaseException | None = None
        has_worked = False

        def entries() -> Iterator[Destined]:
            nonlocal failure, has_worked
            yield from (entry(0, value) for value in values[:1])
            has_worked = True
            try:
                work()
            except BaseException as error:
                failure = error
            yield from (entry(0, value) for value in values)

        self._world.zombies += 1
        with contextlib.suppress(PulsarError):
            write(job, entries())
        if failure is not None:
            raise failure
        if not has_worked:  # the zombie stopped before that point
            work()


def entry(part: int, value: int) -> Destined:
    data = b"%d" % value
    return Destined(part, OUTPUT, EncodedBatch(data, 1, len(data)))


def run(seed: int, turns: int = 25) -> World:
    """Run a seed. Raises Wrong, or the error that keeps the query from finishing."""
    world = World(random.Random(seed))
    world.live(turns)
    world.finish()
    world.check()
    return world
