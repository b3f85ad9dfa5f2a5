"""An application's consumer: one TopicConsumer per topic or partition, and one queue."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

from pybroker.base.errors import NotAllowed
from pybroker.client import tracing
from pybroker.client.closing import Closing
from pybroker.client.connection.cluster import Cluster
from pybroker.client.consuming.acks import Place
from pybroker.client.consuming.receive_queue import tell_taken
from pybroker.client.consuming.subscribing import SubscriptionSpec
from pybroker.client.consuming.topic_consumer import TopicConsumer
from pybroker.client.errors import AlreadyClosed, InvalidConfiguration, Timeout
from pybroker.client.messages import Message, MessageId
from pybroker.client.options import ConsumerBatchReceivePolicy, ConsumerType
from pybroker.client.partition_watch import PartitionWatch
from pybroker.client.transactions.transaction import Transaction

Acknowledgeable = Message | MessageId


class Consumer(Closing):
    """Created by Client.subscribe."""

    has_dead_letters: ClassVar = False

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        partitions: list[str],
        spec: SubscriptionSpec,
        followed: Sequence[str] = (),
    ) -> None:
        """`followed`: the topics whose partitions are consumed, including those added later."""
        spec, options = spec.named(cluster.rng), spec.options
        if options.receiver_queue_size < 1:
            raise InvalidConfiguration("receiver_queue_size must be at least 1")
        if options.dead_letter_policy is not None and not self.has_dead_letters:
            raise InvalidConfiguration(
                "Only queue consumers have dead letters: use create_queue_consumer, which takes "
                "ordinary topics, too"
            )
        self._cluster = cluster
        self._topic = topic
        self._spec = spec
        self.queue = cluster.new_queue()
        # Settles the messages that threads took and acknowledged; called first on closing.
        self.settle: Callable[[], None] = self.queue.settle
        size = self._queue_size(len(partitions))
        self._capacity, self._part_capacity = size * len(partitions), size
        self.queue.half = max(1, size // 2)
        self._parts = {
            name: TopicConsumer(cluster, name, spec, self.queue, size) for name in partitions
        }
        self._watch = PartitionWatch(
            cluster, followed, options.partitions_watched_every_s, self._grow
        )
        self._closed = False

    def _queue_size(self, partitions: int) -> int:
        options = self._spec.options
        total = options.max_total_receiver_queue_size_across_partitions
        return max(1, min(options.receiver_queue_size, total // max(1, partitions)))

    async def open(self) -> None:
        await self._cluster.open_all(self, list(self._parts.values()))
        self._watch.start()

    async def _grow(self, partitions: Sequence[str]) -> None:
        spec = self._spec.of_new_partition
        size = self._queue_size(len(partitions))
        self._part_capacity = min(size, self._part_capacity)
        self.queue.half = max(1, size // 2)
        for name in partitions:
            if name not in self._parts:
                part = TopicConsumer(self._cluster, name, spec, self.queue, size)
                await self._cluster.open_more([part])
                self._parts = {**self._parts, name: part}  # Other threads may be reading it.
                self._capacity += size

    def topic(self) -> str:
        return self._topic

    def subscription_name(self) -> str:
        return self._spec.name

    def consumer_name(self) -> str:
        return self._spec.options.consumer_name or ""

    def is_connected(self) -> bool:
        return all(part.is_connected for part in self._parts.values())

    # --- receiving --------------------------------------------------------------------------

    async def receive(self, timeout_millis: int | None = None) -> Message:
        """Waits for the next message. Raises Timeout."""
        message = await self.queue.get(None if timeout_millis is None else timeout_millis / 1000)
        tell_taken([message])
        if tracing.spans is not None:
            tracing.spans.received(message)
        return message

    async def batch_receive(self) -> list[Message]:
        """Returns messages up to the batch_receive_policy's limits; empty if none came in time."""
        policy = self._spec.options.batch_receive_policy
        timeout_s = policy.timeout_ms / 1000 if policy.timeout_ms > 0 else None
        messages: list[Message] = []
        try:
            async with asyncio.timeout(timeout_s):
                await self._collect(messages, policy)
        except TimeoutError:
            pass
        except BaseException:
            # This caller does not get the messages, so the next one must.
            self.queue.put_back([each for each in messages if each.entry.receiver.takes_back(each)])
            raise
        tell_taken(messages)
        return messages

    async def _collect(self, messages: list[Message], policy: ConsumerBatchReceivePolicy) -> None:
        """Collects until a limit is reached. The queue's size is a limit too: without permits no
        more messages come. Without a timeout the limit is one partition's share of the queue: all
        messages may be of one partition, and this would wait forever for more."""
        limit = self._capacity if policy.timeout_ms > 0 else self._part_capacity
        if policy.max_num_message > 0:
            limit = min(limit, policy.max_num_message)
        size_bytes = 0
        while len(messages) < limit and not 0 < policy.max_num_bytes <= size_bytes:
            messages.append(await self.queue.get(None))
            size_bytes += len(messages[-1].data())

    async def take(self, max_messages: int, timeout_millis: int | None) -> list[Message]:
        """Waits for a message, then returns all that are queued; empty if none came in time."""
        try:
            messages = [await self.receive(timeout_millis)]
        except Timeout:
            return []
        more: list[Message] = []
        while len(more) < max_messages - 1 and (message := self.queue.poll()) is not None:
            more.append(message)
        tell_taken(more)
        return messages + more

    @property
    def is_prompt(self) -> bool:
        """Whether taking a message has an effect at once: it starts a timeout or moves a reader."""
        return self._spec.start is not None or bool(self._spec.options.unacked_messages_timeout_ms)

    @property
    def queued(self) -> int:
        return len(self.queue)

    # --- acknowledging ----------------------------------------------------------------------

    async def acknowledge(
        self,
        message: Acknowledgeable | Sequence[Acknowledgeable],
        txn: Transaction | None = None,
    ) -> None:
        """Acknowledges one message or several.

        Without a transaction this does not wait for the broker. In one it does, and raises
        TransactionConflict if the message was already acknowledged, with or without a transaction.
        """
        if txn is None:
            for part, places in self._by_part(message):
                part.acknowledge(places)
            return
        groups: dict[TopicConsumer, list[Acknowledgeable]] = {}
        for each in listed(message):
            groups.setdefault(self._receiver_of(each), []).append(each)
        for part, some in groups.items():
            await part.acknowledge_in(txn, some)

    async def acknowledge_cumulative(
        self, message: Acknowledgeable, txn: Transaction | None = None
    ) -> None:
        """Acknowledges everything of the message's topic or partition up to and including it.
        Raises NotAllowed on Shared and Key_Shared; in a transaction also for a message between the
        chunks of another, because it would acknowledge the first of those chunks.

        After an abort, acknowledge the same messages again, or request redelivery: they do not come
        again by themselves. Raises TransactionConflict if some of them came twice, and a
        transaction has consumed them as they were delivered the other time.
        """
        self.refuse_cumulative()
        part = self._receiver_of(message)
        if txn is None:
            part.acknowledge_cumulative(message.place)
        else:
            if _came_from_here(message):
                part.refuse_amid_chunks(message.place)
            await part.acknowledge_cumulative_in(txn, message)

    def refuse_if_ended(self) -> None:
        """Raises AlreadyClosed, or the error that ended the consumer."""
        if self.queue.failure is not None:
            raise self.queue.failure

    def refuse_cumulative(self) -> None:
        """Raises NotAllowed. The broker would refuse it too, but without an answer."""
        kind = self._spec.options.consumer_type
        if kind in (ConsumerType.Shared, ConsumerType.KeyShared):
            raise NotAllowed(
                f"{self._spec.name} is {kind.name}: cumulative acknowledgement needs Exclusive or "
                "Failover; acknowledge each message"
            )

    def acknowledge_now(self, messages: Acknowledgeable | Sequence[Acknowledgeable]) -> None:
        """Acknowledges collected messages outside transactions; sends that in this turn."""
        for part, places in self._by_part(messages):
            part.acknowledge(places)
            part.send_acknowledgements()

    def refuse_unknown(self, message: Acknowledgeable) -> None:
        """May run on any thread. Raises InvalidConfiguration for an id of another topic."""
        self._receiver_of(message)

    def acknowledge_cumulative_now(self, message: Acknowledgeable) -> None:
        for part, places in self._by_part(message):
            part.acknowledge_cumulative(places[0])

    def negative_acknowledge(self, message: Acknowledgeable) -> None:
        """Requests redelivery after negative_ack_redelivery_delay_ms."""
        for part, places in self._by_part(message):
            part.negative_acknowledge(places[0])

    def redeliver_unacknowledged_messages(self) -> None:
        for part in self._parts.values():
            part.redeliver_unacknowledged()

    def _by_part(
        self, messages: Acknowledgeable | Iterable[Acknowledgeable]
    ) -> Iterable[tuple[TopicConsumer, list[Place]]]:
        messages = listed(messages)
        groups: dict[TopicConsumer, list[Place]] = {}
        receiver: object = None
        places: list[Place] = []
        for message in messages:
            # Usually it came through the same TopicConsumer as the previous one.
            if isinstance(message, MessageId) or message.entry.receiver is not receiver:
                part = receiver = self._receiver_of(message)
                places = groups.setdefault(part, [])
            places.append(message.place)
        return groups.items()

    def _receiver_of(self, message: Acknowledgeable) -> TopicConsumer:
        if isinstance(message, Message):
            receiver: TopicConsumer = message.entry.receiver
            if self._parts.get(receiver.topic) is receiver:
                return receiver
            message = message.message_id()
        if not message.names_message():
            raise InvalidConfiguration(f"{message} is not the id of a message")
        return self._parts[self._part_of(message)]

    def _part_of(self, message_id: MessageId) -> str:
        named = message_id.topic_name()
        if named in self._parts:
            return named
        if named:
            raise InvalidConfiguration(
                f"{message_id} is from {named}, which is not a topic of this consumer of "
                f"{self._topic}: pass it to the consumer that received it"
            )
        candidates = [
            topic
            for topic, part in self._parts.items()
            if len(self._parts) == 1 or part.partition == message_id.partition()
        ]
        if len(candidates) != 1:
            raise InvalidConfiguration(
                f"{message_id} does not say which of {len(self._parts)} topics it belongs to: "
                "pass the Message, or the id it returned"
            )
        return candidates[0]

    # --- positions --------------------------------------------------------------------------

    async def seek(self, messageid: MessageId | int) -> None:
        """Seeks past a message (its topic or partition only) or to a publish time in ms."""
        if isinstance(messageid, int) or messageid in (MessageId.earliest, MessageId.latest):
            await asyncio.gather(*(part.seek(messageid) for part in self._parts.values()))
        else:
            await self._parts[self._part_of(messageid)].seek(messageid)

    async def seek_last_messages(self) -> None:
        """Makes the last message of every topic or partition the next to be delivered."""
        for part in self._parts.values():
            last, _ = await part.last_message_id()
            if last.entry_id() >= 0:
                await part.seek(last)

    async def get_last_message_id(self) -> MessageId:
        """For a single topic only: several topics have no common order."""
        return (await self._only_part().last_message_id())[0]

    async def get_mark_delete_position(self) -> MessageId:
        """Everything up to and including this entry is acknowledged. For a single topic only.

        Differs: not in official clients. Raises NotAllowed if the broker does not report it.
        """
        _, mark_delete = await self._only_part().last_message_id()
        if mark_delete is None:
            raise NotAllowed("The broker does not report mark-delete positions: upgrade it")
        return mark_delete

    def _only_part(self) -> TopicConsumer:
        if len(self._parts) > 1:
            raise InvalidConfiguration(
                f"{self._topic} has {len(self._parts)} partitions: subscribe to one of them"
            )
        return next(iter(self._parts.values()))

    async def get_last_message_ids(self) -> list[MessageId]:
        """One for each topic or partition; entry id -1 if it has no message."""
        answers = await asyncio.gather(*(part.last_message_id() for part in self._parts.values()))
        return [last for last, _ in answers]

    async def get_backlog(self) -> int:
        """Entries that the subscription has not acknowledged: single messages, or whole batches.

        Differs: not in official clients.
        """
        return sum(await asyncio.gather(*(part.backlog() for part in self._parts.values())))

    def has_reached_end(self) -> bool:
        """Whether the topic is terminated, and everything was delivered; of several, all."""
        return not self.queued and all(part.reached_end for part in self._parts.values())

    async def has_more(self) -> bool:
        if self.queued:
            return True
        more = await asyncio.gather(*(part.has_more() for part in self._parts.values()))
        return any(more) or bool(self.queued)

    # --- closing ----------------------------------------------------------------------------

    async def unsubscribe(self) -> None:
        """Deletes the subscription and closes the consumer."""
        await asyncio.gather(*(part.unsubscribe() for part in self._parts.values()))
        await self.close()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self.settle()
        self._watch.stop()
        self._cluster.members.pop(self, None)
        self.queue.fail(AlreadyClosed(f"The consumer of {self._topic} is closed"))
        await asyncio.gather(
            *(part.close() for part in self._parts.values()), return_exceptions=True
        )


def listed(
    messages: Acknowledgeable | Iterable[Acknowledgeable],
) -> Iterable[Acknowledgeable]:
    """A message is a list of one."""
    return (messages,) if isinstance(messages, Message | MessageId) else messages


def _came_from_here(message: Acknowledgeable) -> bool:
    """False for an id that the caller got elsewhere and is responsible for."""
    return isinstance(message, Message) or bool(message.topic_name())
