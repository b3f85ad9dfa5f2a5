"""The passes of one topic's consumer: see given.py."""

from collections.abc import Sequence
from weakref import WeakSet

from pybroker.client.consuming.acks import Place
from pybroker.client.consuming.given import Given
from pybroker.client.consuming.intake import Intake, Receiver
from pybroker.client.consuming.message_set import MessageSet
from pybroker.client.consuming.receive_queue import ReceiveQueue
from pybroker.client.messages import Message, MessageId


class Passes:
    def __init__(self, receiver: Receiver, queue: ReceiveQueue, intake: Intake) -> None:
        self._receiver = receiver
        self._queue = queue
        self._intake = intake
        # Those of which the application still has messages.
        self._earlier: WeakSet[Given] = WeakSet()

    def begin(self, session: int) -> int:
        """Everything unacknowledged will come again; returns the number of dropped messages."""
        dropped = self.drop_queued()
        self._earlier.add(self._intake.begin_pass(session))
        return dropped

    def drop_queued(self) -> int:
        dropped = self._queue.discard(self._receiver)
        for message in dropped:
            message.entry.given.never_taken([message.place])
        return len(dropped)

    def acknowledged(self, places: Sequence[Place]) -> None:
        """Without a transaction, which is done with all deliveries of a message."""
        self._intake.given.acknowledged(places)
        if self._earlier:
            for given in self._earlier:
                given.acknowledged(places)

    def acknowledged_up_to(self, place: Place) -> None:
        for given in (self._intake.given, *self._earlier):
            given.acknowledged_up_to(place)

    def of(self, message: Message | MessageId) -> Given | None:
        """The pass in which the application received it; None if it got the id elsewhere."""
        given = message.entry.given if isinstance(message, Message) else message.given
        present, place = self._intake.given, message.place
        if given is not None and given.owner is present.owner:
            return given
        if place not in present.in_hand or place in self.queued(present):
            return None
        return present

    def queued(self, given: Given) -> list[Place]:
        """The messages of a pass that the application has not taken."""
        waiting = self._queue.waiting(self._receiver) if given is self._intake.given else []
        return [message.place for message in waiting]

    def consumed(self, given: Given, consumed: MessageSet) -> None:
        """A transaction has consumed messages as they were delivered in a pass: if it is an earlier
        one, their later copies need not be received.
        """
        present = self._intake.given
        if given is not present and consumed:
            copies = self._queue.discard(self._receiver, consumed)
            present.never_taken([message.place for message in copies])
            self._receiver.owe_permits(len(copies))
