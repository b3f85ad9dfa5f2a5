"""The client processes that use transactions: publishing alone, and consume-transform-produce."""

import asyncio
from collections.abc import Awaitable
from typing import Any

from checks.history import Outcome, Receiver, Sent, Txn

from clients.plain import Process, read_of, receive, subscribe
from pybroker.base import errors
from pybroker.client.errors import PulsarException, TransactionAborted

REFUSALS = (errors.InvalidTxnStatus, errors.TransactionNotFound, TransactionAborted)
FAILURES = (PulsarException, errors.PulsarError)


class Transacting(Process):
    """Shared parts: ending transactions, and learning their outcome.

    The id of the last transaction counts as stored. A restarted process may end what its
    predecessor left open, and so learns its outcome.
    """

    # The newest transaction, until it is known to have ended everywhere. A refused commit does not
    # prove that: the abort may be in progress.
    last: tuple[Any, Txn] | None = None

    async def begin(self, client: Any) -> tuple[Any, Txn]:
        timeout_ms = self.rng.choice((1000, 5000, 15_000))
        txn = await client.new_transaction(timeout_ms=timeout_ms)
        name = f"{self.name}.{self.incarnation} {txn.txn_id}"
        record = self.history.begin(name, txn.txn_id, self.node)
        record.session = self.session
        self.note(f"began {record.name}, timeout {timeout_ms} ms")
        self.last = (txn.txn_id, record)
        return txn, record

    async def end(self, client: Any, txn: Any, record: Txn) -> bool:
        """Commits, aborts, does both at once, or leaves it to its timeout; True if it was
        committed.
        """
        fate = self.rng.choices(("commit", "abort", "race", "abandon"), (70, 15, 7, 8))[0]
        if fate == "commit":
            await self.commit(txn, record)
        elif fate == "abort":
            await self.abort(txn, record)
        elif fate == "race":
            other = client.attach_transaction(txn.txn_id)
            await asyncio.gather(self.commit(txn, record), self.abort(other, record))
        return record.committed

    async def commit(self, txn: Any, record: Txn) -> None:
        """Asks until there is an answer: outcomes are kept, so asking again is safe."""
        record.commit = Outcome.UNKNOWN
        record.commit_asked = record.commit_asked or self.history.turn()
        record.commit = await self._until_answered(txn.commit, f"commit of {record.name}")
        if record.committed:
            record.commit_heard = self.history.turn()

    async def abort(self, txn: Any, record: Txn) -> None:
        record.abort = Outcome.UNKNOWN
        record.abort = await self._until_answered(txn.abort, f"abort of {record.name}")
        if record.abort is Outcome.DONE:
            record.abort_heard = self.history.turn()

    async def _until_answered(self, ask: Any, what: str) -> Outcome:
        while True:
            try:
                await ask()
            except REFUSALS as error:
                self.note(f"{what} refused: {error!r}")
                if isinstance(error, errors.TransactionNotFound):
                    self.history.failures.append(f"FORGOTTEN: {what}: {error}")
                return Outcome.REFUSED
            except FAILURES as error:
                self.note(f"{what}: {error!r}")
                await self.pause(1.0)
            else:
                self.note(f"{what} done")
                self.last = None
                return Outcome.DONE

    async def settle_the_last(self, client: Any) -> None:
        """Ends what an earlier incarnation left; a refusal means that it was committed."""
        if self.last is None:
            return
        txn_id, record = self.last
        await self.abort(client.attach_transaction(txn_id), record)
        if record.abort is Outcome.REFUSED and record.commit is Outcome.UNKNOWN:
            record.commit, record.inferred = Outcome.DONE, True
        self.last = None

    async def publish(self, producer: Any, sent: Sent, txn: Any) -> None:
        await self.send(producer, sent, txn, partition_key=f"key-{sent.number % 3}")


