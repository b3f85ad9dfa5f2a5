"""A scalable topic of a cluster is split, merged, rebucketed and pruned while clients write to it,
alone and in transactions, and read it: in queues, in streams, from checkpoints. Meanwhile its
broker is killed, stalled, stopped, or loses the topic's bundle; readers leave, die and return.

What is promised is what one broker promises: see features/splitting.py.
"""

import asyncio
from typing import Any, ClassVar, Final

from checks.history import Logs, Sent
from checks.segments import certain, missed, of_aborted, out_of_order
from clients import admin
from clients.plain import Process, new_client, receive_one, value_of
from clients.transacting import FAILURES
from features.feature import Feature
from features.splitting import AWAY, NAME, NAMESPACE, Layouts, Splitter, WholeWriter, Writer

from brokers import trouble
from brokers.administering import Unanswered, ask
from brokers.migrating import taken_from
from pybroker.client.options import InitialPosition
from pybroker.client.scalable import Checkpoint

QUEUE, STREAM, CHECKPOINT = "queue", "stream", "checkpoint"
# Longer than a stream consumer keeps its segments without a connection, after a client has noticed
# that its connection is silent.
QUIET_S: Final = 150.0
TURN_S: Final = 8.0
_CONFLICT: Final = 409


class Asking:
    """Asks the topic's broker as an administrator; sometimes another one, which may know less."""

    def __init__(self, feature: Feature) -> None:
        self._cluster = feature.broker
        self._rng = feature.rng

    async def __call__(self, work: Any, crash: Any = None) -> Any:
        member = self._cluster.owner(NAME)
        if member is None or self._rng.random() < 0.1:
            member = self._rng.choice(self._cluster.members)
        return await admin.ask(member, work, crash)


class Reader(Process):
    """Reads for a while, leaves, and comes again."""

    kind: ClassVar[str]

    def __init__(self, *args: Any, read: dict[str, None]) -> None:
        super().__init__(*args)
        self.read = read  # by all of the subscription, in the order of their first receipt
        self.stays_away_s = self.rng.choice((0.5, 6.0))

    async def work(self, client: Any) -> None:
        while not self.stopping:
            consumer = await self.open(client)
            try:
                await self._read_for_a_while(consumer)
            except FAILURES as why:
                self.note(f"reads again: {why!r}")
            await consumer.close()
            self.history.counts[f"{self.kind} consumers left"] += 1
            await self.pause(self.stays_away_s)

    async def _read_for_a_while(self, consumer: Any) -> None:
        until_s = self.world.now + TURN_S * self.rng.random()
        while self.world.now < until_s and not self.stopping:
            message = await receive_one(consumer, 300)
            if message is not None:
                self.read.setdefault(value_of(message))
                await self.done(consumer, message)

    async def open(self, client: Any) -> Any:
        raise NotImplementedError

    async def done(self, consumer: Any, message: Any) -> None:
        raise NotImplementedError

    @property
    def options(self) -> dict[str, Any]:
        return {
            "consumer_name": self.name,
            "initial_position": InitialPosition.Earliest,
            "receiver_queue_size": self.rng.choice((1, 3, 100)),
        }


class QueueReader(Reader):
    kind = QUEUE

    async def open(self, client: Any) -> Any:
        return await client.create_queue_consumer(
            str(NAME), QUEUE, negative_ack_redelivery_delay_ms=300, **self.options
        )

    async def done(self, consumer: Any, message: Any) -> None:
        if self.rng.random() < 0.1:
            consumer.negative_acknowledge(message)
        else:
            await consumer.acknowledge(message)


class StreamReader(Reader):
    kind = STREAM

    async def open(self, client: Any) -> Any:
        return await client.create_stream_consumer(str(NAME), STREAM, **self.options)

    async def done(self, consumer: Any, message: Any) -> None:
        if self.rng.random() < 0.7:
            await consumer.acknowledge_cumulative(message)


class CheckpointReader(Reader):
    """What it has stored says where it goes on, also after its death."""

    kind = CHECKPOINT
    stored = Checkpoint.earliest.serialize()

    async def open(self, client: Any) -> Any:
        return await client.create_checkpoint_consumer(
            str(NAME), Checkpoint.deserialize(self.stored)
        )

    async def done(self, consumer: Any, message: Any) -> None:
        if self.rng.random() < 0.3:
            self.stored = consumer.checkpoint().serialize()


