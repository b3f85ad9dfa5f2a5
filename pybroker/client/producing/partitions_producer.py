"""The producer of an ordinary topic: a router, and one TopicProducer per partition."""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence

from pybroker.client.connection.cluster import Cluster
from pybroker.client.errors import InvalidConfiguration
from pybroker.client.messages import Done, MessageId, Outgoing
from pybroker.client.options import ProducerOptions
from pybroker.client.partition_watch import PartitionWatch
from pybroker.client.producing.batching import EncodedBatch
from pybroker.client.producing.producer import Producer, resolving
from pybroker.client.producing.routing import Router
from pybroker.client.producing.topic_producer import TopicProducer
from pybroker.client.transactions.transaction import Transaction


class PartitionsProducer(Producer):
    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        partitions: list[str],
        options: ProducerOptions,
        followed: Sequence[str] = (),
    ) -> None:
        """`followed`: the topic, if partitions added later are to be used."""
        super().__init__(cluster, topic, options)
        self._parts = [self._part(name) for name in partitions]
        self._router = Router(
            self._parts, options.message_routing_mode, options.hashing_scheme, cluster.rng
        )
        self._watch = PartitionWatch(
            cluster, followed, options.partitions_watched_every_s, self._grow
        )
        self._closed = False

    def _part(self, topic: str) -> TopicProducer:
        return TopicProducer(
            self._cluster, topic, self._options, lambda count: self.room_freed(count)
        )

    async def open(self) -> None:
        await self._cluster.open_all(self, self._parts)
        self._watch.start()

    async def _grow(self, partitions: Sequence[str]) -> None:
        """Adds all at once, so that a key that moves to another partition moves only once."""
        added = [self._part(name) for name in partitions[len(self._parts) :]]
        await self._cluster.open_more(added)
        self._parts += added  # The router reads it.

    def producer_name(self) -> str:
        return self._parts[0].producer_name

    def last_sequence_id(self) -> int:
        return max(part.last_sequence_id for part in self._parts)

    def is_connected(self) -> bool:
        return all(part.is_connected for part in self._parts)

    async def send_message(self, message: Outgoing, txn: Transaction | None = None) -> MessageId:
        with self._given_back(1):
            part = await self._part_with_space(self._router.choose(message))
        answer: asyncio.Future[MessageId] = asyncio.get_running_loop().create_future()
        part.submit(message, txn, resolving(answer))
        return await answer

    def submit(self, message: Outgoing, txn: Transaction | None, done: Done) -> None:
        try:
            part = self._parts[self._router.choose(message)]
        except Exception as error:
            self._refuse(1, error, txn, done)
        else:
            part.submit(message, txn, done)

    async def send_batch(
        self,
        batch: EncodedBatch,
        *,
        txn: Transaction | None = None,
        partition: int | None = None,
    ) -> MessageId:
        with self._given_back(batch.message_count):
            part = await self._part_with_space(self._partition_for_batch(partition))
        answer: asyncio.Future[MessageId] = asyncio.get_running_loop().create_future()
        part.submit_batch(batch, txn, resolving(answer))
        return await answer

    def submit_batch(
        self, batch: EncodedBatch, txn: Transaction | None, done: Done, partition: int | None
    ) -> None:
        try:
            part = self._parts[self._partition_for_batch(partition)]
        except InvalidConfiguration as error:
            self._refuse(batch.message_count, error, txn, done)
        else:
            part.submit_batch(batch, txn, done)

    def _partition_for_batch(self, wanted: int | None) -> int:
        if wanted is None:
            return self._router.next_turn()
        if not 0 <= wanted < len(self._parts):
            raise InvalidConfiguration(
                f"{self._topic} has no partition {wanted}, only 0 to {len(self._parts) - 1}"
            )
        return wanted

    def _refuse(self, count: int, error: Exception, txn: Transaction | None, done: Done) -> None:
        """Refuses messages that belong to no partition."""
        if txn is not None:
            txn.refused(error)
        done(None, error)
        self.room_freed(count)

    @contextlib.contextmanager
    def _given_back(self, count: int) -> Iterator[None]:
        """Frees the room if the message does not reach a partition."""
        try:
            yield
        except BaseException:
            self.room_freed(count)
            raise

    async def _part_with_space(self, index: int) -> TopicProducer:
        part = self._parts[index]
        if self._options.block_if_queue_full:
            await part.space()
        return part

    async def flush(self) -> None:
        flushing = (part.flush() for part in self._parts)
        failures = await asyncio.gather(*flushing, return_exceptions=True)
        unheard, self._failure = self._failure, None
        for failure in (unheard, *failures):
            if failure is not None:
                raise failure

    async def close(self) -> None:
        """Sends the open batch and waits for its receipt, if there is a connection."""
        if self._closed:
            return
        self._closed = True
        self._watch.stop()
        self._cluster.members.pop(self, None)
        await asyncio.gather(*(part.close() for part in self._parts), return_exceptions=True)
