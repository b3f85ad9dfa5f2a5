"""The passes of one topic's consumer: see given.py.

An application does not notice that its consumer reconnects. So what it had in hand *before* is part
of what an acknowledgement covers, until the application asks for redelivery, or seeks: if another
consumer has taken some of it meanwhile, the broker must refuse it.

Applications acknowledge in the order in which they receive. So a cumulative acknowledgement up to a
message means its delivery in that pass, and what was received in passes before.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple
from weakref import WeakSet

from pybroker.base.names import TxnId
from pybroker.client.consuming.acks import EntryKey, Place
from pybroker.client.consuming.given import Given, Since
from pybroker.client.consuming.intake import Intake, Receiver
from pybroker.client.consuming.message_set import MessageSet
from pybroker.client.consuming.receive_queue import ReceiveQueue
from pybroker.client.messages import Message, MessageId

MAX_TRANSACTIONS: Final = 10_000  # whose ends are unknown; beyond it the first are forgotten


class Taken(NamedTuple):
    """What a transaction acknowledged in one command, as it was delivered in a pass."""

    given: Given
    with_earlier: bool  # and in passes before
    messages: MessageSet

    def means(self, each: Given) -> bool:
        """Whether it means deliveries of that pass."""
        earlier = each.since == self.given.since and each.session < self.given.session
        return each is self.given or (self.with_earlier and earlier)


class Passes:
    def __init__(self, receiver: Receiver, queue: ReceiveQueue, intake: Intake) -> None:
        self._receiver = receiver
        self._queue = queue
        self._intake = intake
        # Those of which the application still has messages.
        self._earlier: WeakSet[Given] = WeakSet()
        # What transactions acknowledged. Their ends are unknown.
        self._taken: dict[TxnId, list[Taken]] = {}

    def begin(self, session: int, moved: bool = False) -> int:
        """Everything unacknowledged will come again, from the position of a seek if it was `moved`.
        Returns the number of dropped messages.
        """
        dropped = self.drop_queued()
        self._earlier.add(self._intake.begin_pass(session, moved))
        return dropped

    def drop_queued(self) -> int:
        dropped = self._queue.discard(self._receiver)
        for message in dropped:
            message.entry.given.discard([message.place])
        return len(dropped)

    def acknowledged(self, places: Sequence[Place]) -> None:
        """Without a transaction, which is done with all deliveries of a message."""
        for given in self._all():
            given.discard(places)

    def acknowledged_up_to(self, place: Place) -> None:
        for given in self._all():
            given.discard_up_to(place)

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

    # --- transactions -----------------------------------------------------------------------

    def covered(self, given: Given, place: Place) -> MessageSet:
        """What a cumulative acknowledgement means: what was received up to there, and is in hand,
        since the application asked for redelivery or sought.
        """
        covered = MessageSet.of([place])
        for each in self._since(given.since):
            covered.add_all(self._received(each, place))
            covered.add_all(each.before.up_to(place))
        return covered

    def _received(self, given: Given, place: Place) -> MessageSet:
        received = given.in_hand.up_to(place)
        received.discard_all(MessageSet.of(self.queued(given)))
        return received

    def has_spent(self, given: Given, covered: MessageSet) -> bool:
        """Whether the application may have worked on some of it, and it is consumed."""
        return any(each.spent and covered.both(each.spent) for each in self._since(given.since))

    def unclear(self, given: Given, place: Place, covered: MessageSet) -> EntryKey | None:
        """An entry with messages that are covered, and were received only after the last one."""
        if (late := given.unclear(place, covered)) is not None:
            return late
        for each in self._since(given.since):
            if each.session > given.session:
                later = covered.both(each.in_hand)
                later.discard_all(given.in_hand)
                later.discard_all(given.before)
                later.discard_all(MessageSet.of([place]))
                if later:
                    return later.first
        return None

    def knows_all(self, given: Given) -> bool:
        """Whether nothing was forgotten that the application may have in hand."""
        return all(each.is_whole for each in self._since(given.since))

    def _since(self, since: Since) -> Iterator[Given]:
        return (each for each in self._all() if each.since == since)

    def leave(self, given: Given, messages: MessageSet) -> None:
        """A transaction has acknowledged them individually: they come again after an abort."""
        given.in_hand.discard_all(messages)
        for each in self._all():
            each.before.discard_all(messages)

    def _all(self) -> Iterator[Given]:
        yield self._intake.given
        yield from self._earlier

    def copies(self, given: Given, messages: MessageSet) -> MessageSet:
        """Those of the messages of a pass that are in hand as delivered in others, too."""
        found = MessageSet()
        for other in self._all():
            if other is not given:
                found.add_all(other.in_hand.both(messages))
        return found

    def has_copies(self, txn_id: TxnId, given: Given, place: Place) -> bool:
        """Whether an acknowledgement up to there means two deliveries of a message that the
        application may have worked on, or another one of what the transaction has acknowledged.
        Deliveries for which it asked are no surprise to it.
        """
        meant = Taken(given, True, MessageSet())
        for each in self._all():
            known = [each.before] if each.before else []
            for other in self._taken.get(txn_id, ()):
                if other.given.since == each.since and not other.means(each):
                    known.append(other.messages)
            if known and meant.means(each):
                received = self._received(each, place)
                if any(received.both(messages) for messages in known):
                    return True
        return False

    def take(self, txn_id: TxnId, taken: Taken) -> bool:
        """A transaction has acknowledged them. Returns whether it is the first time here."""
        is_first = txn_id not in self._taken
        if is_first and len(self._taken) >= MAX_TRANSACTIONS:
            del self._taken[next(iter(self._taken))]
        self._taken.setdefault(txn_id, []).append(taken)
        return is_first

    def ended(self, txn_id: TxnId, committed: bool) -> None:
        for taken in self._taken.pop(txn_id, ()):
            if committed:
                self.leave(taken.given, taken.messages)
                for each in self._all():
                    if taken.means(each):
                        each.in_hand.discard_all(taken.messages)
                    else:
                        self._consumed_in_other_pass(each, taken.messages)

    def _consumed_in_other_pass(self, given: Given, messages: MessageSet) -> None:
        """As delivered in another pass. Copies in the queue need not be received."""
        if given is self._intake.given:
            copies = self._queue.discard(self._receiver, messages)
            given.discard([message.place for message in copies])
            self._receiver.owe_permits(len(copies))
        given.spent.add_all(given.in_hand.both(messages))

    def rivals(self, txn_id: TxnId, given: Given, covered: MessageSet) -> list[tuple[TxnId, bool]]:
        """Other transactions that acknowledged some of it, whose ends are unknown; and whether
        they did so as it was delivered in other passes.
        """
        found: dict[TxnId, bool] = {}
        for other, taken in self._taken.items():
            for each in taken if other != txn_id else ():
                if covered.both(each.messages):
                    found[other] = found.get(other, False) or not each.means(given)
        return list(found.items())
