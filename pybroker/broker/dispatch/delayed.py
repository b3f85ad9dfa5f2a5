"""Delayed delivery: reads a subscription's entries, except those whose time has not come.

Such entries are remembered by time (`DelayedIndex`) as the reader passes them, and `take_due`
returns them when they are due. Across a restart only the log keeps them. A timer of the housekeeper
wakes the subscription. Shared and Key_Shared only, as in Apache Pulsar.

No message is early. Times are rounded up to a twentieth of a tick, so messages that are due
together are delivered together, in the order of the log; with strict delivery, they are not
rounded.

Differs: without strict delivery Apache Pulsar may deliver a tick too early.
"""

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final

from managed_ledger.housekeeper import Housekeeper, Visit
from managed_ledger.position import Position
from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.runtime import Clock
from pybroker.broker.dispatch.delayed_account import DelayedAccount
from pybroker.broker.dispatch.delayed_index import FRESH_BYTES, LAST_MS, DelayedIndex
from pybroker.broker.dispatch.delivery import MAX_RUN_ENTRIES, Delivery, nothing
from pybroker.broker.dispatch.entry_reader import EntryReader
from pybroker.broker.policies.effective import Effective
from pybroker.broker.policies.table import DELAYED_DELIVERY
from pybroker.wire.message_metadata import deliver_at_ms, may_be_delayed

MAX_DELAYED: Final = 4_000_000  # per subscription; at this number reading stops
DUE_AT_ONCE: Final = MAX_RUN_ENTRIES
_ROUNDS_A_TICK: Final = 20  # of deliveries
_LOOK_AGAIN_S: Final = 60.0  # in case the wall clock is set meanwhile, unless it never is


