"""Redeliveries on Shared and Key_Shared; delayed messages are held until their time.

A transaction may have acknowledged a delayed message before its time. When the transaction aborts,
the message is given back, and waits again as before.
"""

from pybroker.broker.dispatch.delayed import UndelayedReader
from pybroker.broker.dispatch.delivery import Delivery, nothing
from pybroker.broker.dispatch.entry_reader import EntryReader
from pybroker.broker.dispatch.redelivery import RedeliveryQueue


class ReturnedEntries(RedeliveryQueue):
    def __init__(self, reader: EntryReader, unread: UndelayedReader) -> None:
        super().__init__(reader)
        self._unread = unread
        self.may_be_early = False  # True if the time of some entries may not have come

    def peek(self, max_messages: int, max_bytes: int) -> Delivery | None:
        """Like EntryReader.peek. An empty delivery means that entries wait again; there may be
        more.
        """
        delivery = super().peek(max_messages, max_bytes)
        if delivery is None:
            self.may_be_early = self.may_be_early and bool(self)
        elif self.may_be_early:
            return self._in_time(delivery)
        return delivery

    def _in_time(self, delivery: Delivery) -> Delivery:
        early = self._unread.wait_again(delivery)
        if not early:
            return delivery
        self._remove(delivery.ledger_id, [delivery.entry_ids[index] for index in early])
        now = [index for index in range(len(delivery.entry_ids)) if index not in early]
        return delivery.pick(now) if now else nothing(delivery.ledger_id)
