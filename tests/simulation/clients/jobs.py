"""Beside workers that live and die: a driver that ends their transactions, and a job that knows the
messages from elsewhere. See features/lives.py.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

from checks.conflicts import Key
from checks.history import Read, Txn

from clients.consumer import Copy
from clients.living import Group, Hand, Part, Worker
from clients.transacting import Transacting


class Driver(Transacting):
    """Ends the transactions of workers that are gone."""

    def __init__(self, *args: Any, group: Group) -> None:
        super().__init__(*args)
        self.group = group

    async def work(self, client: Any) -> None:
        left = self.group.left
        while left or not self.stopping:
            if left and self.rng.random() < 0.5:
                txn_id, record = left.pop(self.rng.randrange(len(left)))
                record.owner = self.node
                txn = client.attach_transaction(txn_id)
                await (self.commit if self.rng.random() < 0.7 else self.abort)(txn, record)
            await self.pause(1.0)


class Job(Worker):
    """Knows the messages from elsewhere, and acknowledges by their ids, however many its consumer
    was given. It also knows how far it has come: a process begins where the last one ended.
    """

    def __init__(self, *args: Any, known: Callable[[], list[Read]], **options: Any) -> None:
        super().__init__(*args, **options)
        self.known = known
        self.done: Key = (-1, -1, -1)
        self.trying: tuple[Txn, Key] | None = None

    async def settle_the_last(self, client: Any) -> None:
        await super().settle_the_last(client)
        if self.trying is not None:
            (record, end), self.trying = self.trying, None
            if record.committed:
                self.done = end

    async def _receive(self, client: Any) -> None:
        """Whatever its consumer receives, it does not look at it."""

    async def _transact(self, client: Any) -> None:
        await self.settle_the_last(client)
        (hand,) = self.hands
        new = self._new()
        hand.drop_all()
        for copy in new[: self.rng.randint(1, 12)]:
            hand.take(copy)
        if new and hand.consumer.connected:
            await super()._transact(client)

    def _new(self) -> list[Copy]:
        """Without the last entry: it may be a batch of which more is to come."""
        logs = self.group.logs
        reads = self.known() if logs is None else logs[self.hands[0].consumer.topic]
        sizes = Counter(read.message_id[:2] for read in reads)
        last = max(sizes, default=None)
        new = (read for read in reads if read.message_id > self.done)
        return [
            Copy(read.message_id, sizes[at] if read.message_id[2] >= 0 else 0, read.value)
            for read in new
            if (at := read.message_id[:2]) != last or logs is not None
        ]

    def _acknowledge(self, hand: Hand, txn: Any, record: Txn) -> list[Part]:
        parts = super()._acknowledge(hand, txn, record)
        end = parts[-1].ack.end
        assert end is not None
        self.trying = record, end
        return parts