@dataclass(frozen=True, slots=True)
class DelayPolicy:
    active: bool
    tick_ms: int
    strict: bool

    @classmethod
    def of(cls, config: BrokerConfig) -> "DelayPolicy":
        return cls(
            config.delayed_delivery_enabled,
            config.delayed_delivery_tick_time_millis,
            config.is_delayed_delivery_deliver_at_time_strict,
        )

    def due_ms(self, deliver_at: int) -> int:
        step_ms = 1 if self.strict else max(1, self.tick_ms // _ROUNDS_A_TICK)
        return -(-deliver_at // step_ms) * step_ms


def delay_policy(policies: Effective) -> DelayPolicy:
    policy = policies[DELAYED_DELIVERY]
    strict = policies.config.is_delayed_delivery_deliver_at_time_strict
    return DelayPolicy(policy["active"], policy["tickTime"], strict)


@dataclass(frozen=True, slots=True)
class Delays:
    """A topic's delay settings; `policy` is evaluated each time."""

    policy: Callable[[], DelayPolicy]
    clock: Clock
    housekeeper: Housekeeper
    account: DelayedAccount = field(default_factory=DelayedAccount)  # shared by all topics


class UndelayedReader:
    """Passes on what an EntryReader reads, without the entries whose time has not come. Used like
    an EntryReader.
    """

    def __init__(self, reader: EntryReader, delays: Delays, resume: Callable[[], None]) -> None:
        self._reader = reader
        self._delays = delays
        self._resume = resume
        self._index = DelayedIndex()
        self._twice: set[tuple[int, int]] = set()  # entries that are in the index twice
        self._counted_bytes = 0  # for index and set, in the account
        self._visit: Visit | None = None
        self._visit_ms = 0  # the due time for which it was scheduled
        # If part of the last `peek` is delayed: the whole delivery, its last entry that is not
        # delayed, and the ids of the delayed entries with their times.
        self._peeked: tuple[Delivery, int, deque[tuple[int, int]]] | None = None
        self._many = False  # everything read was delayed

    @property
    def delayed(self) -> int:
        """The number of entries that wait for their time."""
        return len(self._index) - len(self._twice)

    @property
    def size_bytes(self) -> int:
        """The approximate memory of the delayed entries."""
        return self._counted_bytes

    # -- reading on

    def peek(self, max_messages: int, max_bytes: int) -> Delivery | None:
        """Like EntryReader.peek. An empty delivery means that entries were passed over; there may
        be more.
        """
        self._peeked = None
        policy = self._delays.policy()
        if not policy.active:
            return self._reader.peek(max_messages, max_bytes)
        if self._index and not self._may_grow():
            return None
        wanted = MAX_RUN_ENTRIES if self._many else max_messages
        delivery = self._reader.peek(wanted, max_bytes)
        if delivery is None:
            return None
        later = self._later(delivery, policy)
        self._many = len(later) == len(delivery.entries)
        if later:
            delivery = self._without(delivery, later)
        if wanted <= max_messages:
            return delivery
        return delivery.part(0, delivery.affordable(max_messages))

    def _later(self, delivery: Delivery, policy: DelayPolicy) -> dict[int, int]:
        """Indexes of the entries that are not due yet, with their times."""
        maybe = may_be_delayed(delivery.entries)
        if not maybe:
            return {}
        now_ms, later = self._delays.clock.now_ms(), {}
        for index in maybe:
            deliver_at = deliver_at_ms(delivery.entries[index])
            if deliver_at is not None and (due_ms := policy.due_ms(deliver_at)) > now_ms:
                later[index] = due_ms
        return later

    def _without(self, delivery: Delivery, later: dict[int, int]) -> Delivery:
        ids = delivery.entry_ids
        waiting = deque((ids[index], due_ms) for index, due_ms in later.items())
        now = [index for index in range(len(ids)) if index not in later]
        if now:
            self._peeked = delivery, ids[now[-1]], waiting
            return delivery.pick(now)
        self._remember(delivery.ledger_id, waiting, ids[-1])
        self._reader.pass_over(delivery)
        return nothing(delivery.ledger_id)

    def advance(self, delivery: Delivery) -> None:
        """Like EntryReader.advance; also passes delayed entries before `delivery` or directly after
        it.
        """
        if self._peeked is None:
            self._reader.advance(delivery)
            return
        whole, last_now, waiting = self._peeked
        last = delivery.entry_ids[-1]
        self._reader.advance(delivery)
        if last == last_now:
            last = whole.entry_ids[-1]
            self._peeked = None
            self._reader.pass_over(whole)
        self._remember(delivery.ledger_id, waiting, last)

    def _remember(self, ledger_id: int, waiting: deque[tuple[int, int]], last: int) -> None:
        while waiting and waiting[0][0] <= last:
            entry_id, due_ms = waiting.popleft()
            self._index.add(due_ms, ledger_id, entry_id)
        self._count()
        self._wake_in_time()

    def _may_grow(self) -> bool:
        """False: read nothing further until entries are due, or other subscriptions need less
        memory.
        """
        account = self._delays.account
        if account.has_room(self._counted_bytes):
            return len(self._index) < MAX_DELAYED
        account.wait(self._resume)
        return False

    def _size_bytes(self) -> int:
        return self._index.size_bytes + len(self._twice) * FRESH_BYTES

    def _count(self) -> None:
        before, self._counted_bytes = self._counted_bytes, self._size_bytes()
        self._delays.account.changed(before, self._counted_bytes)

    # -- due entries

    def take_due(self) -> list[tuple[int, int]]:
        """Removes and returns some of the entries that are due; all are due if delayed delivery was
        switched off.
        """
        if not self._index:
            return []
        limit, _ = self._reader.at_most(DUE_AT_ONCE, 0)
        now_ms = self._delays.clock.now_ms() if self._delays.policy().active else LAST_MS
        due = self._index.take(now_ms, limit)
        if self._reader.most_messages is not None:
            self._reader.most_messages -= len(due)
        self._twice.difference_update(due)
        self._count()
        self._wake_in_time()
        return due

    def wait_again(self, delivery: Delivery) -> Collection[int]:
        """Indexes of entries that are not due yet, although the reader has passed them and they
        were given back. `take_due` returns them later; some may already be waiting there.
        """
        policy = self._delays.policy()
        later = self._later(delivery, policy) if policy.active else {}
        for index, due_ms in later.items():
            position = delivery.ledger_id, delivery.entry_ids[index]
            if position not in self._twice:
                self._twice.add(position)
                self._index.add(due_ms, *position)
        self._count()
        self._wake_in_time()
        return later.keys()

    def _wake_in_time(self) -> None:
        due_ms = self._index.next_due_ms
        if due_ms is None or (self._visit is not None and self._visit_ms <= due_ms):
            return
        self._cancel_visit()
        delay_s = max(0, due_ms - self._delays.clock.now_ms()) / 1000
        self._visit_ms = due_ms
        if not getattr(self._delays.clock, "is_steady", False):
            delay_s = min(delay_s, _LOOK_AGAIN_S)
        self._visit = self._delays.housekeeper.visit_in(delay_s, self._wake)

    def _wake(self) -> None:
        self._visit = None
        due_ms = self._index.next_due_ms
        if due_ms is not None and due_ms <= self._delays.clock.now_ms():
            self._resume()
        else:
            self._wake_in_time()

    def _cancel_visit(self) -> None:
        if self._visit is not None:
            self._visit.cancel()
            self._visit = None

    # -- starting over

    def rewind(self) -> None:
        """Like EntryReader.rewind."""
        self.forget()
        self._reader.rewind()

    def skipped_to(self, mark: Position) -> None:
        """Forget entries up to this position, which are no longer wanted."""
        if mark.after >= self._reader.position:
            self.forget()
            return
        self._index.forget_up_to(mark)
        self._twice = {position for position in self._twice if position > mark}
        self._count()

    def forget(self) -> None:
        """Forget all delayed entries: they are no longer wanted, or will be read again."""
        self._cancel_visit()
        self._delays.account.leave(self._resume)
        self._index.clear()
        self._twice.clear()
        self._count()
        self._peeked = None
        self._many = False