class SplittingOverBrokers(Feature):
    name = "splitting over brokers"
    serves_http = True

    def begin(self) -> None:
        self.sent: dict[str, Sent] = {}
        self.asking = Asking(self)
        self.layouts = Layouts(self.asking)
        self.some_is_away = self.rng.random() < 0.6
        # Only what a subscription holds is there when a checkpoint consumer comes back.
        kinds = [QueueReader, StreamReader, *[CheckpointReader] * self.some_is_away]
        self.kinds = self.rng.sample(kinds, self.rng.randint(1, len(kinds)))
        self.read: dict[str, dict[str, None]] = {each.kind: {} for each in self.kinds}
        self.simulation.on_a_fresh_node(self._begin_topic())
        self._create_writers()
        self._create_readers()
        for _ in range(self.rng.choice((0, 1, 2, 4))):
            self.world.after(self.some_time(), self._strike)

    def _create_writers(self) -> None:
        common, asking = (self.world, self.history), {"layouts": self.layouts}
        self.simulation.producers += [
            self.rng.choice((Writer, WholeWriter, WholeWriter))(
                *common, f"writer-{number}", **asking, count=30, sent=self.sent
            )
            for number in range(self.rng.randint(1, 2))
        ]
        count = self.rng.randint(2, 6)
        self.simulation.producers.append(
            Splitter(*common, "splitter", **asking, ask=self.asking, count=count)
        )

    def _create_readers(self) -> None:
        for kind in self.kinds:
            alone = kind is CheckpointReader
            for number in range(1 if alone else self.rng.randint(1, 3)):
                name, read = f"{kind.kind}-{number}", self.read[kind.kind]
                reader = kind(self.world, self.history, name, read=read)
                self.simulation.others.append(reader)
                for _ in range(self.rng.choice((0, 0, 1, 2))):
                    down_s = self.rng.choice((0.0, 0.5, 5.0))
                    self.world.after(self.some_time(), reader.crash, down_s)

    async def _begin_topic(self) -> None:
        while True:
            client = new_client(self.world, self.rng)
            try:
                return await self._create_topic(client)
            except (Unanswered, *FAILURES) as why:
                self.note(f"the topic is created again: {why!r}")
                await asyncio.sleep(0.5)
            finally:
                await client.close()

    async def _create_topic(self, client: Any) -> None:
        """Nothing is retained but what a subscription holds."""
        nothing = b'{"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}'
        segments = self.rng.choice((1, 1, 2, 4))
        for method, path, body in (
            ("PUT", f"namespaces/{NAMESPACE}", b'{"bundles": {"numBundles": 3}}'),
            ("POST", f"namespaces/{NAMESPACE}/retention", nothing),
            ("PUT", f"scalable/{NAMESPACE}/{NAME.local}?numInitialSegments={segments}", b""),
        ):
            reply = await ask(self.broker, method, path, body)
            if not (reply.is_done or reply.status == _CONFLICT):
                raise Unanswered(f"{path}: {reply.status} {reply.body[:100]!r}")
        for subscription in (QUEUE, STREAM, *[AWAY] * self.some_is_away):
            consumer = await client.create_queue_consumer(
                str(NAME), subscription, initial_position=InitialPosition.Earliest
            )
            await consumer.close()

    # --- faults of the topic's broker

    def _strike(self) -> None:
        """The controller of the topic's groups dies, stalls or moves with the topic."""
        owner = self.broker.owner(NAME)
        if owner is None or self.world.now > trouble.BEGINS_S + trouble.ACTIVE_S:
            return
        how = self.rng.choice(("is killed", "stalls", "stops", "moves", "moves"))
        self.count(f"broker of a scalable topic {how}")
        if how == "is killed":
            owner.note("is killed, and has the scalable topic")
            owner.end(self.rng.choice((0.0, 0.5, 4.0)), self.rng.random() < 0.3)
        elif how == "stalls":
            owner.stall(self.rng.choice(trouble.STALLS_S))
        elif how == "stops":
            owner.stop(0.1)
        elif not owner.is_stalled:
            bundle = next(each for each in owner.owned() if each.holds(NAME))
            heir = self.rng.choice(self.broker.members)
            named = heir.serving and heir is not owner and self.rng.random() < 0.7
            owner.note(f"gives {bundle} back, with the scalable topic")
            owner.release(bundle, heir.broker_id if named else "")

    # --- the end

    def rest(self) -> None:
        self._count = -1
        self.simulation.wait(self._is_read, "the readers of a scalable topic")

    def _is_read(self) -> bool:
        """Or nothing comes any more: the account tells what is missing."""
        count = sum(map(len, self.read.values()))
        if count != self._count:
            self._count, self._since_s = count, self.world.now
        known = certain(self.sent)
        is_all = all(value in read for read in self.read.values() for value in known)
        return is_all or self.world.now - self._since_s > QUIET_S

    def account(self, logs: Logs) -> list[str]:
        read = dict(self.read)
        if self.some_is_away:
            there = self.simulation.on_a_fresh_node(self._what_is_there())
            read["the subscription that was away"] = dict.fromkeys(there)
        found = list(self.layouts.violations)
        for who, values in read.items():
            found += [*missed(self.sent, values, who), *of_aborted(self.sent, values, who)]
            if who in (STREAM, CHECKPOINT):
                found += out_of_order(self.sent, values, who)
        return found

    async def _what_is_there(self) -> set[str]:
        return await taken_from(self.simulation, str(NAME), AWAY)