class TxnProducer(Transacting):
    """Publishes groups of messages over several topics, one transaction each."""

    def __init__(self, *args: Any, topics: list[str], count: int, batching: bool) -> None:
        super().__init__(*args)
        self.topics = topics
        self.remaining = count
        self.batching = batching
        self._numbers = dict.fromkeys(topics, 0)

    async def work(self, client: Any) -> None:
        if self.rng.random() < 0.5:
            await self.settle_the_last(client)
        producers = {
            topic: await client.create_producer(topic, batching_enabled=self.batching)
            for topic in self.topics
        }
        while self.remaining and not self.stopping:
            self.remaining -= 1
            await self._transact(client, producers)
            await self.pause(0.5)

    async def _transact(self, client: Any, producers: dict[str, Any]) -> None:
        txn, record = await self.begin(client)
        sends = [self._publish_one(producers, txn, record) for _ in range(self.rng.randint(1, 5))]
        results = await asyncio.gather(*sends, return_exceptions=True)
        await self.pause(0.3)
        failures = [result for result in results if isinstance(result, BaseException)]
        if failures:
            self.note(f"{record.name} failed: {failures[0]!r}")
            await self.abort(txn, record)
        else:
            await self.end(client, txn, record)

    def _publish_one(self, producers: dict[str, Any], txn: Any, record: Txn) -> Awaitable[None]:
        topic = self.rng.choice(self.topics)
        number = self._numbers[topic] = self._numbers[topic] + 1
        name = f"{self.name}-{topic}"
        # A process's messages have no order across incarnations.
        sent = Sent(f"{name}/{number}", topic, f"{name}.{self.incarnation}", number, True, record)
        return self.publish(producers[topic], self.history.send(sent), txn)


class Transformer(Transacting):
    """Consume, transform, produce: acknowledges inputs and sends outputs in one transaction."""

    def __init__(
        self, *args: Any, topic: str, subscription: str, kind: str, output: str, cumulative: bool
    ) -> None:
        super().__init__(*args)
        self.topic = topic
        self.subscription = subscription
        self.kind = kind
        self.output = output
        self.cumulative = cumulative
        self._number = 0
        self._reached: dict[str, Any] = {}  # by topic: how far this incarnation has committed

    async def work(self, client: Any) -> None:
        self._reached.clear()
        if self.rng.random() < 0.5:
            await self.settle_the_last(client)
        consumer = await subscribe(self, client, self.topic, self.subscription, self.kind)
        producer = await client.create_producer(self.output)
        receiver = self.history.receiver(f"{self.name}.{self.incarnation}", self.subscription)
        while not self.stopping:
            batch = await self._receive_some(consumer, receiver)
            if self.cumulative:
                batch = self._only_new(batch)
            if not batch:
                continue
            if await self._transform(client, consumer, producer, batch):
                self._reached.update((message.topic_name(), message.order_key) for message in batch)
            else:
                await self._rewind(client, consumer)
        await consumer.close()

    async def _receive_some(self, consumer: Any, receiver: Receiver) -> list[Any]:
        messages = []
        for _ in range(self.rng.randint(1, 4)):
            message = await receive(self.history, consumer, receiver, timeout_millis=200)
            if message is None:
                break
            messages.append(message)
        return messages

    def _only_new(self, batch: list[Any]) -> list[Any]:
        """A reconnection delivers unacknowledged messages again. A cumulative acknowledgement
        beyond them would not be refused, so they must not count as new.
        """
        reached, new = dict(self._reached), []
        for message in batch:
            topic = message.topic_name()
            if topic not in reached or message.order_key > reached[topic]:
                reached[topic] = message.order_key
                new.append(message)
        return new

    async def _transform(self, client: Any, consumer: Any, producer: Any, batch: Any) -> bool:
        txn, record = await self.begin(client)
        try:
            await self._acknowledge(consumer, batch, txn, record)
            await asyncio.gather(*[self._emit(producer, txn, record) for _ in batch])
        except FAILURES as error:
            self.note(f"{record.name} failed: {error!r}")
            await self.abort(txn, record)
            return False
        await self.pause(0.2)
        return await self.end(client, txn, record)

    def _emit(self, producer: Any, txn: Any, record: Txn) -> Awaitable[None]:
        self._number += 1
        value, sender = f"{self.name}/{self._number}", f"{self.name}.{self.incarnation}"
        sent = self.history.send(Sent(value, self.output, sender, self._number, True, record))
        return self.publish(producer, sent, txn)

    async def _acknowledge(self, consumer: Any, batch: Any, txn: Any, record: Txn) -> None:
        if self.cumulative:
            last_of_each = {message.topic_name(): message for message in batch}
            for message in last_of_each.values():
                await consumer.acknowledge_cumulative(message, txn=txn)
        else:
            await asyncio.gather(*(consumer.acknowledge(message, txn=txn) for message in batch))
        record.acknowledged += [(self.subscription, read_of(message)) for message in batch]

    async def _rewind(self, client: Any, consumer: Any) -> None:
        """Makes received but uncommitted messages come again."""
        await self.pause(0.5)
        if self.cumulative and self.rng.random() < 0.5:
            await self.settle_the_last(client)
        consumer.redeliver_unacknowledged_messages()
