"""A producer on a WebSocket: each text message is published, and gets a receipt when it is durable.

What is published and not yet answered is limited, in messages and bytes; then nothing more is read.
A large message is published alone, and keeps its part of the budget until it is durable.
"""

import asyncio
from collections import OrderedDict, deque
from functools import partial
from typing import Any, Final

from pybroker.base.errors import TransactionNotFound
from pybroker.base.names import TxnId
from pybroker.base.runtime import Clock
from pybroker.client.messages import MessageId
from pybroker.client.producing.producer import Producer
from pybroker.client.transactions.transaction import Transaction
from pybroker.gateway.clients import VisitorClient
from pybroker.gateway.websocket import messages
from pybroker.gateway.websocket.channel import FREE_BYTES, Channel
from pybroker.gateway.websocket.endpoint import Endpoint, together

_PENDING_BYTES: Final = 256 * 1024
_TRANSACTIONS: Final = 100  # that are remembered


class Transactions:
    """The transactions that messages name; begun and ended elsewhere."""

    def __init__(self, client: VisitorClient) -> None:
        self._client = client
        self._known: OrderedDict[TxnId, Transaction] = OrderedDict()

    def of(self, txn_id: TxnId | None) -> Transaction | None:
        """Raises TransactionNotFound if no coordinator can have it."""
        if txn_id is None:
            return None
        if txn_id not in self._known:
            if len(self._known) >= _TRANSACTIONS:
                self._known.popitem(last=False)
            self._known[txn_id] = self._client.transaction(txn_id)
        self._known.move_to_end(txn_id)
        return self._known[txn_id]


class ProducerEndpoint(Endpoint):
    def __init__(
        self, client: VisitorClient, topic: str, options: dict[str, Any], clock: Clock
    ) -> None:
        super().__init__(client)
        self._topic = topic
        self._options = options
        self._clock = clock
        self._transactions = Transactions(client)
        self._producer: Producer | None = None
        self._pending = self._pending_bytes = 0
        self._answers: deque[tuple[str, int]] = deque()  # with the sizes of their messages
        self._changed = asyncio.Event()

    async def open(self) -> None:
        self._producer = await self.at_broker.client.create_producer(self._topic, **self._options)

    async def serve(self, channel: Channel) -> None:
        await together(self._read(channel), self._answer(channel))

    async def _read(self, channel: Channel) -> None:
        while True:
            text = await channel.receive()
            size_bytes = channel.peeked_bytes
            await self._until(self._has_room)
            self._publish(text, size_bytes)
            del text
            if size_bytes > FREE_BYTES:
                await self._until(self._is_idle)

    def _has_room(self) -> bool:
        most = self._options["max_pending_messages"]
        return self._pending < most and self._pending_bytes < _PENDING_BYTES

    def _is_idle(self) -> bool:
        return not self._pending

    async def _until(self, condition: Any) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    def _publish(self, text: str, size_bytes: int) -> None:
        self._pending += 1
        self._pending_bytes += size_bytes
        try:
            said = messages.published(text, self._clock.now_ms())
        except messages.BadMessage as bad:
            self._add(messages.failure(bad.code, str(bad), bad.context), size_bytes)
            return
        assert self._producer is not None
        done = partial(self._done, said.context, size_bytes)
        try:
            txn = self._transactions.of(said.txn_id)
        except TransactionNotFound as error:
            done(None, error)
        else:
            self._producer.submit(said.message, txn, done)

    def _done(
        self,
        context: str | None,
        size_bytes: int,
        message_id: MessageId | None,
        error: Exception | None,
    ) -> None:
        if error is None:
            self._add(messages.receipt(message_id or MessageId(), context), size_bytes)
        else:
            self._add(messages.failure(messages.UNKNOWN, str(error), context), size_bytes)

    def _add(self, answer: str, size_bytes: int) -> None:
        self._answers.append((answer, size_bytes))
        self._changed.set()

    async def _answer(self, channel: Channel) -> None:
        while True:
            await self._wait_for_answers()
            answer, size_bytes = self._answers.popleft()
            await channel.send(answer)
            self._pending -= 1
            self._pending_bytes -= size_bytes
            self._changed.set()

    async def _wait_for_answers(self) -> None:
        await self._until(lambda: self._answers)
